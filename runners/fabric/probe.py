"""Measures what a fabric carries on this machine when all its links are busy at once."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from chorale.runners.fabric import traffic
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.fabrics import temporary_fabric
from chorale.runners.fabric.holder import NamespaceHolder
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.streams import Stream, busy_streams, fair_bits_per_s
from chorale.runners.places.local import LocalProcess
from chorale.runners.places.place import STDERR, STDOUT, ProcessSpec
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

_WARM_UP_S = 0.3
_BUSY_S = 0.5
_START_LIMIT_S = 30.0
_PROGRAM = "traffic.py"
_COUNTERS = "for node in /run/netns/*; do nsenter --net=$node cat /proc/uptime /proc/net/dev; done"
_UPTIME_WORDS = 2
_SENT_BYTES = 9  # column of /proc/net/dev


@dataclass(frozen=True, slots=True)
class CarriedRate:
    """What all links together carried of busy streams, and what they would on a machine without limits."""

    bits_per_s: int
    ideal_bits_per_s: int

    @property
    def efficiency(self) -> float:
        return self.bits_per_s / self.ideal_bits_per_s


def probe(topology: Topology, link_mbps: Fraction, name: str) -> CarriedRate:
    """Return what the links of a fabric of `topology` carry, counted at the devices, headers included.

    The fabric is up for a second or two, with a process on every rank. Raises Unavailable where none can be made or
    the processes do not come into contact.
    """
    plan = plan_fabric(topology, link_mbps, name)
    with temporary_fabric(topology, link_mbps, name) as (fabric, holder), contextlib.ExitStack() as open_jobs:
        jobs = []
        for job, place in zip(_jobs(fabric, busy_streams(plan)), fabric.hosts(), strict=True):
            jobs.append(place.start(job))
            open_jobs.callback(jobs[-1].close)
        _wait_for(jobs)
        time.sleep(_WARM_UP_S)
        first = _counts(holder)
        time.sleep(_BUSY_S)
        last = _counts(holder)
    bytes_per_s = sum((b.sent_bytes - a.sent_bytes) / (b.at_s - a.at_s) for a, b in zip(first, last, strict=True))
    return CarriedRate(int(bytes_per_s * 8), int(fair_bits_per_s(plan)))


def _jobs(fabric: EmulatedFabric, streams: list[Stream]) -> Iterable[ProcessSpec]:
    program = Path(traffic.__file__).read_bytes()
    for rank in range(fabric.ranks):
        expected = sum(target == rank for _, target in streams)
        addresses = (fabric.address(target) for source, target in streams if source == rank)
        argv = (sys.executable, "-I", "-S", _PROGRAM, fabric.address(rank), str(expected), *addresses)
        yield ProcessSpec(argv, files={_PROGRAM: program})


def _wait_for(jobs: list[LocalProcess]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not all(job.read(STDOUT) for job in jobs):
        ended = next((rank for rank, job in enumerate(jobs) if job.poll() is not None), None)
        if ended is not None or time.monotonic() > deadline:
            complaint = jobs[ended or 0].read(STDERR).decode().strip().rpartition("\n")[2] or "no answer"
            rule = "the ranks of a fabric must reach their neighbours"
            raise Unavailable(
                rule, f"rank {ended or 0}: {complaint}", "see `chorale doctor`, or skip this with --force"
            )
        time.sleep(0.01)


class _Count(NamedTuple):
    """What has left a node over its links until a moment of the machine's clock."""

    at_s: float
    sent_bytes: int


def _counts(holder: NamespaceHolder) -> list[_Count]:
    """Return the counts of all nodes, each with its own moment, because reading all takes a while on large fabrics."""
    counts: list[_Count] = []
    for line in holder.run(_COUNTERS).splitlines():
        words = line.split()
        if len(words) == _UPTIME_WORDS:
            counts.append(_Count(float(words[0]), 0))
        elif words[0].startswith("to"):
            counts[-1] = counts[-1]._replace(sent_bytes=counts[-1].sent_bytes + int(words[_SENT_BYTES]))
    return counts
