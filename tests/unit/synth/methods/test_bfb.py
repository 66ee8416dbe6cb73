"""Breadth-first broadcast, also with latencies and in symmetric form, against an exact reference and the theorems."""

from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather, prefers_symmetric_form, symmetric_bfb
from chorale.synth.methods.bfb.plan import certificate_of, make_plan, network_of
from chorale.synth.methods.catalog import form_of
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Links, Topology
from chorale.synth.verify.bfb_certificate import check_bfb_steps, least_time
from chorale.synth.verify.replay import set_replay_violations
from chorale.synth.verify.verify import verify
from tests.links import both, network
from tests.properties import random_cases
from tests.reference.replays import violations
from tests.reference.step_times import least_step_times
from tests.strategies import MIXED, networks, strongly_connected_topologies
from tests.symmetric_networks import symmetric_networks, unequal_torus
from tests.synthesis import predicted_s

SERIAL = SerialExecutor()


MICROSECOND = Fraction(1, 10**6)
LATENCIES_S = [latency * MICROSECOND for latency in (0, Fraction(1, 2), 1, Fraction(13, 10), 5, 40)]
SIZES = st.sampled_from([1, 100, 4096, 30_000, 2**16, 10**6 + 3, 2**24])


def timed_networks(max_nodes: int, max_extra_links: int = 8) -> st.SearchStrategy[Topology]:
    """Random networks in GB/s with links of different bandwidths and latencies."""
    networks = strongly_connected_topologies(2, max_nodes, max_extra_links, True, MIXED, LATENCIES_S)
    return networks.map(lambda topology: replace(topology, bandwidth_unit="GB/s"))


def step_values(schedule, kind):
    return [Fraction(entry["value"]) for entry in schedule.certificate[kind]]


@random_cases(60)
@given(networks(2, 7), st.integers(1, 5))
def test_schedules_are_right_and_certified_and_steps_take_the_least_time(topology, whole):
    for chunks in (None, whole):
        try:
            schedule = bfb_allgather(topology, SERIAL, chunks)
        except InvalidInput as error:  # only where no modest number of chunks reaches the optimum
            assert chunks is None
            assert "--chunks" in str(error)  # noqa: PT017
            continue
        assert violations(schedule) == []
        assert schedule.steps == diameter(topology)
        check_bfb_steps(topology, schedule.chunks_per_shard, schedule.certificate)
        unit = topology.compute_count * schedule.chunks_per_shard
        times = step_values(schedule, "times")
        assert verify(schedule).cost.time_per_byte == sum(times) / unit
        assert times == [time * unit for time in least_step_times(topology, schedule.chunks_per_shard, None)]
        loads = step_values(schedule, "loads")
        assert loads == [time * topology.compute_count for time in least_step_times(topology, None, None)]


@random_cases(100)
@given(timed_networks(6, max_extra_links=12), SIZES, st.sampled_from([None, 1, 3, 10]))
def test_schedules_for_a_size_take_the_least_time_with_latencies(topology, size_bytes, chunks):
    schedule = bfb_allgather(topology, SERIAL, chunks, size_bytes=size_bytes)
    verified = verify(schedule)
    assert set_replay_violations(schedule) == []
    times, loads = step_values(schedule, "times"), step_values(schedule, "loads")
    assert times == least_step_times(topology, schedule.chunks_per_shard, size_bytes)
    assert loads == least_step_times(topology, None, size_bytes)
    check_bfb_steps(topology, schedule.chunks_per_shard, schedule.certificate)
    assert least_time(topology, schedule.certificate) == sum(loads)
    time_s = predicted_s(verified, size_bytes)
    assert sum(times) == time_s
    assert time_s <= verified.cost.latency_s + verified.cost.time_per_byte * size_bytes / 10**9


@random_cases(40)
@given(networks(2, 6))
def test_the_chosen_number_of_chunks_is_the_smallest_that_loses_nothing(topology):
    try:
        chosen = bfb_allgather(topology, SERIAL)
    except InvalidInput:
        return
    ideal = sum(step_values(chosen, "loads"))
    assert sum(step_values(chosen, "times")) == ideal * chosen.chunks_per_shard
    for fewer in range(1, min(chosen.chunks_per_shard, 20)):
        assert sum(step_values(bfb_allgather(topology, SERIAL, chunks=fewer), "times")) > ideal * fewer


@pytest.mark.parametrize(
    ("spec", "steps", "factor", "chunks"),
    [
        ("hypercube:6", 6, "63/64", 6),
        ("torus:3x3x2", 3, "17/18", 5),
        ("bipartite:70", 2, "139/140", None),  # more than 64 links into a node
        ("biring:4,6", 3, "5/6", None),
        ("circulant:15,1,4,5", None, "1", None),  # the conjecture about circulants does not hold for three offsets
    ],
)
def test_known_optimal_topologies(spec, steps, factor, chunks):
    topology = parse_topology(spec)
    verified = synthesized("bfb", topology)
    assert verified.cost.bandwidth_factor == Fraction(factor)
    assert steps is None or verified.cost.steps == steps
    assert chunks is None or verified.schedule.chunks_per_shard == chunks


def two_ways(slow_s: Fraction) -> Topology:
    """Four nodes in a ring, each with a second, slow link to the next node."""
    rows = [(node, (node + way) % 4, 10, MICROSECOND) for node in range(4) for way in (1, 3)]
    return network(4, 0, [*rows, *((node, (node + 1) % 4, 10, slow_s) for node in range(4))])


@pytest.mark.parametrize("size_bytes", [1000, 10**9])
def test_the_symmetric_form_gives_the_same(size_bytes):
    topology = replace(unequal_torus(), bandwidth_unit="Gbit/s")
    for collective in (ALLGATHER, ALLREDUCE):
        found = verify(symmetric_bfb(topology, collective, SERIAL, size_bytes=size_bytes))
        full = synthesized("bfb", topology, collective, size_bytes=size_bytes)
        assert found.cost == full.cost
        assert found.cost == verify(found.schedule.expand()).cost
        assert predicted_s(found, size_bytes) == predicted_s(full, size_bytes)
        parts = ((part.topology, part.certificate) for part in found.schedule.parts)
        assert sum(least_time(*part) for part in parts) == least_time(topology, full.schedule.certificate)


def test_more_chunks_are_taken_where_few_lose_more_than_a_percent():
    topology = network(2, 0, both((0, 1, 100), *[(0, 1, 1, Fraction(1, 10**9))] * 60))
    schedule = bfb_allgather(topology, SERIAL, size_bytes=2**26)
    assert schedule.chunks_per_shard == 160
    assert sum(step_values(schedule, "times")) <= sum(step_values(schedule, "loads")) * Fraction(101, 100)


def test_tampered_certificates_are_noticed():
    topology = two_ways(20 * MICROSECOND)
    schedule = bfb_allgather(topology, SERIAL, 2, size_bytes=10**6)
    certificate = schedule.certificate
    with pytest.raises(CheckFailed, match="the load of a step is not the number of shards divided by the bandwidth"):
        least_time(topology, {**certificate, "size_bytes": 10**6 + 1})
    slower = [{**entry, "value": str(Fraction(entry["value"]) * 2)} for entry in certificate["times"]]
    with pytest.raises(CheckFailed, match="the time of a step is not the least possible for whole chunks"):
        check_bfb_steps(topology, 2, {**certificate, "times": slower})
    first, entry = certificate["loads"]
    for change in ({"value": "5"}, {"links": []}, {"node": 9}, {"links": entry["links"][:1]}):
        with pytest.raises(CheckFailed):
            check_bfb_steps(topology, 2, {**certificate, "loads": [first, entry | change]})
    faster = replace(topology, links=Links.build(link._replace(latency_s=Fraction(0)) for link in topology.links))
    with pytest.raises(CheckFailed, match="the load of a step is not the number of shards divided by the bandwidth"):
        least_time(faster, certificate)


def test_what_fits_in_64_bits_depends_on_the_number_of_chunks():
    topology = two_ways(MICROSECOND + Fraction(1, 10**9) / 3**19)
    schedule = bfb_allgather(topology, SERIAL, 64, size_bytes=2**20)
    assert predicted_s(verify(schedule), 2**20) == sum(step_values(schedule, "times"))
    with pytest.raises(InvalidInput, match="fewer chunks"):
        bfb_allgather(topology, SERIAL, 2**15, size_bytes=2**20)


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
@pytest.mark.parametrize("collective", [ALLGATHER, ALLREDUCE], ids=str)
def test_the_expanded_schedule_is_right_and_costs_the_same(topology, collective):
    schedule = symmetric_bfb(topology, collective, SERIAL)
    found = verify(schedule)
    expanded = verify(schedule.expand())
    assert expanded.schedule.collective == collective
    assert len(expanded.schedule.transfers) == schedule.transfer_count
    assert found.cost == expanded.cost
    assert found.link_loads == expanded.link_loads
    assert schedule.certificate == expanded.schedule.certificate
    full = synthesized("bfb", topology, collective)
    assert full.cost == expanded.cost
    assert (full.schedule.steps, full.schedule.chunks_per_shard) == (schedule.steps, schedule.chunks_per_shard)


def test_processes_give_the_same_schedule():
    topology = unequal_torus()
    with closing(ProcessExecutor(2)) as processes:
        assert symmetric_bfb(topology, ALLREDUCE, processes).id == symmetric_bfb(topology, ALLREDUCE, SERIAL).id


@pytest.mark.parametrize("spec", ["hypercube:9", "distreg:4,189"])
def test_large_networks_are_solved_for_one_rank_at_the_same_cost(spec):
    """Node by node and by the shortcut: the same steps, chunks and step times."""
    topology = parse_topology(spec)
    verified = verify(bfb_allgather(topology, SERIAL))
    plan = make_plan(network_of(topology), SERIAL, None, None)
    assert (verified.schedule.steps, verified.schedule.chunks_per_shard) == (plan.steps, plan.chunks)
    assert verified.schedule.certificate == certificate_of(plan)
    times = step_values(verified.schedule, "times")
    assert verified.cost.time_per_byte == sum(times) / (topology.compute_count * plan.chunks)


@pytest.mark.parametrize(
    ("spec", "preferred"),
    [("torus:23x22", False), ("torus:32x16", True), ("mesh:32x16", False), ("genkautz:4,512", False)],
)
def test_the_form_is_chosen_by_size_and_symmetry(spec, preferred):
    topology = parse_topology(spec)
    assert prefers_symmetric_form(topology) is preferred
    assert form_of("bfb", topology) == ("symmetric" if preferred else "columns")
    assert form_of("ring", topology) == "columns"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bfb_allgather(parse_topology("ring:4"), SERIAL, chunks=0), "chunks per shard must be 1 to"),
        (lambda: bfb_allgather(parse_topology("ring:4"), SERIAL, chunks=2**15 + 1), "chunks per shard must be 1 to"),
        (lambda: bfb_allgather(parse_topology("mesh:256x256"), SERIAL), r"needs? \d+\.\d GiB"),
        (lambda: bfb_allgather(parse_topology("torus:3x3"), SERIAL, size_bytes=2**20), "needs link rates in GB/s or"),
        (
            lambda: bfb_allgather(two_ways(Fraction(1, 3**35)), SERIAL, size_bytes=10**6 + 3),
            r"must be below 2\^62, got",
        ),
        (lambda: bfb_allgather(two_ways(MICROSECOND), SERIAL, size_bytes=0), "at least 1 byte"),
        (lambda: symmetric_bfb(parse_topology("genkautz:2,9"), ALLGATHER, SERIAL), "symmetries"),
        (
            lambda: symmetric_bfb(parse_topology("ring:5"), ALLTOALL, SERIAL),
            "the symmetric form is for allgather, redu",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
