"""Measures what a fabric carries when all its links are busy, and refuses fabrics that exceed this machine's CPU."""

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
from chorale.runners.fabric.fabric import EmulatedFabric, temporary_fabric
from chorale.runners.fabric.holder import NamespaceHolder
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.measurement.machine import environment_id, machine_facts, read_probe_cache, write_probe_cache
from chorale.runners.process_launch.base import STDERR, STDOUT, ProcessSpec
from chorale.runners.process_launch.local import LocalProcess
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

Stream = tuple[int, int]
Arc = tuple[int, int]


def busy_streams(plan: FabricPlan) -> list[Stream]:
    """Return (source, target) pairs of ranks, sorted.

    Each rank sends to all neighbours it has a link to. Behind switches it sends to the rank half of the way round
    all ranks, which is in another box where there are several, and half of the way round those at the same switch.
    """
    found: set[Stream] = set()
    at_switch: dict[int, list[int]] = {}
    for src, dst in sorted(_capacities(plan)):
        if max(src, dst) < plan.compute_count:
            found.add((src, dst))
        elif src < plan.compute_count:
            at_switch.setdefault(dst, []).append(src)
            found.add((src, (src + plan.compute_count // 2) % plan.compute_count))
    for ranks in at_switch.values():
        half = len(ranks) // 2
        found |= {(rank, ranks[(place + half) % len(ranks)]) for place, rank in enumerate(ranks)}
    return sorted((source, target) for source, target in found if source != target)


def fair_bits_per_s(plan: FabricPlan) -> Fraction:
    """Return what all links together carry of `busy_streams` at max-min fair rates. O(streams * hops * links)."""
    capacity = {arc: Fraction(rate) for arc, rate in _capacities(plan).items()}
    waiting = {stream: _path(plan, stream) for stream in busy_streams(plan)}
    total = Fraction(0)
    while waiting:
        users: dict[Arc, int] = {}
        for path in waiting.values():
            for arc in path:
                users[arc] = users.get(arc, 0) + 1
        share, tightest = min((capacity[arc] / count, arc) for arc, count in users.items())
        for stream in [stream for stream, path in waiting.items() if tightest in path]:
            for arc in waiting.pop(stream):
                capacity[arc] -= share
                total += share
    return total


def _capacities(plan: FabricPlan) -> dict[Arc, int]:
    return {
        arc: rate
        for cable in plan.cables
        for arc, rate in zip((cable.nodes, cable.nodes[::-1]), cable.bits_per_s, strict=True)
        if rate
    }


def _path(plan: FabricPlan, stream: Stream) -> list[Arc]:
    node, target = stream
    path = []
    while node != target:
        path.append((node, plan.routes[node][target]))
        node = plan.routes[node][target]
    return path


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


MIN_EFFICIENCY = 0.8

_TRIES = 2
_RESERVE = 2  # whoever uses the links needs about as much time of the CPU again as the links themselves
_CACHE_NAME = "fabric-rates.json"
_METHOD = "streams over all links at twice their rate"  # part of the key: what another way of probing found is void
_RATES_MBPS = tuple(Fraction(mantissa * 10**power, 10) for power in range(6) for mantissa in (1, 2, 5))


def require_capacity(topology: Topology, link_mbps: Fraction, name: str, home: Path) -> None:
    """Raise InvalidInput, with a rate that would do, if this machine does not carry such a fabric.

    It does if links of twice the rate keep 80 % of it while all are busy. What was carried is remembered under `home`
    per kind of machine, nodes and links; a refusal is always measured anew, twice, because others may be using the
    machine too. Takes a few seconds if it is not known.
    """
    wanted = plan_fabric(topology, link_mbps, name).bits_per_s
    machine = environment_id(dict(machine_facts(), method=_METHOD))
    network = f"{topology.node_count} nodes, {len(topology.links)} links"
    cache = read_probe_cache(home / _CACHE_NAME)
    if cache.get(machine, {}).get(network, 0) >= wanted:
        return
    efficiency = 0.0
    for _ in range(_TRIES):
        efficiency = max(efficiency, probe(topology, _RESERVE * link_mbps, name).efficiency)
        if efficiency >= MIN_EFFICIENCY:
            break
    else:
        raise _beyond(efficiency, wanted, link_mbps)
    cache.setdefault(machine, {})[network] = wanted
    write_probe_cache(home / _CACHE_NAME, cache)


def _beyond(efficiency: float, wanted: int, link_mbps: Fraction) -> InvalidInput:
    rule = f"this machine carries about {efficiency * wanted / 1e6:.0f} Mbit/s over all links of such a fabric together"
    fitting = _round_down(link_mbps * Fraction(efficiency))
    way_out = f"take --link-mbps {float(fitting):g}, or --force to bring it up all the same"
    return InvalidInput(rule, f"{wanted / 1e6:.0f} Mbit/s", way_out)


def _round_down(link_mbps: Fraction) -> Fraction:
    """Return the largest 1, 2, 5 x 10^n Mbit/s up to `link_mbps`, or the smallest there is."""
    return max([rate for rate in _RATES_MBPS if rate <= link_mbps], default=_RATES_MBPS[0])
