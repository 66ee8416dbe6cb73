"""Finds the link rate that this machine can carry: a short run in lock step over as many links as the fabric has."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from chorale.runners.execution.rounds import prepare_task
from chorale.runners.local.ranks import LocalRanks, native_code
from chorale.runners.measurement.machine import environment_id, machine_facts, read_probe_cache, write_probe_cache
from chorale.synth.collective import ALLREDUCE
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock, Wait
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

MIN_EFFICIENCY = 0.9
RATES_MBPS = tuple(mantissa * 10**exponent for exponent in range(4) for mantissa in (1, 2, 5))
FIRST_RATE_MBPS = 10

_BUSY_S = 0.1
_TRIES = 3
_LIMIT_S = 20.0
_MESSAGE_ELEMENTS = 8192
_ELEMENT_BYTES = 4
_CACHE_NAME = "link-rates.json"
_METHOD = "engines in lock step of 32 KiB"  # part of the key: what another way of probing found does not count


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A rate and how well busy links keep it: ideal time over real time, None if that was not probed."""

    link_mbps: float
    efficiency: float | None


def cached_rate(nodes: int, links: int, home: Path) -> LinkRate | None:
    """Return what `sustainable_rate` found earlier, None if nothing is cached."""
    cached = read_probe_cache(home / _CACHE_NAME).get(_machine(), {}).get(_network_name(nodes, links))
    return None if cached is None else LinkRate(cached["link_mbps"], cached["efficiency"])


def sustainable_rate(nodes: int, links: int, home: Path) -> LinkRate:
    """Return the largest 1, 2, 5 x 10^n Mbit/s that `links` links among `nodes` processes carry at 90 %.

    The first answer takes a few seconds; it is kept under `home` per kind of machine, nodes and links.
    """
    cached = cached_rate(nodes, links, home)
    if cached is not None:
        return cached
    with _probe_ranks(nodes, links) as probe:
        rate = _climb(probe)
    cache = read_probe_cache(home / _CACHE_NAME)
    cache.setdefault(_machine(), {})[_network_name(nodes, links)] = asdict(rate)
    write_probe_cache(home / _CACHE_NAME, cache)
    return rate


def rate_efficiency(nodes: int, links: int, link_mbps: float) -> LinkRate:
    """Return `link_mbps` with how well `links` busy links among `nodes` processes keep up with it."""
    with _probe_ranks(nodes, links) as probe:
        return LinkRate(link_mbps, probe.efficiency(link_mbps))


def _machine() -> str:
    return environment_id(dict(machine_facts(), method=_METHOD))


def _network_name(nodes: int, links: int) -> str:
    return f"{nodes} nodes, {links} links"


@dataclass(frozen=True, slots=True)
class _Probe:
    ranks: LocalRanks
    topology: Topology
    deadline: float

    def efficiency(self, link_mbps: float) -> float:
        message_s = _MESSAGE_ELEMENTS * _ELEMENT_BYTES * 8 / (link_mbps * 1e6)
        messages = max(2, math.ceil(_BUSY_S / message_s))
        self.ranks.load([_lock_step(self.topology, messages)], link_mbps, self.deadline)
        task = prepare_task(0, _MESSAGE_ELEMENTS)
        times_s = [self._timed(task) for _ in range(_TRIES)]
        return round(messages * message_s / statistics.median(times_s), 3)

    def _timed(self, task: dict[str, object]) -> float:
        self.ranks.request(task, self.deadline, "links were prepared to be probed")
        return self.ranks.timed_start(self.deadline, "links were probed")


@contextlib.contextmanager
def _probe_ranks(nodes: int, links: int) -> Iterator[_Probe]:
    native_code()
    deadline = time.monotonic() + _LIMIT_S
    topology = _network(nodes, links)
    ranks = LocalRanks(topology, deadline)
    try:
        yield _Probe(ranks, topology, deadline)
    finally:
        ranks.close()


def _climb(probe: _Probe) -> LinkRate:
    """Go up the ladder of rates as long as the machine keeps up, or down until it does."""
    start = RATES_MBPS.index(FIRST_RATE_MBPS)
    rate, efficiency = FIRST_RATE_MBPS, probe.efficiency(FIRST_RATE_MBPS)
    if efficiency >= MIN_EFFICIENCY:
        for faster in RATES_MBPS[start + 1 :]:
            next_efficiency = probe.efficiency(faster)
            if next_efficiency < MIN_EFFICIENCY:
                break
            rate, efficiency = faster, next_efficiency
    while efficiency < MIN_EFFICIENCY and rate > RATES_MBPS[0]:
        rate = RATES_MBPS[RATES_MBPS.index(rate) - 1]
        efficiency = probe.efficiency(rate)
    return LinkRate(rate, efficiency)


def _network(nodes: int, links: int) -> Topology:
    """Return a network of the given size with evenly spread links."""
    numbers = np.arange(links)
    src = numbers % nodes
    dst = (src + 1 + (numbers // nodes) % (nodes - 1)) % nodes
    return Topology("", tuple(map(str, range(nodes))), nodes, Links.of_unit_capacity(src, dst))


def _lock_step(topology: Topology, messages: int) -> Program:
    """Return a program in which every link carries `messages` messages that the receiver adds up.

    As in the steps of a collective, a rank sends on because something came in: message m leaves when message
    m - 1 of a link into the rank has arrived. So the efficiency counts the time to react as well as the bytes.
    """
    links, parallel = topology.links, topology.links.parallel_index().tolist()
    incoming: list[list[ThreadBlock]] = [[] for _ in range(topology.compute_count)]
    outgoing: list[list[ThreadBlock]] = [[] for _ in range(topology.compute_count)]
    for channel, src, dst in zip(parallel, links.src.tolist(), links.dst.tolist(), strict=True):
        slot = BufferRef("s", len(incoming[dst]))
        added = (Instruction(Op.RECV_REDUCE_COPY, slot, slot, 1),) * messages
        incoming[dst].append(ThreadBlock(None, src, channel, added))
        pair = len(outgoing[src])
        sent = tuple(
            Instruction(Op.SEND, BufferRef("i", 0), BufferRef("i", 0), 1, (Wait(pair, number - 1),) if number else ())
            for number in range(messages)
        )
        outgoing[src].append(ThreadBlock(dst, None, channel, sent))
    ranks = tuple(
        RankProgram(1, 0, len(received), (*received, *_released(sending, len(received))))
        for received, sending in zip(incoming, outgoing, strict=True)
    )
    return Program("probe", "probe", ALLREDUCE, 1, True, "Simple", max(parallel) + 1, ranks)


def _released(sending: list[ThreadBlock], receiving: int) -> list[ThreadBlock]:
    """Return the sending blocks, those without a partner among `receiving` blocks freed of their waits."""
    return [
        block if number < receiving else replace(block, instructions=(block.instructions[0],) * len(block.instructions))
        for number, block in enumerate(sending)
    ]
