"""LocalRunner: runs programs in real processes with real data over an emulated network, on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import only_plans
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.execution.rounds import DeadlinePassed, MeasurementRounds, RunStopped, run_failure_of
from chorale.runners.execution.switch_processes import on_switch_processes, switch_facts
from chorale.runners.fabric.honesty import dishonest_size
from chorale.runners.local.placement import EMULATED, PLACES, RankLocations, placement_of
from chorale.runners.local.probe import LinkRate, rate_efficiency, sustainable_rate
from chorale.runners.local.ranks import LocalRanks, native_code
from chorale.runners.measurement.machine import environment_id, load_average, machine_facts
from chorale.runners.plans.facts import plan_facts
from chorale.runners.plans.library import plan_library
from chorale.runners.process_launch.base import LOOPBACK
from chorale.runners.process_launch.slurm import node_facts
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.names import unknown_name
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
_PLANS_SHARE_MEMORY = (
    "plans are executed in memory that ranks share, not over links: set where to loopback, and leave link_mbps out"
)
_TOO_FAST = "this machine does not keep up with the links: times say more about it than the network"

LIBRARY_ALGORITHMS = ("gloo",)
"""What torch brings along, where it is installed."""

TORCH_LIMIT_S = 60.0
"""How long ranks with torch may take to start, which is besides the time limit of a request."""


def require_torch() -> None:
    """Raise Unavailable where torch is not installed."""
    if find_spec("torch") is None:
        raise Unavailable("Gloo's collectives need torch", "none is installed", "pip install torch")


class LocalRunner:
    """Implements `Runner` with one process per rank and one for all links of the network.

    link_mbps: rate of a link of bandwidth 1 (of the fastest link on GB/s and Gbit/s fabrics) in 10^6 bit/s;
               None takes the rate that a probe finds this machine to carry for that many links.
    home:      folder where the probe's findings are kept; None means $CHORALE_HOME or ./chorale-data.
    probe:     whether to find out if the machine carries a `link_mbps` that was given.

    where:  `emulated`, `fabric` or `loopback`. On a fabric the ranks are in its namespaces, and links have its rate;
            loopback is shared memory: this machine is measured, not a network. None: loopback for requests with plans
            of MSCCL++, which need memory that ranks share, else emulated.
    fabric: name of the fabric; needed only where several have the topology

    Where the network is not emulated, Gloo's own collectives can be measured beside, if torch is installed.

    The processes stay between requests for the same topology, and vanish with this process, however it ends.
    """

    name = "local"

    def __init__(
        self,
        link_mbps: float | None = None,
        *,
        home: Path | None = None,
        probe: bool = True,
        where: str | None = None,
        fabric: str | None = None,
    ) -> None:
        if where not in (None, *PLACES):
            raise unknown_name("place to run", str(where), PLACES)
        if link_mbps is not None and where not in (None, EMULATED):
            raise InvalidInput("only emulated links have a rate to choose", f"{link_mbps} on {where}", "leave it out")
        if link_mbps is not None and not 0.001 <= link_mbps <= 1e6:
            rule = "a link rate must be between 0.001 and 1000000 Mbit/s"
            raise InvalidInput(rule, link_mbps, "choose a rate such as 50")
        self._link_mbps = link_mbps
        self._home = home or Path(os.environ.get("CHORALE_HOME", "chorale-data"))
        self._probe = probe
        self._ranks: LocalRanks | None = None
        self._place = (where, fabric)
        self._group_key: tuple[object, ...] = ()
        self._rates: dict[tuple[int, int], LinkRate] = {}

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see the port for the contract.

        The first request for a new kind of network may take a few seconds more than its time limit, to probe; and the
        first one of all a minute, to build what is native.
        """
        environment = dict(machine_facts(), runner=self.name, clock="monotonic", load_average=load_average())
        faults = {"overlap": True, "plans": True, "switches": True}
        if (fault := validate_request(request, self.library, precondition_faults, **faults)) is not None:
            return RunFailure(*fault, environment=environment)
        if request.has_plans and (self._place[0] not in (None, LOOPBACK) or self._link_mbps is not None):
            return RunFailure(FailureKind.REJECTED, _PLANS_SHARE_MEMORY, environment=environment)
        finished = False
        try:
            outcome: Outcome = self._measure(on_switch_processes(request), environment)
            finished = True
        except RunStopped as stopped:
            outcome = self._explain(stopped, environment)
        except Unavailable as missing:
            outcome = RunFailure(FailureKind.UNAVAILABLE, str(missing), environment=environment)
        except InvalidInput as refused:
            outcome = RunFailure(FailureKind.REJECTED, str(refused), environment=environment)
        finally:
            if not finished:
                self.close()
        return outcome

    def library(self, collective: str) -> tuple[str, ...]:
        """Gloo has an algorithm for every collective, but none that goes over emulated links."""
        return () if self._place[0] in (None, EMULATED) else LIBRARY_ALGORITHMS

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
        where = self._place[0] or (LOOPBACK if request.has_plans else EMULATED)
        rate = self._rate(request.topology) if where == EMULATED else None
        placement = placement_of(request.topology, where, self._place[1])
        facts = dict(placement.facts) if rate is None else {**placement.facts, "link_mbps": rate.link_mbps}
        plans = plan_facts(only_plans(request.programs.values()))
        facts |= {**plans, **node_facts(), **switch_facts(request)}
        environment.update(facts)
        environment["environment_id"] = environment_id({**machine_facts(), "runner": self.name, **facts})
        environment.update(_facts_of_rate(rate))
        if (reason := dishonest_size(request, placement.honest_bytes)) is not None:
            raise RunStopped(FailureKind.REJECTED, reason)
        native_code()  # not counted, as it is built only once
        if request.has_plans:
            plan_library()
        if request.library:
            require_torch()
        start = time.monotonic()
        ranks = self._ranks_for(request, placement, start + (TORCH_LIMIT_S if request.library else request.timeout_s))
        deadline = (time.monotonic() if request.library else start) + request.timeout_s
        ranks.load(request.programs.values(), rate.link_mbps if rate else None, deadline, request.library)
        rounds = MeasurementRounds(ranks, request, deadline)
        return Measurement(self.name, rounds.measure(), environment, rounds.traces)

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

    def _ranks_for(self, request: RunRequest, placement: RankLocations, deadline: float) -> LocalRanks:
        """Return the ranks that are there, or new ones where the network or what they can do must be another."""
        topology, uses_gloo = request.topology, bool(request.library)
        key = (topology.id, placement.namespaces)
        if self._ranks is None or self._group_key != key or (uses_gloo and not self._ranks.uses_gloo):
            self.close()
            self._ranks, self._group_key = LocalRanks(topology, deadline, placement, uses_gloo), key
        return self._ranks

    def _explain(self, stopped: RunStopped, environment: dict[str, str | int | float | None]) -> RunFailure:
        stuck = isinstance(stopped, DeadlinePassed) and self._ranks is not None
        blocked = self._ranks.blocked_ranks() if stuck and self._ranks is not None else {}
        return run_failure_of(stopped, blocked, environment)


def _facts_of_rate(rate: LinkRate | None) -> dict[str, str | int | float | None]:
    """Return how well this machine carries emulated links, with a warning if it does not; nothing on other networks."""
    if rate is None:
        return {}
    facts: dict[str, str | int | float | None] = {"link_efficiency": rate.efficiency}
    is_low = rate.efficiency is not None and rate.efficiency < LOW_EFFICIENCY
    return facts | ({"warning": _TOO_FAST} if is_low else {})
