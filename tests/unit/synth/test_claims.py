"""Claims of optimality: the smallest networks where one was false, and random ones at the edges, against references."""

from fractions import Fraction

import pytest

from chorale.synth.bounds.optimum import optimum
from chorale.synth.bounds.tree_pairs import tree_pairs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.registry import TopologyPlan
from chorale.synth.topology.spec import parse_topology, plan_topology
from chorale.synth.topology.topology import Topology
from tests.links import both, network
from tests.reference.claims import METHODS, busiest_link, run
from tests.reference.cuts import best_rate, slowest_cut
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.reference.step_times import least_broadcast_time
from tests.synthesis import predicted_s


def forest(topology: Topology, collective: Collective, options: Options | None = None) -> Schedule:
    return synthesize_unverified("forest", topology, collective, options, SerialExecutor())


LAT2 = network(2, 0, both((0, 1, 1), (0, 1, 1, "1/1000000")))
LAT61 = network(2, 0, both((0, 1, 100), *[(0, 1, 1, "1/1000000000")] * 60))
TRI = network(3, 0, both((0, 1, 1), (1, 2, 1), (0, 2, "1/100000")))
_NARROW = [(5, 0, 1), (0, 1, "1/1000"), (1, 2, 1), (2, 3, 1), (3, 4, 1000), (4, 5, "1/1000")]
AR6 = network(6, 0, _NARROW)  # two links of a cycle are narrow
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
    assert busiest_link(forest(topology, ALLGATHER)) == best.time_per_byte == slowest_cut(topology, ALLGATHER)


@pytest.mark.parametrize(
    ("topology", "pairs", "reached"),
    [(TRI, Fraction(200000, 200001), 1), (AR6, 1500, 1500), (AR4, Fraction(1848, 727), Fraction(1848, 727))],
    ids=["tri", "ar6", "ar4"],
)
def test_pairs_of_trees_are_those_of_the_program_and_schedules_reach_them(topology, pairs, reached) -> None:
    found, program = tree_pairs(topology), best_rate(topology)
    assert program is not None
    assert found.time_per_byte == found.bound == pairs
    assert float(1 / pairs) == pytest.approx(program, rel=1e-9)
    assert busiest_link(forest(topology, ALLREDUCE, Options(gap=Fraction(0)))) == reached


@pytest.mark.parametrize(
    ("topology", "size_bytes", "chunks", "microseconds"),
    [(LAT2, 10**6, None, "250.5"), (LAT61, 2**26, None, "209.7152"), (LAT61, 2**26, 160, "209.7152")],
    ids=["lat2", "lat61", "lat61 in 160 chunks"],
)
def test_latencies_cost_what_any_number_of_chunks_costs(topology, size_bytes, chunks, microseconds) -> None:
    options = Options(size_bytes=size_bytes, chunks=chunks)
    verified = synthesize("bfb", topology, ALLGATHER, options, SerialExecutor())
    time_s, count = predicted_s(verified, size_bytes), verified.schedule.chunks_per_shard
    assert time_s == least_broadcast_time(topology, count, size_bytes)
    assert time_s <= least_broadcast_time(topology, None, size_bytes) * Fraction(101, 100)
    assert float(time_s) == pytest.approx(float(microseconds) * 1e-6, rel=0.01)


@pytest.mark.parametrize(
    ("topology", "rate"), [(A5, "1/6"), (TINY, "3e-9"), (RES, "1000001"), (A2, "790")], ids=["a5", "tiny", "res", "a2"]
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
    assert busiest_link(forest(topology, ALLREDUCE, Options(gap=Fraction(0)))) >= tree_pairs(topology).bound


def test_switches_that_pass_on_less_than_a_broadcast_needs_pass_on_what_they_get() -> None:
    """Every cut allows 1, but both ranks take all data out of a switch that gets it once and cannot copy."""
    schedule = forest(SWITCH, parse_collective("broadcast"))
    assert busiest_link(schedule) == 2
    assert schedule.certificate["time_per_byte"] == "1"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_reference_beats_a_claim(method: str) -> None:
    counts, wrong = run(method, 6, seed=4)
    assert not wrong
    assert counts["checked"] > 0


@pytest.mark.parametrize("spec", ["line(mesh:3)", "line(mesh:3;2)", "line(mesh:3x4)", "line(torus:4x4)", "line(dbt:7)"])
def test_lines_are_planned_as_large_as_they_are_built(spec: str) -> None:
    plan: TopologyPlan = plan_topology(spec)
    assert (plan.nodes, plan.links) == (parse_topology(spec).node_count, len(parse_topology(spec).links))
