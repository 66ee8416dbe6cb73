"""LocalRunner: runs programs in real processes with real data over an emulated network, on this machine.

A probe finds the highest link rate that this machine can emulate: it runs a short program in lockstep over as many
links as the network has.
"""

import contextlib
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.api.programs import only_plans
from chorale.runners.api.validation import RequestFault, memory_shortage
from chorale.runners.execution.rounds import (
    Environment,
    LiveRunner,
    MeasurementRounds,
    RunStopped,
    on_switch_processes,
    prepare_task,
    switch_facts,
)
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.ranks import EMULATED, LocalRanks, native_code, placement_of
from chorale.runners.measurement.machine import (
    environment_id,
    load_average,
    machine_facts,
    read_probe_cache,
    write_probe_cache,
)
from chorale.runners.plans.rank_plans import plan_facts, plan_library
from chorale.runners.process_launch.processes import FABRIC, LOOPBACK
from chorale.runners.process_launch.slurm import node_facts
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock, Wait
from chorale.synth.topology.topology import Links, Topology

MIN_EFFICIENCY = 0.9
RATES_MBPS = tuple(mantissa * 10**exponent for exponent in range(4) for mantissa in (1, 2, 5))
FIRST_RATE_MBPS = 10
KEPT_S, KEPT_BUSY_S = 30 * 86_400.0, 600.0
"""Seconds for which a measured rate stays valid. The second value applies if other processes wanted more than
`BUSY_SHARE` of the CPU cores."""
BUSY_SHARE = 0.5

_BUSY_S = 0.1
_TRIES = 3
_LIMIT_S = 20.0
_MESSAGE_ELEMENTS = 8192
_ELEMENT_BYTES = 4
_CACHE_NAME = "link-rates.json"
_METHOD = "engines in lock step of 32 KiB"  # part of the cache key: results of other methods are not comparable


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A link rate, and the efficiency of busy links at this rate: ideal time / measured time; None if not measured."""

    link_mbps: float
    efficiency: float | None


def sustainable_rate(nodes: int, links: int, home: Path) -> LinkRate:
    """Return the largest link rate at which `links` links between `nodes` processes are 90 % efficient.

    The rate is 1, 2 or 5 times a power of ten in Mbit/s. The first call takes a few seconds. The result is cached under
    `home` for this kind of machine and these numbers of nodes and links. It is valid for `KEPT_S`, or for `KEPT_BUSY_S`
    if the machine was busy and may be faster later.
    """
    machine = environment_id(dict(machine_facts(), method=_METHOD))
    path, network = home / _CACHE_NAME, f"{nodes} nodes, {links} links"
    if (cached := read_probe_cache(path).get(machine, {}).get(network)) is not None:
        is_busy = cached.get("load", math.inf) > BUSY_SHARE * (os.cpu_count() or 1)
        # Entries without a time come from an earlier version and are not used.
        if 0 <= time.time() - cached.get("unix_s", -math.inf) < (KEPT_BUSY_S if is_busy else KEPT_S):
            return LinkRate(cached["link_mbps"], cached["efficiency"])
    load = load_average() or 0.0  # read before the probe, because the probe adds to it
    with _probe_ranks(nodes, links) as probe:
        rate = _climb(probe)
    cache = read_probe_cache(path)
    cache.setdefault(machine, {})[network] = asdict(rate) | {"load": load, "unix_s": int(time.time())}
    write_probe_cache(path, cache)
    return rate


def rate_efficiency(nodes: int, links: int, link_mbps: float) -> LinkRate:
    """Return `link_mbps` and the efficiency that `links` busy links between `nodes` processes reach at this rate."""
    with _probe_ranks(nodes, links) as probe:
        return LinkRate(link_mbps, probe.efficiency(link_mbps))


@dataclass(frozen=True, slots=True)
class _Probe:
    ranks: LocalRanks
    topology: Topology
    deadline: float

    def efficiency(self, link_mbps: float) -> float:
        message_s = _MESSAGE_ELEMENTS * _ELEMENT_BYTES * 8 / (link_mbps * 1e6)
        messages = max(2, math.ceil(_BUSY_S / message_s))
        self.ranks.load([_lock_step(self.topology, messages)], link_mbps, self.deadline)
        times_s = []
        for _ in range(_TRIES):
            self.ranks.request(prepare_task(0, _MESSAGE_ELEMENTS), self.deadline, "links were prepared to be probed")
            times_s.append(self.ranks.timed_start(self.deadline, "links were probed"))
        return round(messages * message_s / statistics.median(times_s), 3)


@contextlib.contextmanager
def _probe_ranks(nodes: int, links: int) -> Iterator[_Probe]:
    """Start ranks on a network of the given size with evenly spread links."""
    native_code()
    deadline = time.monotonic() + _LIMIT_S
    numbers = np.arange(links)
    src = numbers % nodes
    dst = (src + 1 + (numbers // nodes) % (nodes - 1)) % nodes
    topology = Topology("", tuple(map(str, range(nodes))), nodes, Links.of_unit_capacity(src, dst))
    with contextlib.closing(LocalRanks(topology, deadline)) as ranks:
        yield _Probe(ranks, topology, deadline)


def _climb(probe: _Probe) -> LinkRate:
    """Raise the link rate as long as the machine keeps up, or lower it until it does; return the final rate."""
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


def _lock_step(topology: Topology, messages: int) -> Program:
    """Return a program in which every link carries `messages` messages that the receiver adds up.

    As in the steps of a collective, ranks react to what they receive: a rank sends message m when message m - 1 has
    arrived over one of its incoming links. So the efficiency covers reaction times as well as bandwidth.
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
    ranks = []
    for received, sending in zip(incoming, outgoing, strict=True):
        for number in range(len(received), len(sending)):  # blocks without a partner wait for nothing
            sending[number] = replace(sending[number], instructions=sending[number].instructions[:1] * messages)
        ranks.append(RankProgram(1, 0, len(received), (*received, *sending)))
    return Program("probe", "probe", ALLREDUCE, 1, True, "Simple", max(parallel) + 1, tuple(ranks))


MAX_NODES = 512
MAX_LINKS = 4096
LOW_EFFICIENCY = 0.7
_WORK_BYTES = 40  # bytes per element that are needed to create and check data

LIBRARY_ALGORITHMS = ("gloo",)
"""Library algorithms that torch provides, if it is installed."""

TORCH_LIMIT_S = 60.0
"""Seconds that ranks with torch may take to start, in addition to a request's time limit."""


class LocalRunner(LiveRunner[LocalRanks]):
    """Implements `Runner` with one process per rank and one process for all network links; see `LocalConfig`.

    On a fabric, ranks run in the fabric's namespaces and use its links. Loopback measures this machine, not a network.
    The default is loopback for requests with MSCCL++ plans, which need memory that ranks share, and emulated links for
    all other requests. If the network is not emulated and torch is installed, Gloo's collectives can be measured too.

    home: folder for probe results; None means $CHORALE_HOME or ./chorale-data
    """

    name = "local"
    accepts: ClassVar[Mapping[str, bool]] = {"plans": True, "switches": True}

    def __init__(self, config: LocalConfig | None = None, home: Path | None = None) -> None:
        super().__init__()
        self._config = config or LocalConfig()
        self._where = self._config.where or (FABRIC if self._config.fabric else None)
        if (rate := self._config.link_mbps) is not None and self._where not in (None, EMULATED):
            rule = "only emulated links have a rate that can be chosen, not {}"
            raise InvalidInput(rule, f"{rate} on {self._where}", "leave it out")
        self._home = home or Path(os.environ.get("CHORALE_HOME", "chorale-data"))
        self._rates: dict[tuple[int, int], LinkRate] = {}

    def library(self, collective: str) -> tuple[str, ...]:
        """Return Gloo, which supports every collective, or () for emulated links, because Gloo would bypass them."""
        return () if self._where in (None, EMULATED) else LIBRARY_ALGORITHMS

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        """Yield the reasons why `request` is too large for this runner or this machine, or needs another network."""
        yield from super()._faults(request)
        if sys.platform != "linux":
            yield FailureKind.UNAVAILABLE, "the local runner needs Linux"
        nodes, links = request.topology.node_count, len(request.topology.links)
        if nodes > MAX_NODES or links > MAX_LINKS:
            most = f"{MAX_NODES} nodes and {MAX_LINKS} links"
            yield FailureKind.UNAVAILABLE, f"the local runner takes at most {most}, not {nodes} and {links}"
        if (shortage := memory_shortage(request, _WORK_BYTES)) is not None:
            yield FailureKind.UNAVAILABLE, shortage
        if request.has_plans and (self._where not in (None, LOOPBACK) or self._config.link_mbps):
            rule = "plans are executed in memory that ranks share, not over links"
            yield FailureKind.REJECTED, f"{rule}: set where to loopback, and leave link_mbps out"

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        where = self._where or (LOOPBACK if request.has_plans else EMULATED)
        environment["clock"] = "monotonic"
        try:
            request = on_switch_processes(request)
            rate = self._rate(request.topology) if where == EMULATED else None
            placement = placement_of(request.topology, where, self._config.fabric)
        except InvalidInput as refused:
            raise RunStopped(FailureKind.REJECTED, str(refused)) from None
        facts = dict(placement.facts) if rate is None else {**placement.facts, "link_mbps": rate.link_mbps}
        plans = plan_facts(only_plans(request.programs.values()))
        self._identify({**facts, **plans, **node_facts(), **switch_facts(request)}, environment)
        if rate is not None:
            environment["link_efficiency"] = rate.efficiency
            if rate.efficiency is not None and rate.efficiency < LOW_EFFICIENCY:
                warning = "this machine cannot keep up with the links, so times depend more on it than on the network"
                environment["warning"] = warning
        native_code()  # built before the time limit starts, because it is built only once
        if request.has_plans:
            plan_library()
        if request.library and find_spec("torch") is None:
            raise Unavailable("Gloo's collectives need torch, which is not installed", "", "pip install torch")
        start, uses_gloo = time.monotonic(), bool(request.library)
        if self._group is not None and self._group.uses_gloo < uses_gloo:
            self.close()
        start_limit = start + (TORCH_LIMIT_S if uses_gloo else request.timeout_s)
        ranks = self._group_for(
            (request.topology.id, placement.namespaces),
            lambda: LocalRanks(request.topology, start_limit, placement, uses_gloo),
        )
        deadline = (time.monotonic() if uses_gloo else start) + request.timeout_s
        ranks.load(request.programs.values(), rate.link_mbps if rate else None, deadline, request.library)
        rounds = MeasurementRounds(ranks, request, deadline)
        return Measurement(self.name, rounds.measure(), environment, rounds.traces)

    def _rate(self, topology: Topology) -> LinkRate:
        nodes, links = topology.node_count, len(topology.links)
        if (nodes, links) not in self._rates:
            if self._config.link_mbps is None:
                rate = sustainable_rate(nodes, links, self._home)
            elif self._config.probe:
                rate = rate_efficiency(nodes, links, self._config.link_mbps)
            else:
                rate = LinkRate(self._config.link_mbps, None)
            self._rates[nodes, links] = rate
        return self._rates[nodes, links]
