"""Traffic is the rows of a schedule added up; deficiencies, paths of data; schedules turned around, joined and cut."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import log2

import numpy as np
import pytest
from hypothesis import given

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    REDUCE_SCATTER,
    Collective,
    CollectiveName,
    parse_collective,
)
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.grid.algorithms import recursive_doubling
from chorale.synth.methods.rings import bfb_ring, hamiltonian_ring
from chorale.synth.schedule.schedule import Schedule, concatenate, pipeline_split, renamed_schedule, reverse_allgather
from chorale.synth.schedule.traffic import (
    DataPath,
    Deficiencies,
    data_paths,
    deficiencies,
    merged_step,
    traffic_of,
)
from chorale.synth.simulation.simulate import NetworkModel, as_fidelity, simulate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Links, Topology, transpose_with_links
from chorale.synth.verify.verify import inspect, verify
from tests.forest_networks import trees_on
from tests.random_fabrics import random_fabric
from tests.strategies import networks


@given(networks(2, 6))
def test_traffic_adds_up_the_rows(topology):
    for method in ("bfb", "ring"):
        schedule = synthesized(method, topology, ALLREDUCE).schedule
        traffic, expected = traffic_of(schedule), [Counter() for _ in range(schedule.steps)]
        for step, route, _, lo, hi, _ in zip(*(column.tolist() for column in schedule.transfers.columns), strict=True):
            expected[step][route] += hi - lo
        assert [dict(zip(step.route.tolist(), step.amount.tolist(), strict=True)) for step in traffic.steps] == expected


def test_alltoall_counts_shares_of_the_vector_of_a_rank():
    topology = parse_topology("complete:3")
    traffic = traffic_of(alltoall_schedule(topology))
    assert traffic.collective == ALLTOALL
    sent = sum(int(step.amount.sum()) for step in traffic.steps)
    assert Fraction(sent, traffic.denominator) == 3 * Fraction(2, 3)


def test_messages_over_one_route_are_merged_and_a_step_may_be_empty():
    step = merged_step(np.array([5, 2, 5]), np.array([1, 10, 100]))
    assert (step.route.tolist(), step.amount.tolist()) == ([2, 5], [10, 101])
    assert (step.route.dtype, step.amount.dtype) == (np.int32, np.int64)
    empty = merged_step(np.zeros(0, int), np.zeros(0, int))
    traffic = traffic_of(synthesized("ring", "ring:3").schedule)
    assert traffic.link_amounts(empty).tolist() == [0] * 6


def ends(schedule: Schedule, way: DataPath) -> list[tuple[int, int]]:
    links = schedule.topology.links
    sources, targets = schedule.routes.sources(links), schedule.routes.destinations(links)
    return list(zip(sources[way.route].tolist(), targets[way.route].tolist(), strict=True))


@pytest.mark.parametrize(
    ("spec", "collective"), [("a100:2", "allgather"), ("ring:5", "broadcast"), ("torus:3x3", "allgather")]
)
def test_trees_reach_every_rank_once_and_hold_all_data(spec, collective):
    schedule = synthesized("forest", spec, collective).schedule
    ranks = schedule.topology.compute_count
    for rank in (0, ranks - 1):
        ways = data_paths(schedule, rank)
        assert sum(way.share for way in ways) == 1
        root = 0 if collective == "broadcast" else rank
        for way in ways:
            assert not way.reduces
            assert sorted(target for _, target in ends(schedule, way)) == [one for one in range(ranks) if one != root]
            reached = {root}
            for source, target in ends(schedule, way):  # by depth: whoever sends has been reached
                assert source in reached
                reached.add(target)


def test_sums_come_first_and_lead_to_the_rank():
    schedule = synthesized("forest-phases", "ring:4", "allreduce").schedule
    ways = data_paths(schedule, 2)
    assert [way.reduces for way in ways] == sorted((way.reduces for way in ways), reverse=True)
    assert sum(way.share for way in ways if way.reduces) == sum(way.share for way in ways if not way.reduces) == 1
    for way in ways:
        if way.reduces:
            assert sorted(source for source, _ in ends(schedule, way)) == [0, 1, 3]


def test_chunks_over_parallel_links_are_one_tree():
    schedule = synthesized("forest", "mi250:1", "allgather").schedule
    ways = data_paths(schedule, 0)
    drawn = {(way.reduces, tuple(way.step.tolist()), tuple(ends(schedule, way))) for way in ways}
    assert len(drawn) == len(ways) <= schedule.trees_per_root


def test_stepped_data_take_one_way():
    schedule = synthesized("ring", "ring:4", "allreduce").schedule
    ways = data_paths(schedule, 0)
    assert [(way.reduces, way.share) for way in ways] == [(True, Fraction(1)), (False, Fraction(1))]
    assert [way.step.tolist() for way in ways] == [[0, 1, 2], [3, 4, 5]]


def test_data_of_an_alltoall_leave_their_rank():
    schedule = alltoall_schedule(parse_topology("ring:4"))
    (way,) = data_paths(schedule, 1)
    assert not way.reduces
    first = [pair for step, pair in zip(way.step.tolist(), ends(schedule, way), strict=True) if step == 0]
    assert {source for source, _ in first} == {1}
    assert {target for _, target in ends(schedule, way)} == {0, 2, 3}


square = pytest.mark.parametrize(("dimensions", "side"), [(2, 4), (2, 32), (3, 8), (4, 4)])


def on_torus(method, dimensions: int, side: int) -> Deficiencies:
    return deficiencies(method(parse_topology("torus:" + "x".join([str(side)] * dimensions)), ALLREDUCE).traffic())


def nodes_and_steps(dimensions: int, side: int) -> tuple[int, int]:
    return side**dimensions, dimensions * (side.bit_length() - 1)


@pytest.mark.parametrize("side", [4, 32])
def test_ring(side):
    found = on_torus(hamiltonian_ring, 2, side)
    assert found.latency == 2 * (side**2 - 1) / log2(side**2)  # 2 p / log2 p
    assert (found.bandwidth, found.congestion) == (1, 1)


@square
def test_recursive_doubling_latency_optimal(dimensions, side):
    """Printed: 1, D log2 p, 2 D p^(1/D). In the last step of a dimension half goes either way (footnote 1)."""
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(recursive_doubling, dimensions, side)
    assert found.latency == 1
    assert found.bandwidth == Fraction(nodes, nodes - 1) * (dimensions * steps - Fraction(dimensions**2, 2))
    assert found.congestion_sum == dimensions * (side - 1) <= 2 * dimensions * side


@given(networks(2, 7))
def test_product_is_the_verified_time_over_the_optimum(topology):
    for method in ("bfb", "ring"):
        verified = synthesized(method, topology)
        found = deficiencies(traffic_of(verified.schedule))
        ports = min(
            sum(link.bandwidth for link in topology.links if link.src == rank and link.dst != rank)
            for rank in range(topology.compute_count)
        )
        least = Fraction(topology.compute_count - 1, topology.compute_count) / ports
        assert found.bandwidth * found.congestion * least == verified.cost.time_per_byte
        assert found.congestion >= 1
        assert found.steps == verified.cost.steps


def test_bfb_and_bfb_rings_have_no_deficiency_in_bytes():
    bfb = deficiencies(traffic_of(synthesized("bfb", "torus:4x3", ALLREDUCE).schedule))
    rings = deficiencies(bfb_ring(parse_topology("shiftedring:12"), ALLREDUCE).traffic())
    assert (bfb.bandwidth, bfb.congestion) == (rings.bandwidth, rings.congestion) == (1, 1)
    assert bfb.latency < rings.latency


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
    scatter = synthesized("bfb", topology, REDUCE_SCATTER)
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
    stepped = synthesized("bfb", "ring:4", ALLREDUCE).schedule
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


@pytest.mark.parametrize(("method", "spec"), [("forest", "a100:2"), ("bfb", "torus:3x3")])
def test_parts_change_no_cost(method: str, spec: str) -> None:
    whole = synthesized(method, spec, ALLREDUCE)
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
        pipeline_split(synthesized("ring", "ring:4").schedule, parts)


@pytest.mark.parametrize(
    ("method", "spec", "collective"),
    [("bfb", "torus:3x3", "allreduce"), ("forest", "a100:2", "allreduce"), ("forest", "mi250half:2", "broadcast"),
     ("double-binary-tree", "ring:6", "allreduce")],
)  # fmt: skip
def test_costs_and_results_stay(method, spec, collective):
    network = parse_topology(spec)
    schedule = synthesized(method, network, parse_collective(collective, 1)).schedule
    rng, ranks = np.random.default_rng(3), network.compute_count
    new_node = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(network.switch_count)])
    links = [link._replace(src=int(new_node[link.src]), dst=int(new_node[link.dst])) for link in network.links]
    other = Topology("other", network.node_ids, ranks, Links.build(links), network.bandwidth_unit)
    moved = renamed_schedule(schedule, new_node, other)
    assert verify(moved).cost == verify(schedule).cost
    assert moved.id != schedule.id
    back = renamed_schedule(moved, np.argsort(new_node), network)
    assert back.id == schedule.id
