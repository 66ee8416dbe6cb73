"""Lower bounds against all cuts, and certificates against tampering."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import Bound, fixed_k_optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose
from tests.properties import random_cases
from tests.reference.all_cuts import AllCuts
from tests.strategies import networks

BROADCAST = Collective(CollectiveName.BROADCAST, 0)
REDUCE = Collective(CollectiveName.REDUCE, 0)
EVERY = (ALLGATHER, REDUCE_SCATTER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE)


@random_cases(60)
@given(networks(2, 6))
def test_bounds_equal_the_best_of_all_cuts(topology: Topology) -> None:
    ranks = topology.compute_count
    everywhere, at_root = (1,) * ranks, tuple(int(rank == 0) for rank in range(ranks))
    turned = transpose(topology)
    values = {collective: lower_bound(topology, collective).value for collective in EVERY}
    assert values[ALLGATHER] == AllCuts(topology, everywhere).optimum() / ranks
    assert values[REDUCE_SCATTER] == AllCuts(turned, everywhere).optimum() / ranks
    assert values[BROADCAST] == AllCuts(topology, at_root).optimum()
    assert values[REDUCE] == AllCuts(turned, at_root).optimum()
    assert values[ALLREDUCE] >= max(values[BROADCAST], values[REDUCE])
    for collective in EVERY:
        bound = lower_bound(topology, collective)
        assert check_certificate(topology, collective, bound.to_json(topology)) == bound.value


def two_boxes() -> Topology:
    """Two boxes of three ranks on a fast switch each, joined by one slow link: a cut that no single rank shows."""
    nodes = ("0", "1", "2", "3", "4", "5", "left", "right")
    fast, slow = Fraction(10), Fraction(1, 2)
    pairs = [(rank, 6 if rank < 3 else 7, fast) for rank in range(6)] + [(6, 7, slow)]
    links = [Link(a, b, width) for first, second, width in pairs for a, b in ((first, second), (second, first))]
    return Topology("custom", nodes, 6, Links.build(links), "GB/s")


def test_a_bottleneck_between_groups_is_found() -> None:
    bound = lower_bound(two_boxes(), ALLGATHER)
    assert bound.value == Fraction(1, 2) / Fraction(1, 2)
    assert set(bound.nodes) in ({0, 1, 2, 6}, {3, 4, 5, 7})
    assert lower_bound(two_boxes(), ALLREDUCE).value == 2
    assert lower_bound(two_boxes(), ALLTOALL).value == Fraction(3 * 3, 6) / Fraction(1, 2)


def test_a_met_time_ends_the_search() -> None:
    bound = lower_bound(parse_topology("torus:20x20"), ALLGATHER, Fraction(399, 1600))
    assert (bound.kind, len(bound.nodes), bound.value) == ("into", 1, Fraction(399, 1600))
    assert lower_bound(two_boxes(), ALLGATHER, Fraction(1, 100)).value == Fraction(5, 6) / 10


def _certificates() -> list[tuple[Topology, Collective, Mapping[str, Any]]]:
    cube, boxes = parse_topology("hypercube:3"), parse_topology("a100:4")
    given_k = fixed_k_optimum(parse_topology("mi250:2"), ALLGATHER, 2)
    return [
        (cube, ALLGATHER, lower_bound(cube, ALLGATHER).to_json(cube)),
        (cube, REDUCE, lower_bound(cube, REDUCE).to_json(cube)),
        (boxes, ALLREDUCE, lower_bound(boxes, ALLREDUCE).to_json(boxes)),
        (parse_topology("mi250:2"), ALLGATHER, given_k.bound.to_json(parse_topology("mi250:2"))),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "change",
    [
        {"time_per_byte": "1"},
        {"time_per_byte": "much"},
        {"time_per_byte": "1/0"},
        {"time_per_byte": None},
        {"nodes": [], "parts": [[]]},
        {"nodes": ["99"], "parts": [["99"]]},
        {"nodes": None, "parts": None},
        {"kind": "volume"},
        {"kind": None},
    ],
)
def test_tampered_certificates_are_noticed(place: int, change: dict[str, object]) -> None:
    topology, collective, certificate = _certificates()[place]
    check_certificate(topology, collective, certificate)
    with pytest.raises(CheckFailed, match="the certificate does not prove its bound"):
        check_certificate(topology, collective, {**certificate, **change})


@pytest.mark.parametrize("k", [0, -1, True, "2", 3, 83])
def test_a_bound_for_some_k_does_not_hold_for_others(k: object) -> None:
    topology, collective, certificate = _certificates()[3]
    with pytest.raises(CheckFailed):
        check_certificate(topology, collective, {**certificate, "k": k})


def test_a_bound_for_some_k_does_not_hold_for_all() -> None:
    topology, collective, certificate = _certificates()[3]
    with pytest.raises(CheckFailed):
        check_certificate(topology, collective, {**certificate, "k": None})
    with pytest.raises(CheckFailed, match="trees per shard"):
        check_certificate(topology, ALLREDUCE, certificate)


def test_groups_with_a_rank_in_common_prove_nothing() -> None:
    topology, collective, certificate = _certificates()[2]
    parts = certificate["parts"]
    with pytest.raises(CheckFailed, match="ranks in common"):
        check_certificate(topology, collective, {**certificate, "parts": [*parts, parts[0]]})


def test_a_cut_around_the_root_says_nothing_about_a_broadcast() -> None:
    topology = parse_topology("ring:4")
    certificate = {"kind": "into", "nodes": ["0"], "time_per_byte": "1/2"}
    assert check_certificate(topology, Collective(CollectiveName.BROADCAST, 2), certificate) == Fraction(1, 2)
    with pytest.raises(CheckFailed):
        check_certificate(topology, BROADCAST, certificate)


def test_a_bound_names_its_nodes_by_id() -> None:
    assert Bound("into", (3,), Fraction(7, 24)).to_json(parse_topology("hypercube:3")) == {
        "kind": "into",
        "nodes": ["3"],
        "time_per_byte": "7/24",
    }
