"""Tests a new fabric by keeping all links busy. A fabric whose links are far below their rates is refused.

`python -m chorale.runners.fabric.self_test` is one process that acts for all ranks: it opens sockets in all nodes'
networks and times exchanges between ranks over plain TCP. It reads JSON: `ranks` (namespaces and address of each rank),
`streams` (source and target of each stream) and `exchanges`. An exchange has a pause in seconds before its traffic, and
the bytes to send: stream number -> bytes. The process runs the exchanges and prints JSON: start and end of each stream
in each exchange, in seconds on the monotonic clock. A stream starts before its first byte is sent, and ends when its
last byte is received.
"""

import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

from chorale.runners.fabric.fabric import EmulatedFabric, enter_command, temporary_fabric
from chorale.runners.fabric.namespaces import enter_namespaces
from chorale.runners.fabric.plan import Arc, FabricPlan, Stream, arc_rates, carried_bytes, path_of, plan_fabric
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

MIN_EFFICIENCY = 0.7
"""Lowest acceptable efficiency with all links busy; a fabric with a lower efficiency is refused."""
_LIMIT_S = 60
_BUSY_S = Fraction(1, 4)
_BUSY_BYTES = (2**12, 2**22)
_BUSY_REPEATS = 4
_RATES_MBPS = tuple(Fraction(mantissa * 10**power, 10) for power in range(6) for mantissa in (1, 2, 5))
_PORT = 7000
_CONNECT_LIMIT_S = 20.0
_BLOCK = bytes(1 << 16)
_FIRST_BYTES = 1 << 15  # small, so that all streams start within a short time
Ends = tuple[socket.socket, socket.socket]
"""(Sending end, receiving end) of a stream."""


def busy_streams(plan: FabricPlan) -> list[Stream]:
    """Return streams that keep all links busy, as sorted (source, target) pairs of ranks.

    Each rank sends to all direct neighbours. Rank r at a switch also sends to two more ranks. The first, rank (r + n/2)
    mod n of all n ranks, is in another box if there are several boxes. The second is half-way around the list of ranks
    at the same switch.
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
    """Return a lower bound for the seconds that streams of these sizes take if they start together.

    The bound is the larger of two times, which include headers. One is the time of the busiest link. The other is the
    time that the slowest stream would take alone, at the rate of the slowest link on its path.
    """
    rates, load, longest = arc_rates(plan), Counter[Arc](), 0.0
    for stream, size_bytes in sizes_bytes.items():
        path, carried = path_of(plan, stream), carried_bytes(size_bytes)
        longest = max(longest, 8 * carried / min(rates[arc] for arc in path))
        load.update(dict.fromkeys(path, carried))
    return max(longest, *(8 * carried / rates[arc] for arc, carried in load.items()))


_WAY_OUT = "see `chorale doctor`, or skip this with --force"


Exchange = tuple[float, Mapping[Stream, int]]
"""(seconds without traffic, bytes to send on each stream after that). All streams start at the same time."""

Spans = Mapping[Stream, tuple[float, float]]
"""Start and end of each stream in an exchange, in seconds on the machine's clock."""


def duration_s(spans: Spans) -> float:
    """Return the seconds from the first start to the last end in an exchange."""
    starts, ends = zip(*spans.values(), strict=True)
    return float(max(ends) - min(starts))


def run_exchanges(fabric: EmulatedFabric, exchanges: Sequence[Exchange], limit_s: int) -> list[Spans]:
    """Run `exchanges` one after the other over the same connections; return their times.

    Raises Unavailable if ranks do not reach each other, or if the exchanges take longer than `limit_s`.
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
    command = [*enter, sys.executable, "-P", "-m", "chorale.runners.fabric.self_test"]
    rule = "the self-test of the fabric failed: {}"
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, input=json.dumps(task), capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(rule, f"not finished after {limit_s} s", _WAY_OUT) from None
    if done.returncode != 0:
        raise Unavailable(rule, done.stderr.strip().rpartition("\n")[2], _WAY_OUT)
    return [
        {streams[int(index)]: (start_s, end_s) for index, (start_s, end_s) in spans.items()}
        for spans in json.loads(done.stdout)
    ]


def bring_up(
    topology: Topology, link_mbps: Fraction, name: str, *, is_tested: bool = True, force: bool = False
) -> EmulatedFabric:
    """Create the fabric `name`, which stays up after this process ends.

    The fabric is tested before other commands can find it, which takes a second or two. If this process is killed
    meanwhile, nothing of the fabric remains.

    Args:
        topology: Network to emulate.
        link_mbps: Rate of a link with the `full_bandwidth`, in 10^6 bit/s.
        name: Name of the fabric.
        is_tested: Whether to test it.
        force: Keep the fabric even if the test fails.

    Raises:
        InvalidInput: The network cannot be emulated, the name is taken, or the efficiency is below `MIN_EFFICIENCY`
            (then the message suggests a lower rate).
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
        lower = f"--link-mbps {float(carried[-1]):g}, which this machine reached" if carried else "a lower --link-mbps"
        raise InvalidInput(rule, reached, f"use {lower}, or --force to bring it up anyway")
    return replace(fabric, efficiency=efficiency)


def measured_efficiency(plan: FabricPlan, fabric: EmulatedFabric) -> float:
    """Keep all links busy; return the ratio of the time that their rates imply to the measured time. Raises Unavailable
    if ranks do not reach each other.
    """
    streams = busy_streams(plan)
    smallest, largest_bytes = _BUSY_BYTES
    rates = fair_rates(plan, streams)
    busy_s = min(_BUSY_S, Fraction(8 * largest_bytes) / max(rates.values()))
    # Sizes for which all streams take the same time.
    sizes_bytes = {stream: max(smallest, int(rate * busy_s / 8)) for stream, rate in rates.items()}
    times = run_exchanges(fabric, [(0.005, sizes_bytes)] * _BUSY_REPEATS, _LIMIT_S)
    # Other processes may slow down some exchanges, so the best exchange counts. The first exchange only warms up.
    ideal_s = needed_s(plan, sizes_bytes)
    return max(ideal_s / duration_s(spans) for spans in times[1:])


def connected(ranks: Sequence[Mapping[str, Any]], streams: Sequence[tuple[int, int]]) -> list[Ends]:
    """Connect all streams and return their ends. No two streams may have the same source and target."""
    listeners = []
    for rank in ranks:
        enter_namespaces(rank["namespaces"])
        listeners.append(socket.create_server((rank["address"], _PORT), backlog=len(streams)))
        listeners[-1].settimeout(_CONNECT_LIMIT_S)
    ends: list[Ends] = []
    for source, target in streams:
        enter_namespaces(ranks[source]["namespaces"])
        sending = socket.create_connection((ranks[target]["address"], _PORT), _CONNECT_LIMIT_S)
        receiving, _ = listeners[target].accept()
        for end in (sending, receiving):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        ends.append((sending, receiving))
    return ends


def timed(ends: Sequence[Ends], sizes_bytes: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    """Send the given number of bytes on each stream; return (start, end) of each stream in seconds.

    sizes_bytes: stream number (as a string) -> bytes to send
    """
    to_send, to_receive = dict(sizes_bytes), dict(sizes_bytes)
    starts_s: dict[str, float] = {}
    spans_s: dict[str, tuple[float, float]] = {}
    buffer = bytearray(_BLOCK)
    with selectors.DefaultSelector() as ready:
        for number, size_bytes in sizes_bytes.items():
            sending, receiving = ends[int(number)]
            ready.register(receiving, selectors.EVENT_READ, number)
            starts_s[number] = time.monotonic()
            to_send[number] -= sending.send(_BLOCK[: min(size_bytes, _FIRST_BYTES)])
            if to_send[number]:
                ready.register(sending, selectors.EVENT_WRITE, number)
        while len(spans_s) < len(sizes_bytes):
            for key, _ in ready.select():
                number, end = key.data, ends[int(key.data)][key.events == selectors.EVENT_READ]
                if key.events == selectors.EVENT_WRITE:
                    to_send[number] -= end.send(memoryview(_BLOCK)[: to_send[number]])
                    if not to_send[number]:
                        ready.unregister(end)
                    continue
                count = end.recv_into(buffer, min(to_receive[number], len(buffer)))
                if count == 0:
                    raise ConnectionError("a connection broke")
                to_receive[number] -= count
                if not to_receive[number]:
                    spans_s[number] = starts_s[number], time.monotonic()
                    ready.unregister(end)
    return spans_s


def main() -> None:
    task: dict[str, Any] = json.load(sys.stdin)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with suppress(PermissionError):  # measure the links, not other load on the machine
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    ends = connected(task["ranks"], task["streams"])
    spans_s = []
    for idle_s, sizes_bytes in task["exchanges"]:
        time.sleep(idle_s)
        spans_s.append(timed(ends, sizes_bytes))
    sys.stdout.write(json.dumps(spans_s))


if __name__ == "__main__":
    main()
