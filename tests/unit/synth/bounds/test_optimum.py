"""Optima against all cuts of random fabrics, and against published values."""

from fractions import Fraction

import pytest
from hypothesis import given

from chorale.synth.bounds import optimum as fewest_trees_module
from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, integral_trees, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose
from tests.properties import random_cases
from tests.random_fabrics import random_fabric
from tests.reference.all_cuts import AllCuts, previous_breakpoint
from tests.strategies import MIXED, strongly_connected_topologies

BROADCAST = Collective(CollectiveName.BROADCAST, 1)
REDUCE = Collective(CollectiveName.REDUCE, 1)


def _cuts(topology: Topology, collective: Collective) -> AllCuts:
    oriented = transpose(topology) if collective in (REDUCE_SCATTER, REDUCE) else topology
    weights = [1] * topology.compute_count
    if collective.is_rooted:
        weights = [int(rank == collective.root) for rank in range(topology.compute_count)]
    return AllCuts(oriented, tuple(weights))


def _proves(cuts: AllCuts, found: Optimum, trees_per_bandwidth: Fraction) -> bool:
    """Whether the cut of `found` cannot carry its k at `trees_per_bandwidth`."""
    cut = cuts.masks.tolist().index(sum(1 << node for node in found.cut))
    amounts = [int(trees_per_bandwidth * link.bandwidth) for link in cuts.topology.links]
    return bool(cuts.entering(amounts)[cut] < found.k * cuts.outside[cut])


FIRST_SEEDS = [pytest.param(first, marks=() if first < 200 else (pytest.mark.slow,)) for first in range(0, 600, 50)]


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_optima_equal_the_best_of_all_cuts(first: int) -> None:
    for seed in range(first, first + 50):
        topology = random_fabric(seed)
        for collective in (ALLGATHER, REDUCE_SCATTER, BROADCAST, REDUCE):
            cuts = _cuts(topology, collective)
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
        ("scaled(complete:2;link=0>1;factor=3/2)", 1),
        ("scaled(mesh:3;link=1-2;factor=15/8)", 1),
        ("scaled(uniring:1,3;link=0>1;factor=1000000000;link=1>2;factor=999999999;link=2>0;factor=999999998)", 1),
        ("a100:2", 13),
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
            cuts = _cuts(topology, collective)
            for k in (1, 2, 3):
                found = fixed_k_optimum(topology, collective, k)
                assert cuts.carries(found.trees_per_bandwidth, k), (seed, collective, k)
                previous = previous_breakpoint(topology, found.trees_per_bandwidth)
                assert not cuts.carries(previous, k), (seed, collective, k)
                assert _proves(cuts, found, previous)


@random_cases(40)
@given(strongly_connected_topologies(2, 5, bandwidths=MIXED, switches=2))
def test_one_way_networks_that_are_not_eulerian_have_bounds_too(topology: Topology) -> None:
    cuts = _cuts(topology, ALLGATHER)
    assert optimum(topology, ALLGATHER).time_per_shard == cuts.optimum()
    fixed = fixed_k_optimum(topology, ALLGATHER, 2)
    assert cuts.carries(fixed.trees_per_bandwidth, 2)
    assert not cuts.carries(previous_breakpoint(topology, fixed.trees_per_bandwidth), 2)


@pytest.mark.parametrize(
    ("spec", "algbw", "k"),
    [
        ("a100:2", Fraction(1040, 3), 13),
        ("a100:4", Fraction(800, 3), 1),
        ("mi250:1", Fraction(2400, 7), 3),
        ("mi250:2", Fraction(5312, 15), 83),
        ("mi250half:1", Fraction(200), 1),
        ("mi250half:2", Fraction(208), 13),
        ("torus:6x6", Fraction(144, 35), 4),
    ],
)
def test_published_optima(spec: str, algbw: Fraction, k: int) -> None:
    found = optimum(parse_topology(spec), ALLGATHER)
    assert (1 / found.time_per_byte, found.k) == (algbw, k)


@pytest.mark.parametrize(
    ("spec", "k", "algbw", "trees_per_bandwidth"),
    [
        ("a100:2", 1, Fraction(2400, 7), Fraction(7, 150)),
        ("mi250:2", 1, Fraction(320), Fraction(1, 10)),
        ("mi250:2", 2, Fraction(1024, 3), Fraction(3, 16)),
        ("a100:4", 1, Fraction(800, 3), Fraction(3, 25)),
    ],
)
def test_published_optima_of_fixed_k(spec: str, k: int, algbw: Fraction, trees_per_bandwidth: Fraction) -> None:
    found = fixed_k_optimum(parse_topology(spec), ALLGATHER, k)
    assert (1 / found.time_per_byte, found.trees_per_bandwidth) == (algbw, trees_per_bandwidth)


def test_the_smallest_number_of_trees_is_whole_on_every_link() -> None:
    bandwidths = parse_topology("a100:2").links.bandwidths
    assert bandwidths == (25, 300)
    assert integral_trees(parse_topology("a100:2"), Fraction(3, 65)) == (Fraction(3, 5), 13)
    assert integral_trees(random_fabric(3), Fraction(1)) == (Fraction(12), 12)


def test_amounts_beyond_64_bits_are_refused() -> None:
    widths = (Fraction(2**52 - 1), Fraction(1, 2), Fraction(2**30))
    ring = [Link(node, (node + 1) % 3, width) for node, width in enumerate(widths)]
    topology = Topology("wide", ("0", "1", "2"), 3, Links.build(ring))
    assert optimum(topology, ALLGATHER).time_per_shard == 4
    with pytest.raises(InvalidInput, match=r"integers below 2\^60"):
        fixed_k_optimum(topology, ALLGATHER, 2**40)


def test_a_rank_that_nothing_reaches_is_named() -> None:
    topology = Topology("split", ("0", "1", "2"), 3, Links.build([Link(0, 1), Link(1, 0), Link(2, 0)]))
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
