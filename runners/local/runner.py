"""LocalRunner: runs programs in real processes with real data over an emulated network, on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.execution.rounds import DeadlinePassed, MeasurementRounds, RunStopped, run_failure_of
from chorale.runners.local.probe import LinkRate, rate_efficiency, sustainable_rate
from chorale.runners.local.ranks import LocalRanks, native_code
from chorale.runners.measurement.machine import environment_id, load_average, machine_facts
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.topology import Topology

MAX_NODES = 512
MAX_LINKS = 4096

_WORK_BYTES = 40  # per element, to make and to check data


def precondition_faults(request: RunRequest) -> Iterator[RequestFault]:
    """Yield why `request` is too large for this runner or for this machine's memory."""
    if (reason := _beyond_limits(request) or memory_shortage(request, _WORK_BYTES)) is not None:
        yield FailureKind.UNAVAILABLE, reason


def _beyond_limits(request: RunRequest) -> str | None:
    topology = request.topology
    if sys.platform != "linux":
        return "the local runner needs Linux"
    if topology.node_count > MAX_NODES or len(topology.links) > MAX_LINKS:
        found = f"{topology.node_count} and {len(topology.links)}"
        return f"the local runner takes at most {MAX_NODES} nodes and {MAX_LINKS} links, not {found}"
    if topology.compute_count > (most := ELEMENT_TYPES[request.dtype].max_ranks):
        return f"data of type {request.dtype} can be checked on at most {most} ranks, not {topology.compute_count}"
    return None


LOW_EFFICIENCY = 0.7


class LocalRunner:
    """Implements `Runner` with one process per rank and one for all links of the network.

    link_mbps: rate of a link of bandwidth 1 (of the fastest link on GB/s and Gbit/s fabrics) in 10^6 bit/s;
               None takes the rate that a probe finds this machine to carry for that many links.
    home:      folder where the probe's findings are kept; None means $CHORALE_HOME or ./chorale-data.
    probe:     whether to find out if the machine carries a `link_mbps` that was given.

    The processes stay between requests for the same topology, and vanish with this process, however it ends.
    """

    name = "local"

    def __init__(self, link_mbps: float | None = None, *, home: Path | None = None, probe: bool = True) -> None:
        if link_mbps is not None and not 0.001 <= link_mbps <= 1e6:
            rule = "a link rate must be between 0.001 and 1000000 Mbit/s"
            raise InvalidInput(rule, link_mbps, "choose a rate such as 50")
        self._link_mbps = link_mbps
        self._home = home or Path(os.environ.get("CHORALE_HOME", "chorale-data"))
        self._probe = probe
        self._ranks: LocalRanks | None = None
        self._topology_id = ""
        self._rates: dict[tuple[int, int], LinkRate] = {}

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see the port for the contract.

        The first request for a new kind of network may take a few seconds more than its time limit, to probe; and the
        first one of all a minute, to build what is native.
        """
        environment = dict(machine_facts(), runner=self.name, clock="monotonic", load_average=load_average())
        if (fault := validate_request(request, self.library, precondition_faults, overlap=True)) is not None:
            return RunFailure(*fault, environment=environment)
        finished = False
        try:
            outcome: Outcome = self._measure(request, environment)
            finished = True
        except RunStopped as stopped:
            outcome = self._explain(stopped, environment)
        except Unavailable as missing:
            outcome = RunFailure(FailureKind.UNAVAILABLE, str(missing), environment=environment)
        finally:
            if not finished:
                self.close()
        return outcome

    def library(self, collective: str) -> tuple[str, ...]:
        """There is no runtime below that has algorithms of its own."""
        return ()

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks; empty when none are running."""
        return [] if self._ranks is None else list(self._ranks.pids)

    def close(self) -> None:
        """End all processes."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _measure(self, request: RunRequest, environment: dict[str, str | int | float | None]) -> Measurement:
        rate = self._rate(request.topology)
        environment["link_mbps"] = rate.link_mbps
        environment["environment_id"] = environment_id(
            dict(machine_facts(), runner=self.name, link_mbps=rate.link_mbps)
        )
        environment["link_efficiency"] = rate.efficiency
        if rate.efficiency is not None and rate.efficiency < LOW_EFFICIENCY:
            environment["warning"] = (
                "this machine does not keep up with the links: times say more about it than the network"
            )
        native_code()  # not counted, as it is built only once
        deadline = time.monotonic() + request.timeout_s
        ranks = self._ranks_for(request.topology, deadline)
        ranks.load(request.programs.values(), rate.link_mbps, deadline)
        return Measurement(self.name, MeasurementRounds(ranks, request, deadline).measure(), environment)

    def _rate(self, topology: Topology) -> LinkRate:
        nodes, links = topology.node_count, len(topology.links)
        if (nodes, links) not in self._rates:
            if self._link_mbps is None:
                rate = sustainable_rate(nodes, links, self._home)
            elif self._probe:
                rate = rate_efficiency(nodes, links, self._link_mbps)
            else:
                rate = LinkRate(self._link_mbps, None)
            self._rates[nodes, links] = rate
        return self._rates[nodes, links]

    def _ranks_for(self, topology: Topology, deadline: float) -> LocalRanks:
        if self._ranks is None or self._topology_id != topology.id:
            self.close()
            self._ranks, self._topology_id = LocalRanks(topology, deadline), topology.id
        return self._ranks

    def _explain(self, stopped: RunStopped, environment: dict[str, str | int | float | None]) -> RunFailure:
        stuck = isinstance(stopped, DeadlinePassed) and self._ranks is not None
        blocked = self._ranks.blocked_ranks() if stuck and self._ranks is not None else {}
        return run_failure_of(stopped, blocked, environment)
