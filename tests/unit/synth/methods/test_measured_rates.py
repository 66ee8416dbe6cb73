"""Networks whose bandwidths were measured get few trees, close to the exact bound, and nothing is too large."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_ranks, lower_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.forest.forest import uneven_forest, with_shards
from chorale.synth.methods.method import DEFAULT_GAP
from chorale.synth.schedule.transforms import concatenate
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import SwitchAbility, Topology
from chorale.synth.verify.verify import verify
from tests.synthesis import synthesized

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
    verified = synthesized("forest", topology, collective)
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


@pytest.mark.parametrize("first", [0, 30])
def test_few_trees_are_within_half_a_percent_of_the_exact_bound(first: int) -> None:
    for seed in range(first, first + 30):
        check_all(seed)


@pytest.mark.parametrize("seed", [145, 169])
def test_a_switch_that_sends_more_than_it_receives_sends_less(seed: int) -> None:
    """Trees as fast as the cuts do not exist: before, there was no schedule at all."""
    check_all(seed)
    topology = measured(seed)
    for name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        sizes = [1 + rank % 3 for rank in range(topology.compute_count)]
        assert verify(uneven_forest(topology, with_shards(topology, name, sizes)))


SWITCHED = {
    ("a", "s"): "10.31", ("b", "s"): "2.2", ("c", "s"): "2.1", ("d", "s"): "1.7", ("s", "a"): "9.9", ("s", "b"): "11.3",
    ("s", "c"): "10.1", ("s", "d"): "9.7", ("a", "b"): "3.31", ("b", "c"): "4.31", ("c", "d"): "1.31",
}  # fmt: skip


def test_what_a_switch_cannot_copy_is_part_of_the_bound() -> None:
    """By cuts alone the broadcast was 30 % above its bound; weights of cuts prove what trees reach."""
    ends = [Link("abcds".index(src), "abcds".index(dst), Fraction(rate)) for (src, dst), rate in SWITCHED.items()]
    topology = Topology("switched", tuple("abcds"), 4, Links.build(ends), "GB/s")
    assert check(topology, ROOTED[0]) <= DEFAULT_GAP
    bound = bound_of_ranks(topology, ROOTED[0])
    assert (bound.kind, bound.value) == ("cuts-into", Fraction(75, 631))
    document = bound.to_json(topology)
    with pytest.raises(CheckFailed, match="weights of nodes that are not switches"):
        check_certificate(topology, ROOTED[0], {**document, "gather_switches": {"a": "1"}})
    with pytest.raises(CheckFailed, match="claimed"):
        check_certificate(topology, ROOTED[0], {**document, "gather_switches": {}})
    able = replace(topology, abilities={4: SwitchAbility(multicast=True, reduce=False)})
    assert lower_bound(able, ROOTED[0]).kind == "into"
    with pytest.raises(CheckFailed, match="s, which multicasts"):
        check_certificate(able, ROOTED[0], document)


def test_the_gap_is_what_is_asked_for() -> None:
    topology = measured(6, ranks=5, decimals=8)
    times = {}
    for gap in (Fraction(0), Fraction(1, 10_000), Fraction(1, 200), Fraction(1, 10)):
        verified = synthesized("forest", topology, ALLGATHER, gap=gap)
        times[verified.schedule.trees_per_root] = verified.cost.time_per_byte
        assert verified.cost.time_per_byte / times[max(times)] - 1 <= gap
    assert list(times) == sorted(times, reverse=True)
    assert max(times) > 10**6


def test_halves_whose_chunks_have_no_common_measure_are_refused() -> None:
    """Their product leaves 32 bits; before, it went around and the schedule seemed to take no time."""
    topology = measured(2, ranks=3, decimals=8)
    halves = [
        synthesized("forest", topology, collective, k=k).schedule.expand()
        for collective, k in ((REDUCE_SCATTER, 99_991), (ALLGATHER, 99_989))
    ]
    with pytest.raises(InvalidInput, match="at most 2147483647 chunks per shard"):
        concatenate(*halves)
