"""Optima and pairs of trees against all cuts of random fabrics and published values; the search for violated cuts."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds import optimum as fewest_trees_module
from chorale.synth.bounds.certificate import check_pair_certificate
from chorale.synth.bounds.lower_bound import lower_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, integral_trees, optimum
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, amounts_on, residual_graph
from chorale.synth.bounds.tree_pairs import tree_pairs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.links import both, network
from tests.properties import random_cases
from tests.random_fabrics import random_fabric
from tests.reference.cuts import AllCuts, Arc, cuts_of, faults_of_split, previous_breakpoint, violated_sink_sides
from tests.strategies import MIXED, strongly_connected_topologies

BROADCAST = Collective(CollectiveName.BROADCAST, 1)
REDUCE = Collective(CollectiveName.REDUCE, 1)


def _proves(cuts: AllCuts, found: Optimum, trees_per_bandwidth: Fraction) -> bool:
    """Whether the cut of `found` cannot carry its k at `trees_per_bandwidth`."""
    cut = cuts.masks.tolist().index(sum(1 << node for node in found.cut))
    amounts = [int(trees_per_bandwidth * link.bandwidth) for link in cuts.topology.links]
    return bool(cuts.entering(amounts)[cut] < found.k * cuts.outside[cut])


FIRST_SEEDS = [pytest.param(first, marks=() if first < 100 else (pytest.mark.slow,)) for first in range(0, 600, 50)]


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_optima_equal_the_best_of_all_cuts(first: int) -> None:
    for seed in range(first, first + 50):
        topology = random_fabric(seed)
        for collective in (ALLGATHER, REDUCE_SCATTER, BROADCAST, REDUCE):
            cuts = cuts_of(topology, collective)
            found = optimum(topology, collective)
            assert found.time_per_shard == cuts.optimum(), (seed, collective)
            assert cuts.carries(found.trees_per_bandwidth, found.k)
            assert found.is_fewest
            fewer = range(max(1, found.k - 12), found.k)
            assert not any(_trees_exist(cuts, found, k) for k in fewer), (seed, collective)
            assert _proves(cuts, found, previous_breakpoint(topology, found.trees_per_bandwidth))


def _trees_exist(cuts: AllCuts, found: Optimum, k: int) -> bool:
    """Whether all cuts carry k trees per shard in the time of `found`, and switches get what they pass on."""
    rate = k * found.time_per_shard
    tried = Optimum(found.shards, rate, k, "into", found.cut)
    return cuts.carries(rate, k) and tried.is_reached_by_trees(cuts.topology)


@pytest.mark.parametrize(
    ("spec", "k"),
    [
        ("scaled(mesh:3;link=1-2;factor=15/8)", 1),
        ("scaled(uniring:1,3;link=0>1;factor=1000000000;link=1>2;factor=999999999;link=2>0;factor=999999998)", 1),
    ],
)
def test_only_tight_cuts_need_whole_trees(spec: str, k: int) -> None:
    found = optimum(parse_topology(spec), ALLGATHER)
    assert (found.k, found.is_fewest) == (k, True)


def test_a_search_for_fewer_trees_that_is_given_up_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewest_trees_module, "MAX_MULTIPLES", 0)
    found = optimum(parse_topology("scaled(mesh:3;link=1-2;factor=15/8)"), ALLGATHER)
    assert not found.is_fewest


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_a_fixed_k_has_the_smallest_rate_that_all_cuts_allow(first: int) -> None:
    for seed in range(first, first + 50):
        topology = random_fabric(seed)
        for collective in (ALLGATHER, REDUCE_SCATTER, BROADCAST, REDUCE):
            cuts = cuts_of(topology, collective)
            for k in (1, 2, 3):
                found = fixed_k_optimum(topology, collective, k)
                assert cuts.carries(found.trees_per_bandwidth, k), (seed, collective, k)
                previous = previous_breakpoint(topology, found.trees_per_bandwidth)
                assert not cuts.carries(previous, k), (seed, collective, k)
                assert _proves(cuts, found, previous)


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


def test_a_rank_that_nothing_reaches_is_named() -> None:
    topology = network(3, 0, [(0, 1, 1), (1, 0, 1), (2, 0, 1)])
    with pytest.raises(InvalidInput, match="no link leads to 2"):
        optimum(topology, ALLGATHER)


@pytest.mark.parametrize(
    ("collective", "k", "message"),
    [
        (ALLGATHER, 0, "at least one tree"),
        (ALLREDUCE, 1, "the optimum of trees is computed for allgather,"),
        (Collective(CollectiveName.BROADCAST, 4), 1, "is not a rank"),
    ],
)
def test_what_has_no_optimum_is_refused(collective: Collective, k: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fixed_k_optimum(parse_topology("ring:4"), collective, k)


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


def test_large_fabrics_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 256 ranks"):
        tree_pairs(parse_topology("ring:257"))


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


def test_a_full_table_leaves_the_last_sink_open() -> None:
    found, settled = _search(3, [(0, 1, 1), (1, 2, 1)], [2, 0, 0], [1, 2], 1)
    assert found == [{1}]
    assert settled == []


def test_amounts_up_to_the_limit_stay_exact() -> None:
    large = LARGEST_AMOUNT // 4
    assert _search(2, [(0, 1, large)], [large, 0], [1], 1)[0] == []
    assert _search(2, [(0, 1, large - 1)], [large, 0], [1], 1)[0] == [{1}]
