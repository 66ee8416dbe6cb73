"""All-to-all schedules: they verify, cost what the flows promise, and carry a certificate that holds."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from chorale.synth.bounds.certificate import check_alltoall_certificate
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.schedule import alltoall_schedule, require_schedule_size
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import inspect, verify
from tests.properties import random_cases
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.strategies import networks


def gap_of(schedule: Schedule) -> Fraction:
    """Return how much longer the schedule takes than the certificate says is needed."""
    upper = check_alltoall_certificate(schedule.topology, schedule.certificate)
    return verify(schedule).cost.time_per_byte * schedule.topology.compute_count * upper - 1


@given(networks(2, 7))
@random_cases(30)
def test_schedules_verify_and_come_close_to_the_rate(topology):
    schedule = alltoall_schedule(topology)
    best = full_alltoall_rate(topology)
    reached = 1 / (verify(schedule).cost.time_per_byte * topology.compute_count)
    assert float(reached) <= best * (1 + 1e-7)
    assert float(check_alltoall_certificate(topology, schedule.certificate)) >= best * (1 - 1e-7)
    assert 0 <= gap_of(schedule) < 0.12  # at most 64 chunks by default; see the next test


def bundle(forth: Sequence[Fraction | int], back: Sequence[Fraction | int]) -> Topology:
    """Return two ranks with links of these widths from the first to the second and back."""
    ends = [*((0, 1, width) for width in forth), *((1, 0, width) for width in back)]
    links = [Link(src, dst, Fraction(width)) for src, dst, width in ends]
    return Topology("bundle", ("0", "1"), 2, Links.build(links))


def test_chunks_left_over_go_where_they_take_the_least_time():
    topology = bundle((Fraction(25, 4), 5, *[1] * 8), (*[Fraction(25, 4)] * 3, 1))
    schedule = alltoall_schedule(topology, 64)
    # 22 and 18 chunks on the wide links, 3 on each other one: no way of sharing 64 takes less than 18 / 5.
    slowest = Fraction(18, 5) / 64
    assert verify(schedule).cost.time_per_byte * topology.compute_count == slowest
    assert gap_of(alltoall_schedule(topology)) < 0.03


@pytest.mark.parametrize(
    ("spec", "hops"),
    [("ring:5", 2), ("hypercube:4", 4), ("torus:4x4", 4), ("complete:5", 1), ("uniring:2,4", 3), ("bipartite:3", 2)],
)
def test_simple_networks_get_optimal_schedules_over_shortest_paths(spec, hops):
    schedule = alltoall_schedule(parse_topology(spec))
    assert gap_of(schedule) == 0
    assert schedule.steps == hops
    verified = verify(schedule)
    assert verified.cost.time_per_byte * alltoall_rate(schedule.topology).rate * schedule.topology.compute_count == 1
    assert verified.link_loads.duplicate_deliveries == 0


def test_prices_make_schedules_too():
    schedule = alltoall_schedule(parse_topology("genkautz:3,20"), 64, Fraction(1, 50), "prices")
    assert schedule.parameters == {"chunks": 64, "solver": "prices"}
    assert 0 <= gap_of(schedule) < 0.05


def test_schedules_survive_a_file_and_repeat():
    schedule = alltoall_schedule(parse_topology("mesh:3x3"))
    assert from_parquet(to_parquet(schedule), parse_topology).id == schedule.id
    assert alltoall_schedule(parse_topology("mesh:3x3")).id == schedule.id


def test_a_lost_transfer_is_found():
    schedule = alltoall_schedule(parse_topology("mesh:2x3"))
    fewer = replace(schedule, transfers=schedule.transfers.select(slice(1, None)))
    violations, verified = inspect(fewer)
    assert [violation.rule for violation in violations] == ["not-delivered"]
    assert verified is None


def test_latencies_add_up_along_a_route():
    """A path of three ranks: end to end takes both links one after the other, in one streaming schedule."""
    links = [Link(0, 1, latency_s=Fraction(1, 3)), Link(1, 2, latency_s=Fraction(1, 5))]
    links += [Link(1, 0, latency_s=Fraction(1, 7)), Link(2, 1, latency_s=Fraction(1, 7))]
    topology = Topology("path", ("a", "b", "c"), 3, Links.build(links))
    assert verify(alltoall_schedule(topology)).cost.latency_s == Fraction(1, 3) + Fraction(1, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bfb-steps"}, "bfb-steps"),
        ({"prices": [1, 1]}, "one whole number >= 0 per link"),
        ({"prices": [-1] * 6}, "one whole number >= 0 per link"),
        ({"prices": [0.5] * 6}, "one whole number >= 0 per link"),
        ({"prices": [0] * 6}, "do not prove 1"),
        ({"prices": [1, 1, 1, 1, 1, 9]}, "do not prove 1"),
        ({"rate_upper": "999/1000"}, "do not prove 999/1000"),
        ({"rate_upper": None}, "a rate_upper that is no rational number"),
    ],
)
def test_a_certificate_that_was_tampered_with(change, message):
    schedule = alltoall_schedule(parse_topology("ring:3"))
    assert check_alltoall_certificate(schedule.topology, schedule.certificate) == 1
    with pytest.raises(CheckFailed, match=message):
        check_alltoall_certificate(schedule.topology, {**schedule.certificate, **change})


def test_refusals():
    with pytest.raises(InvalidInput, match=r"at most 512 ranks and 4194304 pairs.*, got 600 ranks, 1440000 pairs in"):
        alltoall_schedule(parse_topology("torus:20x30"))
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to 4096, got 0"):
        require_schedule_size(parse_topology("ring:3"), 0)
