"""A fabric's self-test. The fabric is refused if its links do not reach their rates when all links are busy."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from chorale.runners.fabric.fabric import EmulatedFabric, enter_command, temporary_fabric
from chorale.runners.fabric.plan import Arc, FabricPlan, Stream, arc_rates, carried_bytes, path_of, plan_fabric
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology


def busy_streams(plan: FabricPlan) -> list[Stream]:
    """Return streams that keep all links busy, as sorted (source, target) pairs of ranks.

    Each rank sends to all direct neighbours. A rank at a switch sends to rank + n/2 modulo n among all n ranks (in
    another box if there are several), and likewise among the ranks at the same switch.
    """
    found: set[Stream] = set()
    at_switch: dict[int, list[int]] = {}
    for src, dst in sorted(arc_rates(plan)):
        if max(src, dst) < plan.compute_count:
            found.add((src, dst))
        elif src < plan.compute_count:
            at_switch.setdefault(dst, []).append(src)
            found.add((src, (src + plan.compute_count // 2) % plan.compute_count))
    for ranks in at_switch.values():
        half = len(ranks) // 2
        found |= {(rank, ranks[(place + half) % len(ranks)]) for place, rank in enumerate(ranks)}
    return sorted((source, target) for source, target in found if source != target)


def fair_rates(plan: FabricPlan, streams: Iterable[Stream]) -> dict[Stream, Fraction]:
    """Return the max-min fair rates of `streams` in bits per second. O(streams * hops * links)."""
    capacity = {arc: Fraction(rate) for arc, rate in arc_rates(plan).items()}
    waiting = {stream: path_of(plan, stream) for stream in streams}
    rates: dict[Stream, Fraction] = {}
    while waiting:
        users = Counter(arc for path in waiting.values() for arc in path)
        share, tightest = min((capacity[arc] / count, arc) for arc, count in users.items())
        for stream in [stream for stream, path in waiting.items() if tightest in path]:
            rates[stream] = share
            for arc in waiting.pop(stream):
                capacity[arc] -= share
    return rates


def needed_s(plan: FabricPlan, sizes_bytes: Mapping[Stream, int]) -> float:
    """Return a lower bound in seconds for streams of these sizes that start together, headers included.

    It is the larger of two times: the time of the busiest link, and the time of the slowest stream if it were alone
    (its bytes at the rate of the slowest link on its path).
    """
    rates, load, longest = arc_rates(plan), Counter[Arc](), 0.0
    for stream, size_bytes in sizes_bytes.items():
        path, carried = path_of(plan, stream), carried_bytes(size_bytes)
        longest = max(longest, 8 * carried / min(rates[arc] for arc in path))
        load.update(dict.fromkeys(path, carried))
    return max(longest, *(8 * carried / rates[arc] for arc, carried in load.items()))


_WAY_OUT = "see `chorale doctor`, or skip this with --force"


Exchange = tuple[float, Mapping[Stream, int]]
"""Seconds without traffic, then the bytes of streams that start together."""

Spans = Mapping[Stream, tuple[float, float]]
"""Start and end of each stream in an exchange, in seconds on the machine's clock."""


def duration_s(spans: Spans) -> float:
    """Return the seconds from the first start to the last end in an exchange."""
    starts, ends = zip(*spans.values(), strict=True)
    return float(max(ends) - min(starts))


def run_exchanges(fabric: EmulatedFabric, exchanges: Sequence[Exchange], limit_s: int) -> list[Spans]:
    """Run `exchanges` one after the other over the same connections; return their times.

    Raises Unavailable if ranks do not reach each other, or if it takes longer than `limit_s`.
    """
    streams = sorted({stream for _, sizes_bytes in exchanges for stream in sizes_bytes})
    number = {stream: index for index, stream in enumerate(streams)}
    folder = f"/proc/{fabric.pid}/root/run/netns"
    task = {
        "ranks": [
            {"namespaces": [f"{folder}/{fabric.hostname(rank)}"], "address": fabric.address(rank)}
            for rank in range(fabric.ranks)
        ],
        "streams": streams,
        "exchanges": [
            (idle_s, {number[stream]: size for stream, size in sizes_bytes.items()})
            for idle_s, sizes_bytes in exchanges
        ],
    }
    enter = enter_command(fabric.pid, True) if fabric.in_user_namespace and os.geteuid() != 0 else ()
    command = [*enter, sys.executable, "-P", "-m", "chorale.runners.fabric.exchanges"]
    rule = "the self-test of the fabric failed: {}"
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, input=json.dumps(task), capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(rule, f"no end after {limit_s} s", _WAY_OUT) from None
    if done.returncode != 0:
        raise Unavailable(rule, done.stderr.strip().rpartition("\n")[2], _WAY_OUT)
    return [
        {streams[int(index)]: (start_s, end_s) for index, (start_s, end_s) in spans.items()}
        for spans in json.loads(done.stdout)
    ]


MIN_EFFICIENCY = 0.7
"""Lowest acceptable efficiency with all links busy; a fabric below it is refused."""
_LIMIT_S = 60
_BUSY_S = Fraction(1, 4)
_BUSY_BYTES = (2**12, 2**22)
_BUSY_REPEATS = 4
_RATES_MBPS = tuple(Fraction(mantissa * 10**power, 10) for power in range(6) for mantissa in (1, 2, 5))


def bring_up(
    topology: Topology,
    link_mbps: Fraction,
    name: str,
    *,
    is_tested: bool = True,
    force: bool = False,
) -> EmulatedFabric:
    """Create the fabric `name`, which stays up after this process ends.

    It is tested before others can see it, which takes a second or two. If this process is killed meanwhile, nothing of
    the fabric remains.

    Args:
        topology: Network to emulate.
        link_mbps: Rate of a link with the `full_bandwidth`, in 10^6 bit/s.
        name: Name of the fabric.
        is_tested: Whether to test it.
        force: Keep the fabric even if the test fails.

    Raises:
        InvalidInput: The network cannot be emulated, the name is taken, or the efficiency is below `MIN_EFFICIENCY`
            (then with a rate that should work).
        Unavailable: This machine or user cannot create fabrics, or the test cannot run.
    """
    with temporary_fabric(topology, link_mbps, name) as (fabric, holder):
        plan = plan_fabric(topology, link_mbps, name)
        finished = _tested(fabric, plan, force) if is_tested else fabric
        holder.detach(finished.to_line())
    return finished


def _tested(fabric: EmulatedFabric, plan: FabricPlan, force: bool) -> EmulatedFabric:
    try:
        efficiency = measured_efficiency(plan, fabric)
    except Unavailable:
        if force:
            return fabric
        raise
    if efficiency < MIN_EFFICIENCY and not force:
        rule = f"all links of a fabric together must reach {MIN_EFFICIENCY:.0%} of their rates on this machine"
        reached = f"{efficiency:.0%} at {float(fabric.link_mbps):g} Mbit/s"
        carried = [rate for rate in _RATES_MBPS if rate <= fabric.link_mbps * Fraction(efficiency)]
        lower = f"--link-mbps {float(carried[-1]):g}, which it carried" if carried else "a lower --link-mbps"
        raise InvalidInput(rule, reached, f"take {lower}, or --force to bring it up anyway")
    return replace(fabric, efficiency=efficiency)


def measured_efficiency(plan: FabricPlan, fabric: EmulatedFabric) -> float:
    """Keep all links busy; return the time at their rates divided by the measured time. Raises Unavailable if ranks do
    not reach each other.
    """
    streams = busy_streams(plan)
    smallest, largest_bytes = _BUSY_BYTES
    rates = fair_rates(plan, streams)
    busy_s = min(_BUSY_S, Fraction(8 * largest_bytes) / max(rates.values()))
    # Sizes for which all streams take the same time.
    sizes_bytes = {stream: max(smallest, int(rate * busy_s / 8)) for stream, rate in rates.items()}
    times = run_exchanges(fabric, [(0.005, sizes_bytes)] * _BUSY_REPEATS, _LIMIT_S)
    # Other processes may slow down some exchanges, so the best one counts. The first one only warms up.
    ideal_s = needed_s(plan, sizes_bytes)
    return max(ideal_s / duration_s(spans) for spans in times[1:])
