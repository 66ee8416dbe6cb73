"""Schedules turned around in time, put one after the other, cut and renamed."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName, parse_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.schedule import Schedule, concatenate, pipeline_split, renamed_schedule, reverse_allgather
from chorale.synth.schedule.traffic import deficiencies, traffic_of
from chorale.synth.simulation.simulate import NetworkModel, as_fidelity, simulate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Links, Topology, transpose_with_links
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import inspect, verify
from tests.forest_networks import trees_on
from tests.random_fabrics import random_fabric

SPECS = ("mi250:2", "fattree:4")


def turned(topology: Topology, collective: Collective = ALLGATHER) -> Schedule:
    """Return the reduce_scatter (of a broadcast, the reduce) that is `collective` on the transpose, backwards."""
    transposed, original_link = transpose_with_links(topology)
    return reverse_allgather(trees_on(transposed, collective), topology, original_link)


def allreduce_on(topology: Topology) -> Schedule:
    return concatenate(turned(topology), trees_on(topology))


def test_sums_gather_along_the_trees_of_the_transpose() -> None:
    for seed in range(20):
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


@pytest.mark.parametrize("barriers", [(0,), (2, 1)])
def test_barriers_that_part_nothing_are_named(barriers: tuple[int, ...]) -> None:
    found, _ = inspect(replace(allreduce_on(parse_topology("ring:4")), barriers=barriers))
    assert [violation.rule for violation in found] == ["barriers"]


def test_a_stepped_schedule_has_no_barriers() -> None:
    stepped = synthesize("bfb", parse_topology("ring:4"), ALLREDUCE, None, SerialExecutor()).schedule
    assert stepped.barriers == ()
    with pytest.raises(CheckFailed, match="do not divide the 4 steps of a pipelined schedule"):
        verify(replace(stepped, barriers=(2,)))


def test_streams_are_simulated_one_after_the_other() -> None:
    topology, network = parse_topology("ring:4"), NetworkModel.of(alpha_us=1, link_gbps=100)
    halves = turned(topology), trees_on(topology)
    for fidelity in ("step", "flow"):
        times = [
            simulate(traffic_of(one), network, [2**10, 2**20], as_fidelity(fidelity))
            for one in (concatenate(*halves), *halves)
        ]
        assert times[0] == pytest.approx([first + second for first, second in zip(*times[1:], strict=True)])


def test_streams_count_as_a_step_each() -> None:
    topology = parse_topology("ring:4")
    whole = deficiencies(traffic_of(allreduce_on(topology)))
    half = deficiencies(traffic_of(trees_on(topology)))
    assert whole.bandwidth * whole.congestion == half.bandwidth * half.congestion


def made(method: str, spec: str, collective: Collective = ALLGATHER) -> VerifiedSchedule:
    return synthesize(method, parse_topology(spec), collective, None, SerialExecutor())


@pytest.mark.parametrize(("method", "spec"), [("forest", "a100:2"), ("bfb", "torus:3x3")])
def test_parts_change_no_cost(method: str, spec: str) -> None:
    whole = made(method, spec, ALLREDUCE)
    parts = verify(pipeline_split(whole.schedule, 3))
    assert parts.cost.time_per_byte == whole.cost.time_per_byte
    assert parts.cost.steps == whole.cost.steps
    assert parts.schedule.chunks_per_shard == 3 * whole.schedule.chunks_per_shard
    assert len(parts.schedule.transfers) == 3 * len(whole.schedule.transfers)
    assert parts.schedule.parameters["depth"] == 3
    assert pipeline_split(whole.schedule, 1).id == whole.schedule.id


@pytest.mark.parametrize("parts", [0, 5000])
def test_numbers_of_parts_have_limits(parts: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 1024 parts"):
        pipeline_split(made("ring", "ring:4").schedule, parts)


@pytest.mark.parametrize(
    ("method", "spec", "collective"),
    [("bfb", "torus:3x3", "allreduce"), ("forest", "a100:2", "allreduce"), ("forest", "mi250half:2", "broadcast"),
     ("double-binary-tree", "ring:6", "allreduce")],
)  # fmt: skip
def test_costs_and_results_stay(method, spec, collective):
    network = parse_topology(spec)
    schedule = synthesize(method, network, parse_collective(collective, 1), None, SerialExecutor()).schedule
    rng, ranks = np.random.default_rng(3), network.compute_count
    new_node = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(network.switch_count)])
    links = [link._replace(src=int(new_node[link.src]), dst=int(new_node[link.dst])) for link in network.links]
    other = Topology("other", network.node_ids, ranks, Links.build(links), network.bandwidth_unit)
    moved = renamed_schedule(schedule, new_node, other)
    assert verify(moved).cost == verify(schedule).cost
    assert moved.id != schedule.id
    back = renamed_schedule(moved, np.argsort(new_node), network)
    assert back.id == schedule.id
