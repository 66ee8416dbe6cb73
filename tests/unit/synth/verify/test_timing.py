"""The time of a schedule at a size, against the definition."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize, synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from tests.strategies import MIXED, strongly_connected_topologies

SERIAL = SerialExecutor()
LATENCIES_S = [Fraction(0), Fraction(1, 10**6), Fraction(1, 30_000)]
UNITS = st.sampled_from(["GB/s", "Gbit/s"])


def in_unit(topology: Topology, unit: str) -> Topology:
    return replace(topology, bandwidth_unit=unit)


def by_definition(schedule: Schedule, size_bytes: int) -> Fraction:
    """Row by row: the latencies along each route, then the most loaded link of it."""
    topology = schedule.topology
    rate = {"GB/s": 10**9, "Gbit/s": 10**9 // 8}[topology.bandwidth_unit]
    chunk = Fraction(size_bytes, topology.compute_count * schedule.chunks_per_shard)
    rows = list(zip(*(column.tolist() for column in schedule.transfers.columns), strict=True))
    carried: Counter[tuple[int, int]] = Counter()
    for step, route, _, lo, hi, _ in rows:
        for link in schedule.routes.path(route):
            carried[step, link] += hi - lo
    longest: dict[int, Fraction] = {}
    for step, route, *_ in rows:
        links = [topology.links[int(link)] for link in schedule.routes.path(route)]
        loads = [carried[step, link] * chunk for link in schedule.routes.path(route)]
        slowest = max(load / (link.bandwidth * rate) for load, link in zip(loads, links, strict=True))
        time_s = sum(link.latency_s for link in links) + slowest
        longest[step] = max(longest.get(step, Fraction(0)), time_s)
    return sum(longest.values(), Fraction(0))


NETWORKS = st.builds(in_unit, strongly_connected_topologies(2, 6, 8, True, MIXED, LATENCIES_S), UNITS)


@given(NETWORKS, st.sampled_from(["bfb", "ring", "biring"]), st.integers(1, 10**7))
def test_steps_take_as_long_as_their_slowest_transfer(topology, method, size_bytes):
    verified = synthesize(method, topology, ALLREDUCE, Options(chunks=2, size_bytes=size_bytes), SERIAL)
    assert verified.cost.time_s == by_definition(verified.schedule, size_bytes)


@given(NETWORKS, st.integers(1, 10**7))
def test_what_streams_takes_its_latency_and_then_the_most_loaded_link(topology, size_bytes):
    schedule = alltoall_schedule(topology)
    assert schedule.kind == "pipelined"
    cost = verify(schedule, size_bytes).cost
    rate = {"GB/s": 10**9, "Gbit/s": 10**9 // 8}[topology.bandwidth_unit]
    assert cost.time_s == cost.latency_s + cost.time_per_byte * size_bytes / rate


def test_links_as_a_unit_have_no_seconds():
    schedule = synthesize_unverified("bfb", parse_topology("ring:4"), ALLGATHER, None, SERIAL)
    assert verify(schedule).cost.time_s is None
    with pytest.raises(InvalidInput, match="needs bandwidths in GB/s or Gbit/s"):
        verify(schedule, 1000)
