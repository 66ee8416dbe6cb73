"""Edge-disjoint cycles and what runs along them."""

from fractions import Fraction
from itertools import pairwise
from math import gcd

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.rings.rings import bfb_ring, disjoint_cycles, hamiltonian_ring, torus_has_disjoint_cycles
from chorale.synth.topology.spec import parse_topology
from tests.patterns import verified_with_traffic
from tests.shapes import node_counts, shapes


def hops(order) -> set[tuple[int, int]]:
    """Return the links of a cycle, both ways."""
    forward = set(pairwise([*order.tolist(), int(order[0])]))
    return forward | {(dst, src) for src, dst in forward}


@pytest.mark.parametrize("rows", range(3, 13))
@pytest.mark.parametrize("columns", range(3, 13))
def test_cycles_of_tori_exist_just_where_the_papers_condition_holds(rows, columns):
    topology = parse_topology(f"torus:{rows}x{columns}")
    condition = (rows % columns == 0 and gcd(rows, columns - 1) == 1) or (
        columns % rows == 0 and gcd(columns, rows - 1) == 1
    )
    if not condition:
        with pytest.raises(InvalidInput, match="r = c k and gcd"):
            disjoint_cycles(topology)
        return
    first, second = disjoint_cycles(topology)
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    for cycle in (first, second):
        assert sorted(cycle.tolist()) == list(range(rows * columns))
        assert hops(cycle) <= links
    assert not hops(first) & hops(second)


RINGS = [f"torus:{r}x{c}" for n in range(9, 37) for r, c in (s for s in shapes(n, 3) if len(s) == 2)]
APPLICABLE = [
    spec
    for spec in RINGS
    if any(torus_has_disjoint_cycles(*pair) for s in [spec[6:].split("x")] for pair in (map(int, s), map(int, s[::-1])))
]


@pytest.mark.parametrize("method", [hamiltonian_ring, bfb_ring])
@pytest.mark.parametrize("spec", APPLICABLE)
def test_all_tori_up_to_36_nodes(spec, method):
    topology = parse_topology(spec)
    verified = verified_with_traffic(method(topology, ALLREDUCE))
    nodes = topology.compute_count
    assert verified.cost.bandwidth_factor == 2 * Fraction(nodes - 1, nodes)
    assert verified.schedule.steps == 2 * (nodes - 1 if method is hamiltonian_ring else nodes // 2)


@pytest.mark.parametrize("nodes", node_counts(3))
def test_rings_and_shifted_rings(nodes):
    """ShiftedRing takes 2 (N - 1) steps, ShiftedBFBRing 2 floor(N / 2), both bandwidth-optimal (section A.2)."""
    for spec in (f"ring:{nodes}", f"shiftedring:{nodes}"):
        topology = parse_topology(spec)
        for method, steps in ((hamiltonian_ring, nodes - 1), (bfb_ring, nodes // 2)):
            verified = verified_with_traffic(method(topology, ALLREDUCE))
            assert verified.schedule.steps == 2 * steps
            assert verified.cost.bandwidth_factor == 2 * Fraction(nodes - 1, nodes)


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("spec", ["ring:5", "ring:6", "shiftedring:8", "torus:3x3", "torus:8x4", "uniring:1,5"])
def test_other_collectives(spec, collective):
    nodes = parse_topology(spec).compute_count
    verified = verified_with_traffic(hamiltonian_ring(parse_topology(spec), collective))
    assert verified.schedule.steps == nodes - 1
    verified = verified_with_traffic(bfb_ring(parse_topology(spec), collective))
    assert verified.schedule.steps == nodes // 2


def test_an_opposite_rank_gets_half_from_either_side():
    schedule = bfb_ring(parse_topology("ring:4"), ALLGATHER).schedule()
    last = schedule.transfers.step == schedule.steps - 1
    assert {
        src for src, dst in zip(schedule.src[last].tolist(), schedule.dst[last].tolist(), strict=True) if dst == 0
    } == {1, 3}


@pytest.mark.parametrize("spec", ["hyperx:4x4", "hyperx:9x3", "hxmesh:2,2x2", "hxmesh:2,2x4", "hxmesh:1,3x3"])
def test_other_grids(spec):
    verified_with_traffic(hamiltonian_ring(parse_topology(spec), ALLREDUCE))


def test_16384_nodes_are_one_traffic_step():
    traffic = hamiltonian_ring(parse_topology("torus:128x128"), ALLREDUCE).traffic()
    assert len(traffic.steps) == 2 * 16383
    assert len({id(step) for step in traffic.steps}) <= 2
    assert (traffic.link_amounts(traffic.steps[0]) == 1).all()


@pytest.mark.parametrize(
    "spec",
    ["torus:3x3x3", "torus:2x4", "torus:4x6", "mesh:3x3", "hypercube:3", "a100:2", "without(torus:4x4;link=0-1)"],
)
def test_other_networks_are_refused(spec):
    with pytest.raises(InvalidInput, match="use biring or bucket"):
        hamiltonian_ring(parse_topology(spec), ALLREDUCE)
