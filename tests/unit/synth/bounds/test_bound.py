"""Lower bounds against all cuts and theorems, where switches act too; certificates against tampering."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import isqrt
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.bounds.certificate import check_certificate, least_tree
from chorale.synth.bounds.lower_bound import (
    allreduce_bounds,
    in_network_bound,
    lower_bound,
    reduce_scatter_allgather_time,
    single_rank_cuts,
)
from chorale.synth.bounds.optimum import fixed_k_optimum, search_for
from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    REDUCE_SCATTER,
    Collective,
    CollectiveName,
    parse_collective,
)
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.links import both, network
from tests.properties import random_cases
from tests.reference.cuts import best_rate_by_groups, slowest_cut
from tests.strategies import networks

BROADCAST = Collective(CollectiveName.BROADCAST, 0)
REDUCE = Collective(CollectiveName.REDUCE, 0)
EVERY = (ALLGATHER, REDUCE_SCATTER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE)


@random_cases(60)
@given(networks(2, 6))
def test_bounds_equal_the_best_of_all_cuts(topology: Topology) -> None:
    values = {collective: lower_bound(topology, collective).value for collective in EVERY}
    for collective in (ALLGATHER, REDUCE_SCATTER, BROADCAST, REDUCE):
        assert values[collective] == slowest_cut(topology, collective)
    assert values[ALLREDUCE] >= max(values[BROADCAST], values[REDUCE])
    for collective in EVERY:
        bound = lower_bound(topology, collective)
        assert check_certificate(topology, collective, bound.to_json(topology)) == bound.value


def two_boxes() -> Topology:
    """Two boxes of three ranks on a fast switch each, joined by one slow link: a cut that no single rank shows."""
    return network(6, 2, both(*((rank, 6 + rank // 3, 10) for rank in range(6)), (6, 7, "1/2")))


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
        {"time_per_byte": "1/0"},
        {"time_per_byte": None},
        {"nodes": [], "parts": [[]]},
        {"nodes": ["99"], "parts": [["99"]]},
        {"nodes": None, "parts": None},
        {"kind": None},
    ],
)
def test_tampered_certificates_are_noticed(place: int, change: dict[str, object]) -> None:
    topology, collective, certificate = _certificates()[place]
    check_certificate(topology, collective, certificate)
    with pytest.raises(CheckFailed, match="the certificate does not prove its bound"):
        check_certificate(topology, collective, {**certificate, **change})


@pytest.mark.parametrize("k", [0, -1, True, "2", 3, 83, None])
def test_a_bound_for_some_k_does_not_hold_for_others(k: object) -> None:
    topology, collective, certificate = _certificates()[3]
    with pytest.raises(CheckFailed):
        check_certificate(topology, collective, {**certificate, "k": k})
    with pytest.raises(CheckFailed, match="trees per shard"):
        check_certificate(topology, ALLREDUCE, certificate)


def test_groups_with_a_rank_in_common_prove_nothing() -> None:
    topology, collective, certificate = _certificates()[2]
    parts = certificate["parts"]
    with pytest.raises(CheckFailed, match="ranks in common"):
        check_certificate(topology, collective, {**certificate, "parts": [*parts, parts[0]]})


@given(st.integers(2, 6).flatmap(lambda nodes: st.lists(st.integers(0, 9), min_size=nodes**2, max_size=nodes**2)))
def test_the_cheapest_tree_is_that_of_networkx(costs: list[int]) -> None:
    cost = np.array(costs).reshape(isqrt(len(costs)), -1)
    arcs = [(one, other, int(cost[one, other])) for one, other in permutations(range(len(cost)), 2) if other != 0]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(arcs)
    assert least_tree(cost, 0) == nx.minimum_spanning_arborescence(graph).size(weight="weight")


def test_a_cut_around_the_root_says_nothing_about_a_broadcast() -> None:
    topology = parse_topology("ring:4")
    certificate = {"kind": "into", "nodes": ["0"], "time_per_byte": "1/2"}
    assert check_certificate(topology, Collective(CollectiveName.BROADCAST, 2), certificate) == Fraction(1, 2)
    with pytest.raises(CheckFailed):
        check_certificate(topology, BROADCAST, certificate)


@pytest.mark.parametrize(
    "spec", ["a100:2", "mi250:2", "mi300x:2", "dragonfly:2,1,1", "torus:3x4", "kautz:2,3", "railclos:2,4,25,2"]
)
def test_groups_prove_reduce_scatter_with_allgather_optimal(spec: str) -> None:
    topology = parse_topology(spec)
    both = reduce_scatter_allgather_time(topology)
    assert lower_bound(topology, ALLREDUCE, both).value == lower_bound(topology, ALLREDUCE).value == both


def test_what_goes_out_counts_on_one_way_networks() -> None:
    """One link of bandwidth 1 leaves rank 0, which all of the vector must take."""
    topology = network(3, 0, [(0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 0, 3)])
    assert not topology.is_eulerian
    kinds = {bound.kind for bound in allreduce_bounds(topology)}
    assert kinds == {"received", "sent", "into", "out-of"}
    assert lower_bound(topology, ALLREDUCE).value == 1


def test_cuts_around_single_ranks_are_moved_by_symmetries() -> None:
    """Each rank has a switch of its own that is narrower than the rank; the last two are narrower still."""
    ranks = 8
    leaves = [(rank, ranks + rank, 4) for rank in range(ranks)]
    alone = network(
        ranks, ranks + 1, both(*leaves, *((8 + rank, 16, 1 if rank < 6 else "1/2") for rank in range(ranks)))
    )
    turned = np.array([1, 2, 3, 4, 5, 0, 7, 6])
    symmetric = replace(alone, automorphisms=(np.concatenate([turned, ranks + turned, [2 * ranks]]).astype(np.int32),))
    found = (single_rank_cuts(search_for(topology, ALLGATHER)) for topology in (alone, symmetric))
    cuts = [[cut.tolist() for cut in each] for each in found]
    assert cuts[0] == cuts[1] == [[rank, ranks + rank] for rank in range(ranks)]


GOLDEN = [
    ("switch:8,450", "1800/7", None),
    ("able(switch:8,450)", "1800/7", "450"),
    ("h100:2", "800/3", "400"),
    ("h100:4", "8000/31", "800/3"),
    ("h100:5", "250", "250"),
    ("able(h100:4;switch=rail)", "8000/31", "400"),
    ("nvl72:2", "68400/143", "131400/143"),
    ("nvl72:16", "547200/1151", "1051200/1151"),
    ("able(nvl72:16;switch=rail)", "547200/1151", "1076400/1151"),
    ("able(fattree:4)", "40/3", "25"),
    ("scaled(h100:1;link=0-nvswitch:0;factor=1/2)", "225", "225"),
    ("able(a100:3;switch=nvswitch)", "150", "150"),
]


@pytest.mark.parametrize(("spec", "alone", "in_network"), GOLDEN)
def test_golden_rates(spec, alone, in_network):
    topology = parse_topology(spec)
    assert 1 / lower_bound(topology, ALLREDUCE).value == Fraction(alone)
    bound = in_network_bound(topology, ALLREDUCE)
    assert (None if bound is None else 1 / bound.value) == (None if in_network is None else Fraction(in_network))
    if bound is not None:
        assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value


def test_a_single_ability_of_a_switch_gains_nothing():
    for ability in ("multicast=no", "reduce=no"):
        topology = parse_topology(f"able(switch:8,450;{ability})")
        assert in_network_bound(topology, ALLREDUCE).value == lower_bound(topology, ALLREDUCE).value


@pytest.mark.parametrize(("sums", "rate"), [("100", "300"), ("450", "450"), ("1", "1803/7")])
def test_adding_at_a_limited_rate(sums, rate):
    """s + (c - s) N / (2 (N - 1)), for N = 8 at c = 450."""
    topology = parse_topology(f"able(switch:8,450;reduce-bandwidth={sums})")
    bound = in_network_bound(topology, ALLREDUCE)
    expected = min(Fraction(450), Fraction(sums) + (450 - Fraction(sums)) * Fraction(8, 14))
    assert 1 / bound.value == expected == Fraction(rate)
    check_certificate(topology, ALLREDUCE, bound.to_json(topology))


@pytest.mark.parametrize("name", ["allgather", "reduce", "alltoall"])
def test_cuts_bound_the_other_collectives_whatever_switches_do(name):
    topology, collective = parse_topology("h100:2"), parse_collective(name)
    assert in_network_bound(topology, collective).value == lower_bound(topology, collective).value


@pytest.mark.parametrize("seed", [*range(12), 18, 45, 49])
def test_as_good_as_all_cuts_and_partitions(seed):
    topology = random_able_fabric(seed, most_ranks=5, most_switches=3)
    bound = in_network_bound(topology, ALLREDUCE)
    assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value
    assert 1 / bound.value == best_rate_by_groups(topology)


@pytest.mark.parametrize(
    "change",
    [
        {"in_network": False, "parts": [], "time_per_byte": "1/257"},  # of ranks alone: h100:4 cannot be that slow
        {"parts": [["0.0", "nvswitch:0"]]},  # an able switch in no group
        {"time_per_byte": "1/260"},
        {"parts": [[f"{box}.{gpu}" for gpu in range(8)] for box in range(4)]},
    ],
)
def test_wrong_certificates_are_refused(change):
    topology = parse_topology("h100:4")
    certificate = dict(in_network_bound(topology, ALLREDUCE).to_json(topology))
    assert certificate["in_network"] is True
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, certificate | change)
    first, *others = certificate["parts"]
    shared = [first, *([*part, "nvswitch:0"] for part in others)]
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, certificate | {"parts": shared})


def test_a_certificate_of_ranks_alone_says_nothing_of_switches():
    topology = parse_topology("h100:2")
    alone = dict(lower_bound(topology, ALLREDUCE).to_json(topology))
    assert check_certificate(topology, ALLREDUCE, alone) == Fraction(3, 800)
    with pytest.raises(CheckFailed):
        check_certificate(topology, ALLREDUCE, alone | {"in_network": True})
