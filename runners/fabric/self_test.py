"""The self-test of a fabric: idle links must not be too fast, busy ones must reach their rate; else it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from chorale.runners.fabric.exchanges import ExchangeRun, TimedExchange, run_exchanges
from chorale.runners.fabric.fabric import EmulatedFabric, bring_up, temporary_fabric
from chorale.runners.fabric.link_facts import SelfTest
from chorale.runners.fabric.link_options import LinkKind, LinkOptions
from chorale.runners.fabric.paths import Stream, arc_rates
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.streams import busy_streams, fair_rates, needed_s
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

MIN_EFFICIENCY = 0.7
"""Of all links busy; a rate that reaches less is refused."""

_MOST_EARLY = 1.05
_LIMIT_S = 60
_IDLE_STREAMS = 8
_IDLE_REPEATS = 2
_WIRE_SIZES_BYTES = (2**10, 2**13)
_BUCKET_SIZES_BYTES = tuple(2**power for power in range(11, 19))
_LONGEST_IDLE_S = 0.05
_REFILL_BYTES = 40_000
_BUSY_S = Fraction(1, 4)
_BUSY_BYTES = (2**12, 2**22)
_BUSY_REPEATS = 4
_RATES_MBPS = tuple(Fraction(mantissa * 10**power, 10) for power in range(6) for mantissa in (1, 2, 5))
_SEARCHES = 4


class _OverloadError(Exception):
    """The machine does not carry the links at their rates."""

    def __init__(self, result: SelfTest) -> None:
        super().__init__(result)
        self.result = result


def bring_up_tested(
    topology: Topology, link_mbps: Fraction, name: str, options: LinkOptions | None = None, *, force: bool = False
) -> EmulatedFabric:
    """Bring up a fabric as `bring_up` does, test it, and return it with the result.

    Raises Unavailable if idle links are faster than their rate or the test cannot be made, and InvalidInput, with the
    highest rate that works, if all links together reach less than `MIN_EFFICIENCY` (not where packets are lost on
    purpose). `force` keeps it whatever the test shows. Takes a second or two; to search for a rate takes as long for
    every one tried.
    """
    options = options or LinkOptions()
    plan = plan_fabric(topology, link_mbps, name, options)

    def test(fabric: EmulatedFabric) -> EmulatedFabric:
        try:
            result, honest_bytes = run_self_test(plan, fabric)
            if not force:
                _require_honest(fabric, result)
                if result.efficiency < MIN_EFFICIENCY and not _loses(plan):
                    raise _OverloadError(result)
        except Unavailable:
            if force:
                return fabric
            raise
        return replace(fabric, links=replace(fabric.links, self_test=result, honest_bytes=honest_bytes))

    try:
        return bring_up(topology, link_mbps, name, options, test)
    except _OverloadError as overloaded:
        found = overloaded.result
    raise _refusal(link_mbps, found, _highest_rate(topology, link_mbps, name, options, found.efficiency))


def run_self_test(plan: FabricPlan, fabric: EmulatedFabric) -> tuple[SelfTest, int]:
    """Return what exchanges show and the smallest message that is carried honestly, in bytes.

    Raises Unavailable without a C++ compiler or if ranks do not reach each other.
    """
    streams = busy_streams(plan)
    speeds = _idle_speeds(plan, fabric, streams)
    sizes_bytes = _busy_sizes(plan, streams)
    exchange = TimedExchange(sizes_bytes, 0.005)
    run = run_exchanges(fabric, [exchange] * _BUSY_REPEATS, _LIMIT_S)
    # Others may use the machine too: what it can do is what it did at best. The first exchange only warms up.
    ideal_s = needed_s(plan, sizes_bytes, fabric.links.mtu_bytes)
    efficiency = max(ideal_s / times.duration_s for times in run.times[1:])
    largest = max(sizes_bytes.values())
    result = SelfTest(max(speeds.values()), efficiency, largest, run.link_cores, run.cores)
    return result, _honest_bytes(fabric, speeds)


def highest_speed(plan: FabricPlan, run: ExchangeRun, exchanges: Sequence[TimedExchange], mtu_bytes: int) -> float:
    """Return the largest ratio of the time that links need for a stream, or for all of an exchange, to what it took."""
    speeds = [0.0]
    for times, exchange in zip(run.times, exchanges, strict=True):
        speeds.append(needed_s(plan, exchange.sizes_bytes, mtu_bytes) / times.duration_s)
        for stream, (start_s, end_s) in times.spans_s.items():
            alone_s = needed_s(plan, {stream: exchange.sizes_bytes[stream]}, mtu_bytes)
            speeds.append(alone_s / (end_s - start_s))
    return max(speeds)


def _idle_speeds(plan: FabricPlan, fabric: EmulatedFabric, streams: Sequence[Stream]) -> dict[int, float]:
    """Return the highest speed for each message size, of streams that each have the links for themselves."""
    slowest = min(arc_rates(plan).values())
    chosen = streams[:: -(-len(streams) // _IDLE_STREAMS)]
    sizes = _WIRE_SIZES_BYTES if fabric.links.kind == LinkKind.WIRE else _BUCKET_SIZES_BYTES
    short = [size for size in sizes if 8 * size / slowest <= _LONGEST_IDLE_S] or [sizes[0]]
    idle_s = min(max(0.002, 8 * _REFILL_BYTES / slowest), _LONGEST_IDLE_S)
    speeds = {}
    for size_bytes in short:
        exchanges = [TimedExchange({stream: size_bytes}, idle_s) for stream in chosen] * _IDLE_REPEATS
        run = run_exchanges(fabric, exchanges, _LIMIT_S)
        speeds[size_bytes] = highest_speed(plan, run, exchanges, fabric.links.mtu_bytes)
    return speeds


def _honest_bytes(fabric: EmulatedFabric, speeds: dict[int, float]) -> int:
    """Return the size from which on nothing was more than 5 % too fast; speeds fall with sizes. 0 for honest links."""
    honest_bytes = fabric.links.honest_bytes
    for size_bytes in sorted(speeds, reverse=True):
        if speeds[size_bytes] > _MOST_EARLY:
            break
        honest_bytes = min(honest_bytes, size_bytes)
    return honest_bytes


def _busy_sizes(plan: FabricPlan, streams: Sequence[Stream]) -> dict[Stream, int]:
    """Return sizes with which all streams take the same time."""
    smallest, largest = _BUSY_BYTES
    rates = fair_rates(plan, streams)
    busy_s = min(_BUSY_S, Fraction(8 * largest) / max(rates.values()))
    return {stream: max(smallest, int(rate * busy_s / 8)) for stream, rate in rates.items()}


def _require_honest(fabric: EmulatedFabric, result: SelfTest) -> None:
    if fabric.links.kind == LinkKind.WIRE and result.highest_speed > 1:
        rule = "emulated links must not be faster than their rate"
        way_out = "report this as an error, with the output of `chorale doctor`"
        raise Unavailable(rule, f"{result.highest_speed:.3f} times the rate on idle links", way_out)


def _loses(plan: FabricPlan) -> bool:
    return any(loss for cable in plan.cables for loss in cable.loss)


def _highest_rate(
    topology: Topology, link_mbps: Fraction, name: str, options: LinkOptions, efficiency: float
) -> Fraction | None:
    """Return the highest rate of 1, 2, 5 x 10^n Mbit/s below `link_mbps` that works, by trying; None if none did.

    It begins with what was reached, goes down until a rate works, and up again while higher ones do.
    """
    rates = [rate for rate in _RATES_MBPS if rate < link_mbps]
    start = len([rate for rate in rates if rate <= link_mbps * Fraction(efficiency)]) - 1
    index, highest, failed = max(start, 0), None, len(rates)
    for _ in range(_SEARCHES):
        if not 0 <= index < failed:
            break
        plan = plan_fabric(topology, rates[index], name, options)
        with temporary_fabric(topology, rates[index], name, options) as (fabric, _):
            works = run_self_test(plan, fabric)[0].efficiency >= MIN_EFFICIENCY
        if works:
            highest, index = rates[index], index + 1
        else:
            failed = index
            index = index - 1 if highest is None else failed
    return highest


def _refusal(link_mbps: Fraction, result: SelfTest, highest: Fraction | None) -> InvalidInput:
    rule = f"all links of a fabric together must reach {MIN_EFFICIENCY:.0%} of their rates on this machine"
    reached = f"{result.efficiency:.0%} at {float(link_mbps):g} Mbit/s"
    lower = "a lower --link-mbps" if highest is None else f"--link-mbps {float(highest):g}, the highest that works"
    return InvalidInput(rule, reached, f"take {lower}, or --force to bring it up all the same")
