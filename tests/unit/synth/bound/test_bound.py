"""Bounds against all cuts, and certificates against tampering."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from synth.bound.bound import lower_bound
from synth.bound.certificate import check_bound
from synth.bound.cut import Bound
from synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, parse_collective
from synth.errors import CheckFailed, InvalidInput
from synth.topology.links import Link, Links
from synth.topology.spec import parse_topology
from synth.topology.topology import Topology
from synth.topology.transpose import transpose
from tests.reference.all_cuts import AllCuts
from tests.strategies import networks


@settings(max_examples=60)
@given(networks(2, 6))
def test_bounds_equal_the_best_of_all_cuts(topology):
    gather = lower_bound(topology, ALLGATHER)
    scatter = lower_bound(topology, REDUCE_SCATTER)
    both = lower_bound(topology, ALLREDUCE)
    ranks = topology.compute_count
    one_root = tuple(int(rank == 0) for rank in range(ranks))
    assert gather.value == AllCuts(topology, (1,) * ranks).optimum() / ranks
    assert scatter.value == AllCuts(transpose(topology), (1,) * ranks).optimum() / ranks
    assert both.value >= AllCuts(topology, one_root).optimum()
    assert both.value >= AllCuts(transpose(topology), one_root).optimum()
    for collective, bound in ((ALLGATHER, gather), (REDUCE_SCATTER, scatter), (ALLREDUCE, both)):
        check_bound(topology, collective, bound)


def two_boxes() -> Topology:
    """Two boxes of three ranks on a fast switch each, joined by one slow link: a cut that no single rank shows."""
    nodes = ("0", "1", "2", "3", "4", "5", "left", "right")
    fast, slow = Fraction(10), Fraction(1, 2)
    pairs = [(rank, 6 if rank < 3 else 7, fast) for rank in range(6)] + [(6, 7, slow)]
    links = [Link(a, b, width) for first, second, width in pairs for a, b in ((first, second), (second, first))]
    return Topology("custom", nodes, 6, Links.build(links), "GB/s")


def test_a_bottleneck_between_groups_is_found():
    bound = lower_bound(two_boxes(), ALLGATHER)
    assert bound.value == Fraction(1, 2) / Fraction(1, 2)
    assert set(bound.nodes) in ({0, 1, 2, 6}, {3, 4, 5, 7})
    assert lower_bound(two_boxes(), ALLREDUCE).value == 2


def test_regular_networks_need_no_flow():
    bound = lower_bound(parse_topology("torus:20x20"), ALLGATHER, Fraction(399, 1600))
    assert (bound.kind, len(bound.nodes), bound.value) == ("into", 1, Fraction(399, 1600))


@pytest.mark.parametrize(
    "change",
    [
        {"value": Fraction(1, 3)},
        {"nodes": ()},
        {"nodes": tuple(range(8))},
        {"nodes": (99,)},
        {"kind": "volume"},
        {"kind": "guess"},
    ],
)
def test_tampered_bounds_are_noticed(change):
    topology = parse_topology("hypercube:3")
    bound = lower_bound(topology, ALLGATHER)
    check_bound(topology, ALLGATHER, bound)
    with pytest.raises(CheckFailed):
        check_bound(topology, ALLGATHER, replace(bound, **change))


def test_a_bound_names_its_nodes_by_id():
    assert Bound("into", (3,), Fraction(7, 24)).to_json(parse_topology("hypercube:3")) == {
        "kind": "into",
        "nodes": ["3"],
        "time_per_byte": "7/24",
    }


def test_other_collectives_are_refused():
    with pytest.raises(InvalidInput, match="bounds exist for"):
        lower_bound(parse_topology("ring:4"), parse_collective("alltoall"))
