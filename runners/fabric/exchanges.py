"""Timed exchanges between the ranks of a fabric over plain TCP, all by one process with a thread for each rank."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native, native_home
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.holder import enter_command
from chorale.runners.fabric.paths import Stream
from chorale.runners.fabric.wire import processor_s
from chorale.synth.errors import Unavailable

EXCHANGES = NativeTarget("chorale-exchanges", (Path(__file__).parent / "native" / "exchanges.cpp",), ("-pthread",))
"""The program of the process."""

_WAY_OUT = "see `chorale doctor`, or skip this with --force"


@dataclass(frozen=True, slots=True)
class TimedExchange:
    """Streams that start together after `idle_s` without traffic, with the bytes that each carries."""

    sizes_bytes: Mapping[Stream, int]
    idle_s: float = 0.001


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Start and end of each stream of an exchange, in seconds of the machine's clock."""

    spans_s: Mapping[Stream, tuple[float, float]]

    @property
    def duration_s(self) -> float:
        """From the first start to the last end."""
        starts, ends = zip(*self.spans_s.values(), strict=True)
        return float(max(ends) - min(starts))


@dataclass(frozen=True, slots=True)
class ExchangeRun:
    """What exchanges took.

    cores:      processors that the ranks used
    link_cores: processors that the process of the links used meanwhile; 0 for links in the kernel
    """

    times: Sequence[ExchangeTimes]
    cores: float
    link_cores: float


def run_exchanges(fabric: EmulatedFabric, exchanges: Sequence[TimedExchange], limit_s: int) -> ExchangeRun:
    """Run `exchanges` one after the other over connections that stay, and return what they took.

    Raises Unavailable without a compiler, if ranks do not reach each other, or if it takes longer than `limit_s`.
    """
    streams = sorted({stream for exchange in exchanges for stream in exchange.sizes_bytes})
    program = build_native(EXCHANGES, native_home()).resolve()
    enter = enter_command(fabric.pid, True) if fabric.in_user_namespace and os.geteuid() != 0 else ()
    pipe = subprocess.PIPE
    command = [*enter, str(program), str(limit_s)]
    with subprocess.Popen(  # noqa: S603 - a program of our own, in a session of its own for its precedence
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("\n".join(_lines(fabric, streams, exchanges)))
            process.stdin.flush()
            is_connected = process.stdout.readline().strip() == "connected"
        except BrokenPipeError:
            is_connected = False
        before_s = processor_s(fabric.links.wire_pid)
        output, errors = process.communicate("\n" if is_connected else "")
        link_s = processor_s(fabric.links.wire_pid) - before_s
    if process.returncode != 0 or not is_connected:
        rule = "the ranks of a fabric must reach their neighbours in time"
        raise Unavailable(rule, errors or f"no end after {limit_s} s", _WAY_OUT)
    return _run_of(streams, exchanges, output.splitlines(), link_s)


def _lines(fabric: EmulatedFabric, streams: Sequence[Stream], exchanges: Sequence[TimedExchange]) -> Iterator[str]:
    for rank in range(fabric.ranks):
        yield f"rank /proc/{fabric.pid}/root/run/netns/{fabric.hostname(rank)} {fabric.address(rank)}"
    for source, target in streams:
        yield f"stream {source} {target}"
    number = {stream: index for index, stream in enumerate(streams)}
    for exchange in exchanges:
        parts = " ".join(f"{number[stream]}:{size_bytes}" for stream, size_bytes in exchange.sizes_bytes.items())
        yield f"exchange {int(exchange.idle_s * 1e6)} {parts}"
    yield "go\n"


def _run_of(
    streams: Sequence[Stream], exchanges: Sequence[TimedExchange], lines: Sequence[str], link_s: float
) -> ExchangeRun:
    spans: list[dict[Stream, tuple[float, float]]] = [{} for _ in exchanges]
    for line in lines[:-1]:
        exchange, stream, start_ns, end_ns = map(int, line.split())
        spans[exchange][streams[stream]] = (start_ns / 1e9, end_ns / 1e9)
    times = [ExchangeTimes(span) for span in spans]
    # Whatever the links did between the start of the first and the end of the last exchange counts, pauses excepted.
    busy_s = sum(item.duration_s for item in times)
    return ExchangeRun(times, int(lines[-1].split()[1]) / 1e9 / busy_s, link_s / busy_s)
