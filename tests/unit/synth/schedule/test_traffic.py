"""Traffic is the schedule's rows added up; deficiencies as the Swing paper's table 2 has them; the paths of data."""

from collections import Counter
from fractions import Fraction
from math import log2

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.grid.algorithms import recursive_doubling, swing
from chorale.synth.methods.rings import bfb_ring, hamiltonian_ring
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import (
    DataPath,
    Deficiencies,
    Traffic,
    data_paths,
    deficiencies,
    merged_step,
    traffic_of,
)
from chorale.synth.topology.spec import parse_topology
from tests.strategies import networks

SERIAL = SerialExecutor()


def added_up(schedule) -> Counter:
    """Return {(step, route): chunks}, row by row."""
    total: Counter = Counter()
    for step, route, lo, hi in zip(*(schedule.transfers.columns[i].tolist() for i in (0, 1, 3, 4)), strict=True):
        total[step, route] += hi - lo
    return total


def messages(traffic: Traffic) -> dict:
    return {
        (number, route): amount
        for number, step in enumerate(traffic.steps)
        for route, amount in zip(step.route.tolist(), step.amount.tolist(), strict=True)
    }


@given(networks(2, 6))
def test_traffic_adds_up_the_rows(topology):
    for method in ("bfb", "ring"):
        schedule = synthesize(method, topology, ALLREDUCE, None, SERIAL).schedule
        traffic = traffic_of(schedule)
        assert messages(traffic) == added_up(schedule)
        assert len(traffic.steps) == schedule.steps


def test_alltoall_counts_shares_of_the_vector_of_a_rank():
    topology = parse_topology("complete:3")
    traffic = traffic_of(alltoall_schedule(topology))
    assert traffic.collective == ALLTOALL
    sent = sum(int(step.amount.sum()) for step in traffic.steps)
    assert Fraction(sent, traffic.denominator) == 3 * Fraction(2, 3)


def test_messages_over_one_route_are_merged():
    step = merged_step(np.array([5, 2, 5]), np.array([1, 10, 100]))
    assert step.route.tolist() == [2, 5]
    assert step.amount.tolist() == [10, 101]
    assert step.route.dtype == np.int32
    assert step.amount.dtype == np.int64


def test_a_step_may_be_empty():
    topology, empty = parse_topology("ring:3"), merged_step(np.zeros(0, int), np.zeros(0, int))
    like = traffic_of(synthesize("ring", topology, ALLGATHER, None, SERIAL).schedule)
    traffic = Traffic(topology, ALLGATHER, "stepped", (empty, *like.steps), like.denominator, like.routes)
    assert traffic.link_amounts(empty).tolist() == [0] * 6


def made_by(method: str, spec: str, collective: str, root: int = 0) -> Schedule:
    wanted = parse_collective(collective, root)
    return synthesize(method, parse_topology(spec), wanted, None, SerialExecutor()).schedule


def ends(schedule: Schedule, way: DataPath) -> list[tuple[int, int]]:
    links = schedule.topology.links
    sources, targets = schedule.routes.sources(links), schedule.routes.destinations(links)
    return list(zip(sources[way.route].tolist(), targets[way.route].tolist(), strict=True))


@pytest.mark.parametrize(
    ("spec", "collective"), [("a100:2", "allgather"), ("ring:5", "broadcast"), ("torus:3x3", "allgather")]
)
def test_trees_reach_every_rank_once_and_hold_all_data(spec, collective):
    schedule = made_by("forest", spec, collective, root=0)
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
    schedule = made_by("forest-phases", "ring:4", "allreduce")
    ways = data_paths(schedule, 2)
    assert [way.reduces for way in ways] == sorted((way.reduces for way in ways), reverse=True)
    assert sum(way.share for way in ways if way.reduces) == sum(way.share for way in ways if not way.reduces) == 1
    for way in ways:
        if way.reduces:
            assert sorted(source for source, _ in ends(schedule, way)) == [0, 1, 3]


def test_chunks_over_parallel_links_are_one_tree():
    schedule = made_by("forest", "mi250:1", "allgather")
    ways = data_paths(schedule, 0)
    drawn = {(way.reduces, tuple(way.step.tolist()), tuple(ends(schedule, way))) for way in ways}
    assert len(drawn) == len(ways) <= schedule.trees_per_root


def test_stepped_data_take_one_way():
    schedule = made_by("ring", "ring:4", "allreduce")
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


SQUARE = [(2, 4), (2, 32), (3, 8), (4, 4)]
square = pytest.mark.parametrize(("dimensions", "side"), SQUARE)


def on_torus(method, dimensions: int, side: int) -> Deficiencies:
    return deficiencies(method(parse_topology("torus:" + "x".join([str(side)] * dimensions)), ALLREDUCE).traffic())


def finite(nodes: int) -> Fraction:
    """Return 2 over the exact optimum 2 (p - 1) / p."""
    return Fraction(nodes, nodes - 1)


def swing_hops(dimensions: int, step: int) -> int:
    """Return delta(sigma(s)) of the paper."""
    return abs(sum((-2) ** i for i in range(step // dimensions + 1)))


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
    assert found.bandwidth == finite(nodes) * (dimensions * steps - Fraction(dimensions**2, 2))
    assert found.congestion_sum == dimensions * (side - 1) <= 2 * dimensions * side


@square
def test_swing_bandwidth_optimal(dimensions, side):
    nodes, steps = nodes_and_steps(dimensions, side)
    found = on_torus(swing, dimensions, side)
    assert (found.latency, found.bandwidth) == (2, 1)
    sizes = [Fraction(1, 2 ** (step + 1)) for step in range(steps)]
    shared = sum(size * swing_hops(dimensions, step) for step, size in enumerate(sizes))
    assert found.congestion == finite(nodes) * shared


@given(networks(2, 7))
def test_product_is_the_verified_time_over_the_optimum(topology):
    for method in ("bfb", "ring"):
        verified = synthesize(method, topology, ALLGATHER, None, SerialExecutor())
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
    bfb = deficiencies(
        traffic_of(synthesize("bfb", parse_topology("torus:4x3"), ALLREDUCE, None, SerialExecutor()).schedule)
    )
    rings = deficiencies(bfb_ring(parse_topology("shiftedring:12"), ALLREDUCE).traffic())
    assert (bfb.bandwidth, bfb.congestion) == (rings.bandwidth, rings.congestion) == (1, 1)
    assert bfb.latency < rings.latency
