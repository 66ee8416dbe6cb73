"""Breadth-first broadcast with link latencies at a size of the vector, against the programs of the paper."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather, symmetric_bfb
from chorale.synth.methods.bfb.plan import Block, IntegralChunks, StepTimes, block_chunk_times, block_loads, network_of
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.bfb_certificate import check_bfb_steps, least_time
from chorale.synth.verify.replay import set_replay_violations
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.reference.breadth_first_programs import least_time_with_latencies
from tests.strategies import MIXED, strongly_connected_topologies
from tests.symmetric_networks import unequal_torus

SERIAL = SerialExecutor()
MICROSECOND = Fraction(1, 10**6)
LATENCIES_S = [latency * MICROSECOND for latency in (0, Fraction(1, 2), 1, Fraction(13, 10), 5, 40)]
SIZES = st.sampled_from([1, 100, 4096, 30_000, 2**16, 10**6 + 3, 2**24])


def timed_networks(max_nodes: int, max_extra_links: int = 8) -> st.SearchStrategy[Topology]:
    """Random networks in GB/s with links of different bandwidths and latencies."""
    networks = strongly_connected_topologies(2, max_nodes, max_extra_links, True, MIXED, LATENCIES_S)
    return networks.map(lambda topology: replace(topology, bandwidth_unit="GB/s"))


def step_times(schedule, kind):
    return [Fraction(entry["value"]) for entry in schedule.certificate[kind]]


def seconds_of(network, times: StepTimes, chunks: int) -> list[float]:
    """Return the time of every step in which anything arrives, else 0."""
    return [
        float(network.step_time(times.of_step(step), chunks)) if times.bottom[step] else 0.0
        for step in range(len(times.top))
    ]


@random_cases(30)
@given(timed_networks(5), SIZES)
def test_loads_equal_the_program_of_the_paper_over_all_sets_of_used_links(topology, size_bytes):
    network = network_of(topology, size_bytes)
    for node in range(topology.compute_count):
        found = seconds_of(network, block_loads(network, Block(node, node + 1)).times, 1)
        shard = (size_bytes / topology.compute_count, 1e9)
        expected = [least_time_with_latencies(topology, node, step + 1, *shard) for step in range(len(found))]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-14)


@random_cases(30)
@given(timed_networks(5, max_extra_links=5), SIZES, st.integers(1, 4))
def test_whole_chunk_times_equal_the_integer_program_over_all_sets_of_used_links(topology, size_bytes, chunks):
    network = network_of(topology, size_bytes)
    for node in range(topology.compute_count):
        loads = block_loads(network, Block(node, node + 1)).times
        start = StepTimes(loads.top * chunks, loads.bottom)
        if not loads.bottom.all():
            continue  # the other kernels take it that something arrives in every step
        shared = IntegralChunks(network, chunks, start)
        found = seconds_of(network, block_chunk_times(shared, Block(node, node + 1)).times, chunks)
        shard = (size_bytes / topology.compute_count, 1e9)
        expected = [least_time_with_latencies(topology, node, step + 1, *shard, chunks) for step in range(len(found))]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-14)


@random_cases(100)
@given(timed_networks(8, max_extra_links=16), SIZES, st.sampled_from([None, None, 1, 3, 10]))
def test_the_schedule_is_right_and_takes_what_the_certificate_says(topology, size_bytes, chunks):
    schedule = bfb_allgather(topology, SERIAL, chunks, size_bytes=size_bytes)
    verified = verify(schedule, size_bytes)
    assert set_replay_violations(schedule) == []
    assert verified.cost.time_s == sum(step_times(schedule, "times"))
    check_bfb_steps(topology, schedule.chunks_per_shard, schedule.certificate)
    least_s = least_time(topology, schedule.certificate)
    assert least_s == sum(step_times(schedule, "loads"))
    assert least_s <= verified.cost.time_s
    assert verified.cost.time_s <= verified.cost.latency_s + verified.cost.time_per_byte * size_bytes / 10**9


def two_ways(slow_s: Fraction) -> Topology:
    """Four nodes in a ring, each with a second, slow link to the next node."""
    links = [Link(node, (node + way) % 4, Fraction(10), MICROSECOND) for node in range(4) for way in (1, 3)]
    links += [Link(node, (node + 1) % 4, Fraction(10), slow_s) for node in range(4)]
    return Topology("two ways", tuple("0123"), 4, Links.build(links), "GB/s")


def test_a_slow_link_is_dropped_for_small_sizes_and_used_for_large_ones():
    topology = two_ways(20 * MICROSECOND)
    used, time_s = {}, {}
    for size_bytes in (10**3, 10**6, 10**7, 10**8):
        verified = synthesize("bfb", topology, ALLGATHER, Options(chunks=12, size_bytes=size_bytes), SERIAL)
        routes = np.unique(verified.schedule.transfers.route)
        used[size_bytes] = any(topology.links[route].latency_s == 20 * MICROSECOND for route in routes)
        time_s[size_bytes] = verified.cost.time_s
    assert used == {10**3: False, 10**6: False, 10**7: True, 10**8: True}
    # A shard of 250 B takes 0.025 us: neighbours, then the opposite shard in halves.
    assert time_s[10**3] == 2 * MICROSECOND + Fraction(3, 2) * Fraction(250, 10**10)
    # Without its latency the slow link would be used at every size.
    plain = verify(bfb_allgather(topology, SERIAL, 12), 10**3)
    assert plain.cost.time_s > 20 * MICROSECOND
    # A shard of 25 MB takes 2500 us: the first step waits for the one link backwards; in the second, three links
    # carry four twelfths each, and the slow one ends last.
    assert time_s[10**8] == (1 + 2500 + 20 + Fraction(2500, 3)) * MICROSECOND
    assert all(first < second for first, second in pairwise(time_s.values()))


@pytest.mark.parametrize("spec", ["torus:4x4", "kautz:2,3", "mesh:3x4"])
@pytest.mark.parametrize("latency_s", [Fraction(0), Fraction(7, 10**6)])
def test_equal_latencies_change_nothing_but_the_time(spec, latency_s):
    topology = with_latency(parse_topology(spec), latency_s)
    timed = synthesize("bfb", topology, ALLREDUCE, Options(size_bytes=10**6 + 3), SERIAL)
    plain = synthesize("bfb", topology, ALLREDUCE, None, SERIAL)
    assert timed.schedule.id == plain.schedule.id
    assert timed.cost.time_s == plain.cost.steps * latency_s + plain.cost.time_per_byte * Fraction(10**6 + 3, 10**9)
    assert plain.cost.time_s is None


def with_latency(topology: Topology, latency_s: Fraction) -> Topology:
    links = Links.build(link._replace(latency_s=latency_s) for link in topology.links)
    return replace(topology, links=links, bandwidth_unit="GB/s")


@pytest.mark.parametrize("size_bytes", [1000, 2**20, 10**9])
def test_the_symmetric_form_gives_the_same(size_bytes):
    topology = replace(unequal_torus(), bandwidth_unit="Gbit/s")
    for collective in (ALLGATHER, ALLREDUCE):
        found = verify(symmetric_bfb(topology, collective, SERIAL, size_bytes=size_bytes), size_bytes)
        full = synthesize("bfb", topology, collective, Options(size_bytes=size_bytes), SERIAL)
        assert found.cost == full.cost
        assert found.cost == verify(found.schedule.expand(), size_bytes).cost
        parts = ((part.topology, part.certificate) for part in found.schedule.parts)
        assert sum(least_time(*part) for part in parts) == least_time(topology, full.schedule.certificate)


def test_where_no_few_chunks_are_exact_the_loss_is_small_and_told():
    topology = two_ways(Fraction("20.0013") * MICROSECOND)
    size_bytes = 10**7 + 19
    schedule = bfb_allgather(topology, SERIAL, size_bytes=size_bytes)
    ideal_s = sum(step_times(schedule, "loads"))
    assert ideal_s < sum(step_times(schedule, "times")) <= ideal_s * Fraction(101, 100)
    usual = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    for fewer in usual[: usual.index(schedule.chunks_per_shard)]:
        times = step_times(bfb_allgather(topology, SERIAL, fewer, size_bytes=size_bytes), "times")
        assert sum(times) > ideal_s * Fraction(101, 100)


def test_more_chunks_are_taken_where_few_lose_more_than_a_percent():
    slow = Link(0, 1, Fraction(1), Fraction(1, 10**9))
    one_way = [Link(0, 1, Fraction(100)), *[slow] * 60]
    back = [link._replace(src=1, dst=0) for link in one_way]
    topology = Topology("bundle", ("0", "1"), 2, Links.build([*one_way, *back]), "GB/s")
    schedule = bfb_allgather(topology, SERIAL, size_bytes=2**26)
    assert schedule.chunks_per_shard == 160
    assert sum(step_times(schedule, "times")) <= sum(step_times(schedule, "loads")) * Fraction(101, 100)


def test_tampered_certificates_are_noticed():
    topology = two_ways(20 * MICROSECOND)
    schedule = bfb_allgather(topology, SERIAL, 2, size_bytes=10**6)
    certificate = schedule.certificate
    with pytest.raises(CheckFailed, match="the load of a step is not the number of shards divided by the bandwidth"):
        least_time(topology, {**certificate, "size_bytes": 10**6 + 1})
    slower = [{**entry, "value": str(Fraction(entry["value"]) * 2)} for entry in certificate["times"]]
    with pytest.raises(CheckFailed, match="the time of a step is not the least possible for whole chunks"):
        check_bfb_steps(topology, 2, {**certificate, "times": slower})
    faster = replace(topology, links=Links.build(link._replace(latency_s=Fraction(0)) for link in topology.links))
    with pytest.raises(CheckFailed, match="the load of a step is not the number of shards divided by the bandwidth"):
        least_time(faster, certificate)


def test_links_as_a_unit_have_no_seconds():
    with pytest.raises(InvalidInput, match="needs bandwidths in GB/s or Gbit/s"):
        bfb_allgather(parse_topology("torus:3x3"), SERIAL, size_bytes=2**20)


def test_numbers_beyond_64_bits_are_refused_with_the_bound():
    topology = two_ways(Fraction(1, 3**35))
    with pytest.raises(InvalidInput, match=r"must be below 2\^62, got .* ticks, delays up to"):
        bfb_allgather(topology, SERIAL, size_bytes=10**6 + 3)
    with pytest.raises(InvalidInput, match="at least 1 byte"):
        bfb_allgather(topology, SERIAL, size_bytes=0)


def test_what_fits_in_64_bits_depends_on_the_number_of_chunks():
    topology = two_ways(MICROSECOND + Fraction(1, 10**9) / 3**19)
    schedule = bfb_allgather(topology, SERIAL, 64, size_bytes=2**20)
    assert verify(schedule, 2**20).cost.time_s == sum(step_times(schedule, "times"))
    with pytest.raises(InvalidInput, match="fewer chunks"):
        bfb_allgather(topology, SERIAL, 2**15, size_bytes=2**20)
