"""What the self-test refuses: links that are too fast, and rates beyond the machine, with the highest that works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.runners.fabric import self_test
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.links import FabricLinks, LinkKind, LinkOptions, SelfTest
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.self_test import (
    ExchangeRun,
    ExchangeTimes,
    TimedExchange,
    bring_up_tested,
    highest_speed,
    run_self_test,
)
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

RING = parse_topology("ring:4")  # eight links
WIRE = FabricLinks(LinkKind.WIRE)


class Machine:
    """Carries so many Mbit/s in all; its idle links are `speed` times as fast as they should be."""

    def __init__(self, mbps: float, speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mbps, self.speed = mbps, speed
        self.tested: list[float] = []
        monkeypatch.setattr(self_test, "run_self_test", self.test)
        monkeypatch.setattr(self_test, "bring_up", self.bring_up)
        monkeypatch.setattr(self_test, "temporary_fabric", self.temporary_fabric)

    def test(self, plan: FabricPlan, fabric: EmulatedFabric) -> tuple[SelfTest, int]:
        self.tested.append(plan.bits_per_s / 8e6)
        return SelfTest(self.speed, min(1.0, self.mbps * 1e6 / plan.bits_per_s), 1, 0, 0), 77

    def bring_up(
        self,
        topology: Topology,
        link_mbps: Fraction,
        name: str,
        options: LinkOptions,
        test: Callable[[EmulatedFabric], EmulatedFabric],
    ) -> EmulatedFabric:
        return test(EmulatedFabric(name, topology.spec, topology.id, link_mbps, 4, 0, 1, False, 1, WIRE))

    @contextlib.contextmanager
    def temporary_fabric(
        self, topology: Topology, link_mbps: Fraction, name: str, options: LinkOptions
    ) -> Iterator[tuple[EmulatedFabric, None]]:
        yield EmulatedFabric(name, topology.spec, topology.id, link_mbps, 4, 0, 1, False, 1, WIRE), None


def test_what_works_is_kept_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(800, 0.9, monkeypatch)
    links = bring_up_tested(RING, Fraction(100), "x").links
    assert (links.self_test, links.honest_bytes) == (SelfTest(0.9, 1.0, 1, 0, 0), 77)
    assert machine.tested == [100]


def test_a_refusal_names_the_highest_rate_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(800, 0.9, monkeypatch)
    with pytest.raises(InvalidInput) as refusal:
        bring_up_tested(RING, Fraction(1000), "x")
    assert str(refusal.value) == (
        "all links of a fabric together must reach 70% of their rates on this machine; got 10% at 1000 Mbit/s; "
        "take --link-mbps 100, the highest that works, or --force to bring it up all the same"
    )
    assert machine.tested == [1000, 100, 200]


def test_the_search_goes_down_where_the_first_guess_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(0, 0.9, monkeypatch)
    reached = iter((0.5, 0.6, 0.65, 0.8))
    monkeypatch.setattr(
        self_test,
        "run_self_test",
        lambda plan, fabric: (replace(machine.test(plan, fabric)[0], efficiency=next(reached)), 0),
    )
    with pytest.raises(InvalidInput, match="take --link-mbps 10, the highest that works"):
        bring_up_tested(RING, Fraction(100), "x")
    assert machine.tested == [100, 50, 20, 10]


def test_a_hopeless_machine_gets_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(0, 0.9, monkeypatch)
    with pytest.raises(InvalidInput, match="take a lower --link-mbps, or --force"):
        bring_up_tested(RING, Fraction(100), "x")


def test_force_keeps_what_the_machine_does_not_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(8, 1.5, monkeypatch)
    test = bring_up_tested(RING, Fraction(100), "x", force=True).links.self_test
    assert test is not None
    assert test.efficiency == 0.01
    assert machine.tested == [100]


def test_links_that_are_too_fast_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(800, 1.01, monkeypatch)
    with pytest.raises(Unavailable, match=r"must not be faster than their rate; got 1\.010 times"):
        bring_up_tested(RING, Fraction(10), "x")


def test_loss_on_purpose_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(8, 0.9, monkeypatch)
    assert bring_up_tested(RING, Fraction(100), "x", LinkOptions(loss=Fraction(1, 100))).links.self_test is not None


def timed(durations_s: dict[tuple[int, int], float]) -> ExchangeTimes:
    return ExchangeTimes({stream: (1.0, 1.0 + duration_s) for stream, duration_s in durations_s.items()})


def test_speed_is_the_highest_of_any_stream_and_of_all_together() -> None:
    plan = plan_fabric(RING, Fraction(10), "x")
    needed_s = 1250 * 8 / 1e7
    exchange = TimedExchange({(0, 1): 1198, (0, 2): 1198})  # both over the link from 0 to 1
    for durations_s, speed in (((4.0, 2.0), 0.5), ((1.0, 4.0), 1.0), ((1.6, 1.6), 1.25)):
        times = timed({(0, 1): durations_s[0] * needed_s, (0, 2): durations_s[1] * needed_s})
        assert highest_speed(plan, ExchangeRun([times], 0, 0), [exchange], 9000) == pytest.approx(speed)


@pytest.mark.parametrize(
    ("kind", "honest_bytes", "expected"), [(LinkKind.BUCKET, 181_680, 65_536), (LinkKind.WIRE, 0, 0)]
)
def test_a_bucket_is_honest_from_where_it_was_measured_to_be(
    kind: LinkKind, honest_bytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_fabric(RING, Fraction(100), "x")

    def run(fabric: EmulatedFabric, exchanges: list[TimedExchange], limit_s: int) -> ExchangeRun:
        times = []
        for exchange in exchanges:
            small = max(exchange.sizes_bytes.values()) < 65_536
            sizes = exchange.sizes_bytes
            factor = 0.9 if small and len(sizes) == 1 else 1.25
            times.append(timed({stream: factor * 8 * size / 1e8 for stream, size in sizes.items()}))
        return ExchangeRun(times, 0.5, 0.25)

    monkeypatch.setattr(self_test, "run_exchanges", run)
    links = FabricLinks(kind, honest_bytes=honest_bytes)
    fabric = EmulatedFabric("x", RING.spec, RING.id, Fraction(100), 4, 0, 1, False, 1, links)
    result, smallest = run_self_test(plan, fabric)
    assert smallest == expected
    assert result.efficiency == pytest.approx(0.8, abs=0.03)
    assert result.highest_speed > 1.1
    assert (result.link_cores, result.cores) == (0.25, 0.5)
