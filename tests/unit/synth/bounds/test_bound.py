"""Bounds and optima against all cuts and theorems, where switches act too; certificates against tampering."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import isqrt
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.ours.quality import random_able_fabric
from chorale.synth.bounds import optimum as fewest_trees_module
from chorale.synth.bounds.certificate import check_certificate, check_pair_certificate, least_tree
from chorale.synth.bounds.lower_bound import (
    allreduce_bounds,
    in_network_bound,
    lower_bound,
    reduce_scatter_allgather_time,
    single_rank_cuts,
)
from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, integral_trees, optimum, search_for
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, amounts_on, residual_graph
from chorale.synth.bounds.tree_pairs import tree_pairs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.links import both, network
from tests.properties import random_cases
from tests.random_fabrics import random_fabric
from tests.reference.cuts import (
    AllCuts,
    Arc,
    best_rate_by_groups,
    cuts_of,
    faults_of_split,
    previous_breakpoint,
    slowest_cut,
    violated_sink_sides,
)
from tests.strategies import MIXED, networks, strongly_connected_topologies

FROM_1, TO_1 = parse_collective("broadcast", 1), parse_collective("reduce", 1)


def _proves(cuts: AllCuts, found: Optimum, trees_per_bandwidth: Fraction) -> bool:
    """Whether the cut of `found` cannot carry its k at `trees_per_bandwidth`."""
    cut = cuts.masks.tolist().index(sum(1 << node for node in found.cut))
    amounts = [int(trees_per_bandwidth * link.bandwidth) for link in cuts.topology.links]
    return bool(cuts.entering(amounts)[cut] < found.k * cuts.outside[cut])


@pytest.mark.parametrize("first", [0, 50, *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 600, 50))])
def test_optima_also_for_a_fixed_k_equal_the_best_of_all_cuts(first: int) -> None:
    for seed in range(first, first + 50):
        topology = random_fabric(seed)
        for collective in (ALLGATHER, REDUCE_SCATTER, FROM_1, TO_1):
            cuts = cuts_of(topology, collective)
            found = optimum(topology, collective)
            assert found.time_per_shard == cuts.optimum(), (seed, collective)
            assert cuts.carries(found.trees_per_bandwidth, found.k)
            assert found.is_fewest
            fewer = range(max(1, found.k - 12), found.k)
            assert not any(_trees_exist(cuts, found, k) for k in fewer), (seed, collective)
            assert _proves(cuts, found, previous_breakpoint(topology, found.trees_per_bandwidth))
            for k in (1, 2, 3):
                fixed = fixed_k_optimum(topology, collective, k)
                assert cuts.carries(fixed.trees_per_bandwidth, k), (seed, collective, k)
                previous = previous_breakpoint(topology, fixed.trees_per_bandwidth)
                assert not cuts.carries(previous, k), (seed, collective, k)
                assert _proves(cuts, fixed, previous)


def _trees_exist(cuts: AllCuts, found: Optimum, k: int) -> bool:
    """Whether all cuts carry k trees per shard in the time of `found`, and switches get what they pass on."""
    rate = k * found.time_per_shard
    tried = Optimum(found.shards, rate, k, "into", found.cut)
    return cuts.carries(rate, k) and tried.is_reached_by_trees(cuts.topology)


def test_only_tight_cuts_need_whole_trees_and_a_search_that_is_given_up_claims_nothing(monkeypatch) -> None:
    wide = "scaled(uniring:1,3;link=0>1;factor=1000000000;link=1>2;factor=999999999;link=2>0;factor=999999998)"
    for spec in ("scaled(mesh:3;link=1-2;factor=15/8)", wide):
        found = optimum(parse_topology(spec), ALLGATHER)
        assert (found.k, found.is_fewest) == (1, True)
    monkeypatch.setattr(fewest_trees_module, "MAX_MULTIPLES", 0)
    assert not optimum(parse_topology("scaled(mesh:3;link=1-2;factor=15/8)"), ALLGATHER).is_fewest


@random_cases(40)
@given(strongly_connected_topologies(2, 5, bandwidths=MIXED, switches=2))
def test_one_way_networks_that_are_not_eulerian_have_bounds_too(topology: Topology) -> None:
    cuts = cuts_of(topology, ALLGATHER)
    assert optimum(topology, ALLGATHER).time_per_shard == cuts.optimum()
    fixed = fixed_k_optimum(topology, ALLGATHER, 2)
    assert cuts.carries(fixed.trees_per_bandwidth, 2)
    assert not cuts.carries(previous_breakpoint(topology, fixed.trees_per_bandwidth), 2)


def test_the_smallest_number_of_trees_is_whole_on_every_link() -> None:
    bandwidths = parse_topology("a100:2").links.bandwidths
    assert bandwidths == (25, 300)
    assert integral_trees(parse_topology("a100:2"), Fraction(3, 65)) == (Fraction(3, 5), 13)
    assert integral_trees(random_fabric(3), Fraction(1)) == (Fraction(12), 12)


def test_amounts_beyond_64_bits_are_refused() -> None:
    topology = network(3, 0, [(0, 1, 2**52 - 1), (1, 2, "1/2"), (2, 0, 2**30)])
    assert optimum(topology, ALLGATHER).time_per_shard == 4
    with pytest.raises(InvalidInput, match=r"integers below 2\^60"):
        fixed_k_optimum(topology, ALLGATHER, 2**40)


@pytest.mark.parametrize(
    ("collective", "k", "message"),
    [
        (ALLGATHER, 0, "at least one tree"),
        (ALLREDUCE, 1, "the optimum of trees is computed for allgather,"),
        (parse_collective("broadcast", 4), 1, "is not a rank"),
    ],
)
def test_what_has_no_optimum_is_refused(collective: Collective, k: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fixed_k_optimum(parse_topology("ring:4"), collective, k)
    with pytest.raises(InvalidInput, match="no link leads to 2"):
        optimum(network(3, 0, [(0, 1, 1), (1, 0, 1), (2, 0, 1)]), ALLGATHER)
    with pytest.raises(InvalidInput, match="at most 256 ranks"):
        tree_pairs(parse_topology("ring:257"))


def test_splits_hold_and_certificates_prove() -> None:
    for seed in (*range(30), 473):  # in the last one, switches stand in circles
        topology = random_fabric(seed)
        pairs = tree_pairs(topology)
        split = pairs.split
        arcs = list(zip(split.arcs.src.tolist(), split.arcs.dst.tolist(), strict=True))
        assert faults_of_split(topology, arcs, split.roots, split.gather, split.reduce) == [], seed
        assert check_pair_certificate(topology, pairs.certificate) == pairs.bound
        assert 0 <= pairs.gap < Fraction(1, 10**4), (seed, float(pairs.gap))
        assert pairs.bound <= reduce_scatter_allgather_time(topology)
        assert pairs.time_per_byte >= lower_bound(topology, ALLREDUCE).value


def test_a_leaf_need_not_be_a_root() -> None:
    """On a star the centre adds everything up: leaves send and receive M, and not 2 M (N - 1) / N."""
    star = network(4, 0, both((0, 1, 1), (0, 2, 1), (0, 3, 1)))
    assert tree_pairs(star).split.roots == (1, 0, 0, 0)
    assert reduce_scatter_allgather_time(star) == Fraction(3, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"time_per_byte": "1"},
        {"kind": "into"},
        {"gather_cuts": []},
        {"reduce_cuts": [{"nodes": ["99"], "weight": "1"}]},
        {"reduce_cuts": [{"nodes": ["0"], "weight": "-1"}]},
        {"reduce_cuts": [{"nodes": [], "weight": "1"}]},
        {"gather_switches": {"0": "1"}},
        {"reduce_switches": {"nobody": "1"}},
    ],
)
def test_tampered_certificates_of_pairs_are_noticed(change: dict[str, Any]) -> None:
    topology = parse_topology("mesh:3x3")
    certificate = tree_pairs(topology).certificate
    check_pair_certificate(topology, certificate)
    with pytest.raises(CheckFailed, match="the certificate does not prove its bound"):
        check_pair_certificate(topology, {**certificate, **change})


@st.composite
def states(draw: st.DrawFn) -> tuple[int, list[Arc], list[int], list[int]]:
    nodes = draw(st.integers(2, 7))
    node = st.integers(0, nodes - 1)
    arcs = draw(st.lists(st.tuples(node, node, st.integers(0, 6)).filter(lambda arc: arc[0] != arc[1]), max_size=24))
    supply = draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes))
    sinks = draw(st.lists(node, min_size=1, unique=True))
    return nodes, arcs, supply, sinks


def _search(nodes: int, arcs: list[Arc], supply: list[int], sinks: list[int], rows: int) -> tuple[list, list]:
    src, dst, amounts = (np.array([arc[i] for arc in arcs], dtype=np.int64) for i in range(3))
    graph, half_arcs = residual_graph(nodes, src, dst)
    wanted, settled = np.zeros((2, nodes), dtype=np.bool_)
    wanted[sinks] = True
    cuts = np.zeros((rows, nodes), dtype=np.bool_)
    capacity = amounts_on(graph, half_arcs, amounts)
    found = native.violated_cuts(graph, capacity, np.array(supply, dtype=np.int64), wanted, settled, cuts)
    return [set(np.flatnonzero(cut)) for cut in cuts[:found]], list(np.flatnonzero(settled))


@given(states())
def test_a_cut_is_found_exactly_where_one_is_violated(state: tuple[int, list[Arc], list[int], list[int]]) -> None:
    nodes, arcs, supply, sinks = state
    violated = list(violated_sink_sides(nodes, arcs, supply, sinks))
    found, settled = _search(nodes, arcs, supply, sinks, nodes + 1)
    assert bool(found) == bool(violated)
    assert all(cut in violated for cut in found)
    assert settled == sorted(sinks)


def test_a_full_table_leaves_the_last_sink_open_and_amounts_up_to_the_limit_stay_exact() -> None:
    assert _search(3, [(0, 1, 1), (1, 2, 1)], [2, 0, 0], [1, 2], 1) == ([{1}], [])
    large = LARGEST_AMOUNT // 4
    assert _search(2, [(0, 1, large)], [large, 0], [1], 1)[0] == []
    assert _search(2, [(0, 1, large - 1)], [large, 0], [1], 1)[0] == [{1}]


BROADCAST, REDUCE = parse_collective("broadcast"), parse_collective("reduce")
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


@given(st.integers(2, 6).flatmap(lambda nodes: st.lists(st.integers(0, 9), min_size=nodes**2, max_size=nodes**2)))
def test_the_cheapest_tree_is_that_of_networkx(costs: list[int]) -> None:
    cost = np.array(costs).reshape(isqrt(len(costs)), -1)
    arcs = [(one, other, int(cost[one, other])) for one, other in permutations(range(len(cost)), 2) if other != 0]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(arcs)
    assert least_tree(cost, 0) == nx.minimum_spanning_arborescence(graph).size(weight="weight")


def test_a_cut_around_the_root_says_nothing_about_a_broadcast_nor_groups_with_a_rank_in_common() -> None:
    topology, collective, certificate = _certificates()[2]
    parts = certificate["parts"]
    with pytest.raises(CheckFailed, match="ranks in common"):
        check_certificate(topology, collective, {**certificate, "parts": [*parts, parts[0]]})
    topology = parse_topology("ring:4")
    certificate = {"kind": "into", "nodes": ["0"], "time_per_byte": "1/2"}
    assert check_certificate(topology, parse_collective("broadcast", 2), certificate) == Fraction(1, 2)
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
    ("h100:4", "8000/31", "800/3"),
    ("nvl72:2", "68400/143", "131400/143"),
    ("nvl72:16", "547200/1151", "1051200/1151"),
    ("able(nvl72:16;switch=rail)", "547200/1151", "1076400/1151"),
]


@pytest.mark.parametrize(("spec", "alone", "in_network"), GOLDEN)
def test_golden_rates(spec, alone, in_network):
    topology = parse_topology(spec)
    assert 1 / lower_bound(topology, ALLREDUCE).value == Fraction(alone)
    bound = in_network_bound(topology, ALLREDUCE)
    assert (None if bound is None else 1 / bound.value) == (None if in_network is None else Fraction(in_network))
    if bound is not None:
        assert check_certificate(topology, ALLREDUCE, bound.to_json(topology)) == bound.value


@pytest.mark.parametrize(("sums", "rate"), [("100", "300"), ("450", "450"), ("1", "1803/7")])
def test_adding_at_a_limited_rate(sums, rate):
    """s + (c - s) N / (2 (N - 1)), for N = 8 at c = 450."""
    topology = parse_topology(f"able(switch:8,450;reduce-bandwidth={sums})")
    bound = in_network_bound(topology, ALLREDUCE)
    expected = min(Fraction(450), Fraction(sums) + (450 - Fraction(sums)) * Fraction(8, 14))
    assert 1 / bound.value == expected == Fraction(rate)
    check_certificate(topology, ALLREDUCE, bound.to_json(topology))


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        *(("h100:2", name) for name in ("allgather", "reduce", "alltoall")),
        *((f"able(switch:8,450;{ability}=no)", "allreduce") for ability in ("multicast", "reduce")),
    ],
)
def test_cuts_bound_the_other_collectives_and_a_single_ability_gains_nothing(spec, name):
    topology, collective = parse_topology(spec), parse_collective(name)
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
