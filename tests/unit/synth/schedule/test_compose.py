"""Schedules turned around in time and put one after the other: streams of trees stay streams."""

from dataclasses import replace

import pytest

from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.codec import from_json_text, from_parquet, to_json_text, to_parquet
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import deficiencies, traffic_of
from chorale.synth.schedule.transforms import concatenate, reverse_allgather
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.simulation.simulate import as_fidelity, simulate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.verify.verify import inspect, verify
from tests.unit.synth.methods.forest.split.fabrics import random_fabric
from tests.unit.synth.methods.forest.trees_on import trees_on

SPECS = ("a100:2", "mi250:2", "fattree:4", "ring:4")


def turned(topology: Topology, collective: Collective = ALLGATHER) -> Schedule:
    """Return the reduce_scatter (of a broadcast, the reduce) that is `collective` on the transpose, backwards."""
    transposed, original_link = transpose_with_links(topology)
    return reverse_allgather(trees_on(transposed, collective), topology, original_link)


def allreduce_on(topology: Topology) -> Schedule:
    return concatenate(turned(topology), trees_on(topology))


def test_sums_gather_along_the_trees_of_the_transpose() -> None:
    for seed in range(60):
        topology = random_fabric(seed)
        scatter = turned(topology)
        assert scatter.kind == "pipelined"
        assert verify(scatter).cost.time_per_byte == optimum(topology, REDUCE_SCATTER).time_per_byte


@pytest.mark.parametrize("spec", SPECS)
def test_a_reduce_is_a_broadcast_backwards(spec: str) -> None:
    topology, reduce = parse_topology(spec), Collective(CollectiveName.REDUCE, 2)
    verified = verify(turned(topology, Collective(CollectiveName.BROADCAST, 2)))
    assert verified.schedule.collective == reduce
    assert verified.cost.time_per_byte == optimum(topology, reduce).time_per_byte


def test_an_allreduce_of_trees_takes_as_long_as_its_halves_together() -> None:
    for seed in range(60):
        topology = random_fabric(seed)
        halves = turned(topology), trees_on(topology)
        whole = verify(concatenate(*halves))
        assert whole.schedule.barriers == (halves[0].steps,)
        numbers = {half.trees_per_root for half in halves}  # the fewest may differ for the other direction of links
        assert whole.schedule.trees_per_root == (numbers.pop() if len(numbers) == 1 else None)
        assert whole.cost.time_per_byte == sum(verify(half).cost.time_per_byte for half in halves)
        assert whole.cost.steps == sum(half.steps for half in halves)


def test_steps_before_a_stream_keep_their_own_time() -> None:
    topology = parse_topology("ring:4")
    scatter = synthesize("bfb", topology, REDUCE_SCATTER, None, SerialExecutor())
    gather = verify(trees_on(topology))
    whole = verify(concatenate(scatter.schedule, gather.schedule))
    assert whole.schedule.barriers == (1, 2)
    assert whole.cost.time_per_byte == scatter.cost.time_per_byte + gather.cost.time_per_byte


def test_an_allreduce_backwards_has_its_barriers_mirrored() -> None:
    transposed, original_link = transpose_with_links(parse_topology("ring:4"))
    gather = trees_on(transposed)
    twice = replace(gather, steps=5, barriers=(gather.steps,))
    assert reverse_allgather(twice, parse_topology("ring:4"), original_link).barriers == (5 - gather.steps,)


@pytest.mark.parametrize("barriers", [(0,), (99,), (2, 1)])
def test_barriers_that_part_nothing_are_named(barriers: tuple[int, ...]) -> None:
    found, _ = inspect(replace(allreduce_on(parse_topology("ring:4")), barriers=barriers))
    assert [violation.rule for violation in found] == ["barriers"]


def test_a_stepped_schedule_has_no_barriers() -> None:
    stepped = synthesize("bfb", parse_topology("ring:4"), ALLREDUCE, None, SerialExecutor()).schedule
    assert stepped.barriers == ()
    with pytest.raises(CheckFailed, match="do not part the 4 steps of streams"):
        verify(replace(stepped, barriers=(2,)))


def test_files_keep_barriers() -> None:
    schedule = allreduce_on(parse_topology("a100:2"))
    for again in (
        from_parquet(to_parquet(schedule), parse_topology),
        from_json_text(to_json_text(schedule).encode(), parse_topology),
    ):
        assert (again.id, again.barriers) == (schedule.id, schedule.barriers)
    assert replace(schedule, barriers=()).id != schedule.id


@pytest.mark.parametrize("fidelity", ["step", "flow"])
def test_streams_are_simulated_one_after_the_other(fidelity: str) -> None:
    topology, network = parse_topology("ring:4"), NetworkModel.of(alpha_us=1, link_gbps=100)
    halves = turned(topology), trees_on(topology)
    sizes = [2**10, 2**20]
    whole, *parts = (
        simulate(traffic_of(one), network, sizes, as_fidelity(fidelity)) for one in (concatenate(*halves), *halves)
    )
    assert whole == pytest.approx([sum(times) for times in zip(*parts, strict=True)])


def test_streams_count_as_a_step_each() -> None:
    topology = parse_topology("ring:4")
    whole = deficiencies(traffic_of(allreduce_on(topology)))
    half = deficiencies(traffic_of(trees_on(topology)))
    assert whole.bandwidth * whole.congestion == half.bandwidth * half.congestion
