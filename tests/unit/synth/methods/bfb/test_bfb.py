"""Breadth-first broadcast against linear programming, brute force and the theorems about it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.bfb_certificate import check_bfb_steps
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.reference.breadth_first_programs import least_load, least_whole_chunk_time
from tests.reference.set_replay import violations
from tests.strategies import networks

SERIAL = SerialExecutor()


def step_values(schedule, kind):
    return [Fraction(entry["value"]) for entry in schedule.certificate[kind]]


@given(networks(2, 7))
def test_loads_equal_the_linear_program(topology):
    schedule = bfb_allgather(topology, SERIAL, chunks=1)
    for step, load in enumerate(step_values(schedule, "loads"), start=1):
        expected = max(least_load(topology, node, step) for node in range(topology.compute_count))
        assert float(load) == pytest.approx(expected, rel=1e-7)


@random_cases(40)
@given(networks(2, 6), st.integers(1, 5))
def test_whole_chunk_times_equal_the_integer_program(topology, chunks):
    schedule = bfb_allgather(topology, SERIAL, chunks=chunks)
    for step, time in enumerate(step_values(schedule, "times"), start=1):
        expected = max(least_whole_chunk_time(topology, node, step, chunks) for node in range(topology.compute_count))
        assert float(time) == pytest.approx(expected, rel=1e-6)


@given(networks(2, 8))
def test_the_schedule_is_right_and_costs_what_the_certificate_says(topology):
    try:
        schedule = bfb_allgather(topology, SERIAL)
    except InvalidInput as error:  # only where no modest number of chunks reaches the optimum
        assert "--chunks" in str(error)  # noqa: PT017
        schedule = bfb_allgather(topology, SERIAL, chunks=12)
    verified = verify(schedule)
    assert violations(schedule) == []
    assert schedule.steps == diameter(topology)
    shard = Fraction(1, topology.compute_count * schedule.chunks_per_shard)
    assert verified.cost.time_per_byte == sum(step_values(schedule, "times")) * shard
    check_bfb_steps(topology, schedule.chunks_per_shard, schedule.certificate)


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


@given(networks(2, 7))
def test_reduce_scatter_and_allreduce_are_right(topology):
    for collective in (REDUCE_SCATTER, ALLREDUCE):
        verified = synthesize("bfb", topology, collective, Options(chunks=2), SERIAL)
        assert violations(verified.schedule) == []


@pytest.mark.parametrize(
    ("spec", "steps", "factor", "chunks"),
    [
        ("hypercube:3", 3, "7/8", 3),
        ("hypercube:6", 6, "63/64", 6),
        ("torus:5x5", 4, "24/25", 1),
        ("torus:6x6", 6, "35/36", 4),
        ("torus:3x3x2", 3, "17/18", 5),
        ("ring:9", 4, "8/9", 1),
        ("ring:10", 5, "9/10", 2),
        ("bipartite:4", 2, "7/8", 4),
        ("complete:7", 1, "6/7", 1),
        ("uniring:1,6", 5, "5/6", 1),
        ("biring:4,6", 3, "5/6", None),
        ("circulant:16,3,4", None, "15/16", None),
    ],
)
def test_known_optimal_topologies(spec, steps, factor, chunks):
    topology = parse_topology(spec)
    verified = synthesize("bfb", topology, ALLGATHER, None, SERIAL)
    assert verified.cost.bandwidth_factor == Fraction(factor)
    assert steps is None or verified.cost.steps == steps
    assert chunks is None or verified.schedule.chunks_per_shard == chunks


def test_a_circulant_with_three_offsets_can_be_less_than_optimal():
    """Shows that the paper's conjecture about circulants does not hold for three offsets."""
    verified = synthesize("bfb", parse_topology("circulant:15,1,4,5"), ALLGATHER, None, SERIAL)
    assert verified.cost.bandwidth_factor == 1


def test_more_than_64_links_into_a_node():
    verified = synthesize("bfb", parse_topology("bipartite:70"), ALLGATHER, None, SERIAL)
    assert verified.cost.bandwidth_factor == Fraction(139, 140)


def test_a_slow_link_carries_less():
    links = [
        Link(node, (node + way) % 4, Fraction(3) if way == 1 else Fraction(1)) for node in range(4) for way in (1, 3)
    ]
    topology = Topology("custom", ("0", "1", "2", "3"), 4, Links.build(links))
    verified = synthesize("bfb", topology, ALLGATHER, None, SERIAL)
    # Neighbours in one step (the slow way takes 1), then the opposite shard split 3 : 1 over both ways.
    assert verified.cost.time_per_byte == (1 + Fraction(1, 4)) / 4
    assert verified.schedule.chunks_per_shard == 4


@pytest.mark.parametrize("chunks", [0, -1, 2**15 + 1])
def test_absurd_numbers_of_chunks_are_refused(chunks):
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to"):
        bfb_allgather(parse_topology("ring:4"), SERIAL, chunks=chunks)


def test_too_many_nodes_are_refused_with_the_memory_they_need():
    with pytest.raises(InvalidInput, match=r"needs? \d+\.\d GiB"):
        bfb_allgather(parse_topology("mesh:256x256"), SERIAL)


def test_tampered_certificates_are_noticed():
    topology = parse_topology("torus:3x3")
    schedule = bfb_allgather(topology, SERIAL)
    first, entry = schedule.certificate["loads"]
    for change in ({"value": "5"}, {"links": []}, {"node": 1}, {"links": entry["links"][:1]}):
        loads = [first, entry | change]
        with pytest.raises(Exception, match=r"critical|load"):
            check_bfb_steps(topology, schedule.chunks_per_shard, {**schedule.certificate, "loads": loads})
    slower = [{**item, "value": str(Fraction(item["value"]) * 2)} for item in schedule.certificate["times"]]
    with pytest.raises(Exception, match="the time of a step is not the least possible for whole chunks"):
        check_bfb_steps(topology, schedule.chunks_per_shard, {**schedule.certificate, "times": slower})
