"""Schedules of trees: as fast as their bound, for given k, sizes and measured rates, from older trees, short."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_ranks, lower_bound
from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import METHODS
from chorale.synth.methods.forest.forest import MAX_UNITS, reused_trees, shard_units, uneven_forest, with_shards
from chorale.synth.methods.forest.switch_removal import remove_switches
from chorale.synth.methods.forest.symmetric import symmetric_forest
from chorale.synth.methods.method import DEFAULT_GAP, Options
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.schedule.schedule import Schedule, concatenate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, SwitchAbility, Topology, transpose
from chorale.synth.verify.verify import verify
from tests.forest_networks import forest_network, trees_on
from tests.links import network
from tests.properties import random_cases
from tests.random_fabrics import random_fabric, with_parallel_links
from tests.reference.cuts import AllCuts
from tests.reference.packed_trees import faults_of
from tests.strategies import strongly_connected_topologies

forest = partial(synthesized, "forest")
ROOTED = (Collective(CollectiveName.BROADCAST, 0), Collective(CollectiveName.REDUCE, 1))


def measured(seed: int, ranks: int | None = None, decimals: int | None = None) -> Topology:
    """Return a strongly connected network of rates with 2 to 9 decimals; every third has a switch, or is one way."""
    draw = random.Random(seed)
    ranks, decimals = ranks or draw.randint(3, 8), decimals or draw.randint(2, 9)
    switches, spread = seed % 3 == 1, draw.choice([0.02, 0.2, 0.8])
    cycle = draw.sample(range(ranks), ranks)
    pairs = {(cycle[index - 1], cycle[index]) for index in range(ranks)}
    pairs |= {tuple(draw.sample(range(ranks), 2)) for _ in range(draw.randint(0, 2 * ranks))}
    pairs |= {(rank, ranks) for rank in range(ranks)} if switches else set()

    def rate() -> Fraction:
        return Fraction(str(round(10 * draw.uniform(1 - spread, 1 + spread), decimals)))

    links = []
    for src, dst in sorted(pairs):
        there = rate()
        links.append(Link(src, dst, there))
        if seed % 3 != 2:
            links.append(Link(dst, src, there if draw.random() < 0.7 else rate()))
    names = tuple(map(str, range(ranks + switches)))
    return Topology(f"measured {seed}", names, ranks, Links.build(links), "GB/s")


def check(topology: Topology, collective: Collective) -> Fraction:
    """Return by how much the schedule of trees is above the best certified bound; the schedule is verified."""
    verified = forest(topology, collective)
    assert verified.schedule.chunks_per_shard <= 2**14
    time, ranks = verified.cost.time_per_byte, topology.compute_count
    bound = bound_of_ranks(topology, collective, time)
    assert check_certificate(topology, collective, bound.to_json(topology)) == bound.value
    if collective != ALLREDUCE:  # few trees differ, however many of each there are
        assert verified.schedule.transfer_count <= 96 * (ranks - 1) * (1 if collective.is_rooted else ranks)
    return time / bound.value - 1


def check_all(seed: int, ranks: int | None = None) -> None:
    """Also with switches that send more than they receive and cannot copy, which cuts alone do not see."""
    topology = measured(seed, ranks)
    for collective in (ALLGATHER, REDUCE_SCATTER, *ROOTED):
        assert 0 <= check(topology, collective) <= DEFAULT_GAP, (seed, collective)
    if seed % 10 == 0:
        check(topology, ALLREDUCE)  # two phases and pairs of trees may both be above what is proven


@pytest.mark.parametrize("seed", range(60))
def test_few_trees_are_within_half_a_percent_of_the_exact_bound(seed: int) -> None:
    check_all(seed)


@pytest.mark.parametrize("seed", [145, 169])
def test_a_switch_that_sends_more_than_it_receives_sends_less(seed: int) -> None:
    """Trees as fast as the cuts do not exist: before, there was no schedule at all."""
    check_all(seed)
    topology = measured(seed)
    for name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        sizes = [1 + rank % 3 for rank in range(topology.compute_count)]
        assert verify(uneven_forest(topology, with_shards(topology, name, sizes)))


def test_what_a_switch_cannot_copy_is_part_of_the_bound() -> None:
    """By cuts alone the broadcast was 30 % above its bound; weights of cuts prove what trees reach."""
    up = [(0, 4, "10.31"), (1, 4, "2.2"), (2, 4, "2.1"), (3, 4, "1.7")]
    down = [(4, 0, "9.9"), (4, 1, "11.3"), (4, 2, "10.1"), (4, 3, "9.7")]
    topology = network(4, 1, [*up, *down, (0, 1, "3.31"), (1, 2, "4.31"), (2, 3, "1.31")])
    assert check(topology, ROOTED[0]) <= DEFAULT_GAP
    bound = bound_of_ranks(topology, ROOTED[0])
    assert (bound.kind, bound.value) == ("cuts-into", Fraction(75, 631))
    document = bound.to_json(topology)
    with pytest.raises(CheckFailed, match="weights of nodes that are not switches"):
        check_certificate(topology, ROOTED[0], {**document, "gather_switches": {"0": "1"}})
    with pytest.raises(CheckFailed, match="claimed"):
        check_certificate(topology, ROOTED[0], {**document, "gather_switches": {}})
    able = replace(topology, abilities={4: SwitchAbility(multicast=True, reduce=False)})
    assert lower_bound(able, ROOTED[0]).kind == "into"
    with pytest.raises(CheckFailed, match="4, which multicasts"):
        check_certificate(able, ROOTED[0], document)


def test_the_gap_is_what_is_asked_for() -> None:
    topology = measured(6, ranks=5, decimals=8)
    times = {}
    for gap in (Fraction(0), Fraction(1, 10_000), Fraction(1, 200), Fraction(1, 10)):
        verified = forest(topology, ALLGATHER, gap=gap)
        times[verified.schedule.trees_per_root] = verified.cost.time_per_byte
        assert verified.cost.time_per_byte / times[max(times)] - 1 <= gap
    assert list(times) == sorted(times, reverse=True)
    assert max(times) > 10**6


def test_halves_whose_chunks_have_no_common_measure_are_refused() -> None:
    """Their product leaves 32 bits; before, it went around and the schedule seemed to take no time."""
    topology = measured(2, ranks=3, decimals=8)
    halves = [
        forest(topology, collective, k=k).schedule.expand()
        for collective, k in ((REDUCE_SCATTER, 99_991), (ALLGATHER, 99_989))
    ]
    with pytest.raises(InvalidInput, match="at most 2147483647 chunks per shard"):
        concatenate(*halves)


@pytest.mark.parametrize(
    ("spec", "k", "algbw"),
    [
        ("a100:2", None, Fraction(1040, 3)),
        ("mi250:1", None, Fraction(2400, 7)),
        ("mi250:2", None, Fraction(5312, 15)),
        ("mi250:2", 1, Fraction(320)),
    ],
)
def test_published_bandwidths(spec, k, algbw):
    assert 1 / forest(spec, k=k).cost.time_per_byte == algbw


@random_cases(60)
@example(32465, "allgather")  # its route table is a part of its links
@given(st.integers(0, 10**6), st.sampled_from(["allgather", "reduce_scatter", "broadcast", "reduce"]))
def test_any_fabric_reaches_its_bound(seed, name):
    topology = random_fabric(seed)
    if seed % 3 == 0:
        topology = with_parallel_links(topology, seed)
    rooted = name in ("broadcast", "reduce")
    collective = Collective(CollectiveName(name), seed % topology.compute_count if rooted else None)
    verified = forest(topology, collective, gap=0)
    bound = lower_bound(topology, collective)
    check_certificate(topology, collective, bound.to_json(topology))
    assert verified.cost.time_per_byte == bound.value


@random_cases(40)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_any_fabric_reaches_its_optimum_for_a_given_k(seed, k):
    topology = random_fabric(seed)
    best = fixed_k_optimum(topology, ALLGATHER, k)
    if not best.is_reached_by_trees(topology):
        return
    verified = forest(topology, k=k)
    assert verified.schedule.trees_per_root == k
    assert verified.cost.time_per_byte <= best.time_per_byte


def test_allreduce_takes_both_halves():
    both, half = forest("a100:2", ALLREDUCE), forest("a100:2", ALLGATHER)
    assert both.cost.time_per_byte == 2 * half.cost.time_per_byte
    assert forest("a100:2", REDUCE_SCATTER).cost == half.cost


def test_blink_goes_through_one_root():
    through_root = synthesized("blink", "a100:2", ALLREDUCE)
    assert through_root.cost.time_per_byte > forest("a100:2", ALLREDUCE).cost.time_per_byte
    with pytest.raises(InvalidInput, match="blink makes broadcast, reduce or allreduce"):
        synthesized("blink", "a100:2")
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        forest("a100:2", k=0)


def test_parallel_links_of_unequal_whole_trees_are_filled_one_by_one() -> None:
    topology = network(2, 0, [(0, 1, 1), (0, 1, 2), (1, 0, 3)])
    schedule = trees_on(topology, ALLGATHER, fixed_k_optimum(topology, ALLGATHER, 3))
    assert verify(schedule).cost.time_per_byte == Fraction(1, 6)


@given(strongly_connected_topologies(2, 5, switches=1), st.data())
@random_cases(12)
def test_schedules_take_what_the_narrowest_cut_needs(topology, data):
    ranks = topology.compute_count
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks).filter(any))
    assume(sum(size > 0 for size in sizes) > 1)
    for name, outward in ((CollectiveName.ALLGATHER, False), (CollectiveName.REDUCE_SCATTER, True)):
        collective = with_shards(topology, name, sizes)
        best = optimum(topology, collective)
        cuts = AllCuts(transpose(topology) if outward else topology, tuple(sizes))
        assert best.bound.value == cuts.optimum() / sum(sizes)
        assert check_certificate(topology, collective, best.bound.to_json(topology)) == best.bound.value
        time = verify(uneven_forest(topology, collective)).cost.time_per_byte
        assert time >= best.bound.value
        assert time == best.bound.value or (topology.switch_count and not topology.is_eulerian)  # it cannot copy


def test_units_of_shards():
    assert shard_units([10**9 + 7, 5, 0]).counts == (MAX_UNITS, 1, 0)
    assert shard_units([4096, 1]).unit == 1


def test_what_cannot_be_is_refused():
    ring = parse_topology("ring:4")
    with pytest.raises(InvalidInput, match="only allgather and reduce_scatter take sizes of shards, got broadcast"):
        with_shards(ring, CollectiveName.BROADCAST, [1] * 4)
    with pytest.raises(InvalidInput, match="sizes of shards must be 4, one per rank"):
        with_shards(ring, CollectiveName.ALLGATHER, [1] * 3)
    collective = with_shards(ring, CollectiveName.ALLGATHER, [3, 0, 1, 2])
    best = optimum(ring, collective)
    forged = {**best.bound.to_json(ring), "time_per_byte": str(best.bound.value * 2)}
    with pytest.raises(CheckFailed):
        check_certificate(ring, collective, forged)


def trees_kept(old: Schedule, topology: Topology, k: int | None = None):
    """Return the logical network of `topology` and the old trees that fit into it."""
    best = optimum(topology, ALLGATHER) if k is None else fixed_k_optimum(topology, ALLGATHER, k)
    supply = np.full(topology.compute_count, best.k, dtype=np.int64)
    network = remove_switches(forest_network(topology, best.trees_per_bandwidth, supply)).network
    return network, reused_trees(old, topology, network)


@random_cases(60)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
def test_kept_trees_span_and_fit(seed, old_k, k):
    topology = random_fabric(2 * seed + 1)
    network, trees = trees_kept(forest(topology, k=old_k).schedule, topology, k)
    rooted = np.bincount(trees.root, trees.weight, network.nodes).astype(np.int64)
    assert faults_of(replace(network, supply=rooted), trees) == []
    assert rooted.max() <= k


def test_an_unchanged_fabric_keeps_all_trees():
    old = forest("mi250:2").schedule
    _, trees = trees_kept(old, old.topology)
    assert trees.weight.sum() == 32 * 83
    assert forest("mi250:2", warm_start=old).schedule.transfers.columns[0].shape == old.transfers.columns[0].shape


@random_cases(30)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_warm_start_costs_no_time(seed, other):
    """Whatever it starts from, a schedule for the same k is as fast as one from nothing."""
    topology, old = random_fabric(2 * seed + 1), random_fabric(2 * other + 1)
    warm = forest(topology, k=2, warm_start=forest(old, k=2).schedule)
    assert warm.cost.time_per_byte <= fixed_k_optimum(topology, ALLGATHER, 2).time_per_byte


@pytest.mark.parametrize(
    ("old", "new", "collective"),
    [
        ("a100:2", "without(a100:2;node=3)", ALLGATHER),  # 13 trees per root before, 7 afterwards
        ("a100:4", "without(a100:4;node=3)", REDUCE_SCATTER),  # 1 before, 7 afterwards
    ],
)
def test_a_warm_start_is_as_fast_as_a_schedule_from_nothing(old, new, collective):
    old_schedule, topology = forest(old, collective).schedule, parse_topology(new)
    cold = forest(topology, collective)
    warm = forest(topology, collective, warm_start=old_schedule)
    both = forest(topology, ALLREDUCE, warm_start=old_schedule)
    assert warm.cost.time_per_byte == cold.cost.time_per_byte
    assert both.cost.time_per_byte == 2 * cold.cost.time_per_byte


def test_other_schedules_are_refused():
    rule = "a warm start needs trees for an allgather, a reduce_scatter or an allreduce of two phases, not"
    for old in (synthesized("bfb", "ring:4").schedule, forest("ring:4", ROOTED[0]).schedule):
        with pytest.raises(InvalidInput, match=rule):
            forest("ring:4", warm_start=old)
    with pytest.raises(InvalidInput, match="a pipelined allreduce of one phase"):  # roots own other parts than shards
        forest("mesh:2x3", ALLREDUCE, warm_start=forest("mesh:2x3", ALLREDUCE).schedule)


PARAMETERS = {"k": None, "objective": "height", "seed": 0}
HEIGHTS = {
    "nvl72:2": 3, "a100:2": 2, "railclos:3,24,100,0": 3, "a100:5": 2, "mi250:4": 11, "mi250half:3": 5, "fattree:6": 1,
    "dragonfly:3,2,1": 4, "switch:6,10": 1, "torus:5x4": 4, "torus:3x3x2": 3, "hypercube:4": 4, "uniring:1,6": 5,
    "twisted-torus:3x8,5": 4, "twisted-torus:2x2x4": 3,
}  # fmt: skip
"""Where trees in symmetric form are found, and how high they are at most."""


def schedule_of(spec, collective=ALLGATHER):
    return symmetric_forest(parse_topology(spec), collective, "forest", PARAMETERS)


@pytest.mark.parametrize("spec", HEIGHTS)
def test_trees_are_optimal_low_and_right_when_written_out(spec):
    schedule = schedule_of(spec)
    verified, replayed = verify(schedule), verify(schedule.expand())
    assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
    assert verified.cost.time_per_byte == optimum(schedule.topology, ALLGATHER).time_per_byte
    assert verified.cost.steps <= HEIGHTS[spec]
    assert verified.link_loads.duplicate_deliveries == 0
    assert schedule.trees_per_root == replayed.schedule.trees_per_root
    expanded = replayed.schedule
    assert expanded.transfer_count == schedule.transfer_count
    paths = {tuple(expanded.routes.path(route)) for route in expanded.transfers.route.tolist()}
    assert len(paths) == len(expanded.routes)


@pytest.mark.parametrize("spec", ["a100:3", "nvl72:2", "mi250:4", "dragonfly:4,2,2", "torus:4x4"])
def test_reductions_run_backwards(spec):
    for collective in (ALLREDUCE, REDUCE_SCATTER):
        schedule = schedule_of(spec, collective)
        verified, replayed = verify(schedule), verify(schedule.expand())
        assert (verified.cost, verified.link_loads) == (replayed.cost, replayed.link_loads)
        assert schedule.kind == schedule.expand().kind == "pipelined"
    assert verified.cost.time_per_byte == lower_bound(schedule.topology, REDUCE_SCATTER).value


def test_latencies_count_as_in_the_written_out_schedule():
    topology = parse_topology("a100:3")
    links = topology.links
    slow = replace(links, latencies_s=(links.latencies_s[0], links.bandwidths[0] / 10**7), latency_class=np.where(
        links.bandwidth_class == 0, 1, 0).astype(np.int32))  # fmt: skip
    schedule = symmetric_forest(replace(topology, links=slow), ALLGATHER, "forest", PARAMETERS)
    verified = verify(schedule)
    assert verified.cost == verify(schedule.expand()).cost
    assert verified.cost.latency_s > 0


def test_none_where_symmetries_do_not_help():
    assert schedule_of("without(a100:3;node=0)") is None  # no symmetry is known
    assert schedule_of("mi250:2") is None  # a GPU, not a box, is the bottleneck, and it has links to other GPUs
    assert schedule_of("genkautz:3,12") is None
    schedule = schedule_of("torus:4x3")
    repeated = replace(schedule, gather=replace(schedule.gather, generators=(0, 1, 1)))
    with pytest.raises(InvalidInput, match="generators"):
        from_parquet(to_parquet(repeated), parse_topology)


@pytest.mark.parametrize("spec", ["torus:32x32", "fattree:14", "nvl72:14"])
def test_large_fabrics_have_the_compact_form_by_themselves(spec):
    topology = parse_topology(spec)
    verified = forest(topology)
    assert verified.schedule.form == "symmetric"
    assert verified.cost.time_per_byte == lower_bound(topology, ALLGATHER).value
    assert verified.schedule.parameters == PARAMETERS


def test_options_ask_for_trees_of_every_root():
    topology = parse_topology("switch:512,10")
    schedule = METHODS["forest"].schedule(topology, ALLGATHER, Options(seed=1), SerialExecutor(), None)
    assert schedule.form == "columns"


@pytest.mark.parametrize("spec", ["mi250:32", "torus:16x32"])
def test_bounds_with_symmetries_are_those_without(spec):
    topology = parse_topology(spec)
    known, unknown = (optimum(network, ALLGATHER) for network in (topology, replace(topology, automorphisms=())))
    assert (known.time_per_byte, known.k, known.is_fewest) == (unknown.time_per_byte, unknown.k, unknown.is_fewest)
