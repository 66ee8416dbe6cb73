"""Stored networks as specs."""

import numpy as np
import pytest

from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism
from chorale.synth.topology.bases import database
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.spec import parse_topology


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("diamond", "base:diamond"),
        ("dbjmod:2,3", "base:dbjmod-2-3"),
        ("dbjmod:2,4", "base:dbjmod-2-4"),
        ("dbjmod:3,2", "base:dbjmod-3-2"),
        ("dbjmod:4,2", "base:dbjmod-4-2"),
        ("cayley:8.2.7.2,18,27,8,20", None),
    ],
)
def test_families_of_stored_networks(family, base):
    topology = parse_topology(family)
    assert topology.spec == family
    assert topology.degree is not None
    if base is not None:
        assert topology.id == parse_topology(base).id
    else:
        assert automorphisms_are_transitive(parse_topology("base:cayley-32-4"))


@pytest.mark.parametrize(("d", "n"), [(2, 3), (2, 4), (3, 2), (4, 2)])
def test_modified_de_bruijn_differs_by_one_cycle(d, n):
    """Without self-loops and 2-cycles, what is not in the de Bruijn graph is one cycle through what they touched."""
    links = parse_topology(f"dbjmod:{d},{n}").links
    own = set(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    plain = {(x, (d * x + a) % d**n) for x in range(d**n) for a in range(d)}
    removed = {(u, v) for u, v in plain if u == v or (v, u) in plain}
    assert own >= plain - removed
    following = dict(own - (plain - removed))
    assert following.keys() == {u for u, _ in removed}
    node = start = next(iter(following))
    for _ in range(len(following)):
        node = following[node]
    assert node == start
    assert len(set(following.values())) == len(following)
    assert not any(u == v for u, v in own)


def test_every_entry_builds_with_its_symmetries():
    for entry in database.load_bases().values():
        topology = base_topology(entry, f"base:{entry.name}")
        assert (topology.compute_count, topology.degree) == (entry.nodes, entry.degree)
        assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)
        if entry.edges is not None:
            assert np.array_equal(np.column_stack([topology.links.src, topology.links.dst]), entry.edges)
        else:
            assert automorphisms_are_transitive(topology)


@pytest.mark.parametrize("spec", ["diamond", "base:d3"])
def test_diameters_meet_the_moore_bound(spec):
    assert diameter(parse_topology(spec)) == 3
