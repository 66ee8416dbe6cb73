"""The smallest networks on which claims were false or schedules far behind, each with its value from a reference."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest

from chorale.synth.bounds.optimum import optimum
from chorale.synth.bounds.tree_pairs import tree_pairs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.reference.all_cuts import slowest_cut
from tests.reference.busiest_link import busiest_link
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.reference.pairs_by_all_cuts import best_rate
from tests.reference.step_times import least_broadcast_time

Row = tuple[Any, ...]


def network(ranks: int, switches: int, rows: Iterable[Row]) -> Topology:
    """Return a network of rows of source, destination, bandwidth and, where there is one, latency in seconds."""
    links = [Link(src, dst, Fraction(width), Fraction(*late or (0,))) for src, dst, width, *late in rows]
    names = tuple(map(str, range(ranks + switches)))
    return Topology("edge", names, ranks, Links.build(links), "GB/s")


def both(*rows: Row) -> list[Row]:
    return [row for src, dst, *rest in rows for row in ((src, dst, *rest), (dst, src, *rest))]


LAT2 = network(2, 0, both((0, 1, 1), (0, 1, 1, "1/1000000")))
LAT61 = network(2, 0, both((0, 1, 100), *[(0, 1, 1, "1/1000000000")] * 60))
TRI = network(3, 0, both((0, 1, 1), (1, 2, 1), (0, 2, "1/100000")))
AR6 = network(
    6, 0, [(5, 0, 1), (0, 1, "1/1000"), (1, 2, 1), (2, 3, 1), (3, 4, 1000), (4, 5, "1/1000")]
)  # two links of a cycle are narrow
AR4 = network(3, 0, [(2, 0, "5/11"), (0, 1, "1/3"), (0, 1, "2/7"), (1, 2, "1/2")])
_A5 = [(1, 0, 1), (3, 0, 1), (0, 1, 1), (4, 1, 10), (5, 2, 1), (0, 3, 1), (5, 3, 1), (1, 4, 5000), (1, 4, 1)]
A5 = network(5, 1, [*_A5, (2, 5, 5000), (3, 5, "1854/5")])
TINY = network(2, 0, [(0, 1, "2e-9"), (0, 1, "1e-9"), (1, 0, "3e-9")])
RES = network(2, 1, both((0, 1, 1000000), (0, 2, 1), (2, 1, 1000000)))
A2 = network(2, 0, [(1, 0, 450), (1, 0, 300), (1, 0, 100), (0, 1, 450), (0, 1, 300)] + [(0, 1, 10)] * 4)
K3 = network(3, 0, [(0, 1, 1000000000), (1, 2, 999999999), (2, 0, 999999998)])
KPATH = network(3, 0, both((0, 1, 25), (1, 2, "46.875")))
SWITCH = network(3, 1, [(0, 3, 1), (3, 1, 1), (3, 2, 1), (1, 0, 2), (2, 0, 2)])
LESS = parse_topology("scaled(complete:2;link=0>1;factor=3/2)")


@pytest.mark.parametrize("topology", [LESS, KPATH, K3], ids=["scaled", "kpath", "k3"])
def test_one_tree_per_shard_reaches_the_optimum(topology: Topology) -> None:
    best = optimum(topology, ALLGATHER)
    assert (best.k, best.is_fewest) == (1, True)
    schedule = synthesize_unverified("forest", topology, ALLGATHER, Options(), SerialExecutor())
    assert isinstance(schedule, Schedule)
    assert busiest_link(schedule) == best.time_per_byte == slowest_cut(topology, ALLGATHER)


@pytest.mark.parametrize(
    ("topology", "pairs", "reached"),
    [
        (TRI, Fraction(200000, 200001), Fraction(1)),
        (AR6, Fraction(1500), Fraction(1500)),
        (AR4, Fraction(1848, 727), Fraction(1848, 727)),
    ],
    ids=["tri", "ar6", "ar4"],
)
def test_pairs_of_trees_are_those_of_the_program_and_schedules_reach_them(
    topology: Topology, pairs: Fraction, reached: Fraction
) -> None:
    found, program = tree_pairs(topology), best_rate(topology)
    assert program is not None
    assert found.time_per_byte == found.bound == pairs
    assert float(1 / pairs) == pytest.approx(program, rel=1e-9)
    schedule = synthesize_unverified("forest", topology, ALLREDUCE, Options(gap=Fraction(0)), SerialExecutor())
    assert isinstance(schedule, Schedule)
    assert busiest_link(schedule) == reached


@pytest.mark.parametrize(
    ("topology", "size_bytes", "chunks", "microseconds"),
    [(LAT2, 10**6, None, "250.5"), (LAT61, 2**26, None, "209.7152"), (LAT61, 2**26, 160, "209.7152")],
    ids=["lat2", "lat61", "lat61 in 160 chunks"],
)
def test_latencies_cost_what_any_number_of_chunks_costs(
    topology: Topology, size_bytes: int, chunks: int | None, microseconds: str
) -> None:
    options = Options(size_bytes=size_bytes, chunks=chunks)
    verified = synthesize("bfb", topology, ALLGATHER, options, SerialExecutor())
    time_s, count = verified.cost.time_s, verified.schedule.chunks_per_shard
    assert time_s == least_broadcast_time(topology, count, size_bytes)
    assert time_s <= least_broadcast_time(topology, None, size_bytes) * Fraction(101, 100)
    assert float(time_s) == pytest.approx(float(microseconds) * 1e-6, rel=0.01)


@pytest.mark.parametrize(
    ("topology", "rate"),
    [(A5, "1/6"), (TINY, "3e-9"), (RES, "1000001"), (A2, "790")],
    ids=["a5", "tiny", "res", "a2"],
)
def test_an_all_to_all_reaches_its_rate(topology: Topology, rate: str) -> None:
    best, schedule = Fraction(rate), alltoall_schedule(topology)
    widest = max(link.bandwidth for link in topology.links)
    unit = network(topology.compute_count, topology.switch_count, [(u, v, b / widest) for u, v, b, _ in topology.links])
    assert full_alltoall_rate(unit) * float(widest) == pytest.approx(float(best), rel=1e-6)
    reached = 1 / (busiest_link(schedule) * topology.compute_count)
    assert reached <= best <= Fraction(schedule.certificate["rate_upper"])
    assert reached * Fraction(1001, 1000) >= Fraction(schedule.certificate["rate_upper"])
    assert alltoall_rate(topology).lower <= best


def test_an_allreduce_on_a_line_graph_of_a_mesh_is_scheduled() -> None:
    topology = parse_topology("line(mesh:3x3)")
    schedule = synthesize_unverified("forest", topology, ALLREDUCE, Options(gap=Fraction(0)), SerialExecutor())
    assert isinstance(schedule, Schedule)
    assert busiest_link(schedule) >= tree_pairs(topology).bound


def test_switches_that_pass_on_less_than_a_broadcast_needs_pass_on_what_they_get() -> None:
    """Every cut allows 1, but both ranks take all data out of a switch that gets it once and cannot copy."""
    schedule = synthesize_unverified("forest", SWITCH, parse_collective("broadcast"), Options(), SerialExecutor())
    assert isinstance(schedule, Schedule)
    assert busiest_link(schedule) == 2
    assert schedule.certificate["time_per_byte"] == "1"
