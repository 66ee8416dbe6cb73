"""OneCclRunner: programs over oneCCL's point-to-point calls, timed beside oneCCL's own algorithms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.execution.rounds import Environment, LiveRunner, RankGroup, RunStopped, run_failure_of
from chorale.runners.fabric.fabric import find_fabric
from chorale.runners.fabric.links import dishonest_size
from chorale.runners.measurement.machine import Facts
from chorale.runners.oneccl.install import (
    DEFAULT_VERSION,
    INTERPRETER,
    PACKAGES,
    Version,
    build_interpreter,
    find_parts,
)
from chorale.runners.oneccl.tasks import (
    ALGORITHMS,
    START_LIMIT_S,
    InjectedFault,
    RankProcesses,
    RunEntry,
    collect_measurements,
    collect_traces,
    crash_failure,
    library_sizes,
    run_descriptions,
    run_order,
    task_text,
    timeout_failure,
    wrong_result_failure,
)
from chorale.runners.process_launch.processes import CLUSTER, FABRIC, LOOPBACK, Host, LocalHost, require_network_kind
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """The host of every rank, whether all are this machine, and facts that measurements there depend on.

    honest_bytes: the smallest message that the network does not carry too fast
    """

    hosts: Sequence[Host]
    facts: Facts
    is_here: bool = True
    honest_bytes: int = 0
    close: Callable[[], None] = lambda: None


def place_ranks(topology: Topology, where: str | None, fabric: str | None) -> RankPlacement:
    """Return where the ranks of `topology` run.

    where:  one of NETWORK_KINDS; None takes the fabric that is up for the topology, else the cluster
    fabric: name of the fabric, needed where several are up

    InvalidInput for an unknown kind or an ambiguous fabric; Unavailable if there is no such network.
    """
    require_network_kind(where)
    if where == LOOPBACK:
        return RankPlacement([LocalHost()] * topology.compute_count, {"network": LOOPBACK})
    if where != CLUSTER and (up := find_fabric(topology.id, fabric)) is not None:
        return RankPlacement(up.hosts(), up.facts(), honest_bytes=up.links.honest_bytes)
    if where != FABRIC and fabric is None and (placement := _cluster(topology)) is not None:
        return placement
    rule = (
        "oneCCL needs a network that is the topology: a fabric that is up, or a Ray cluster with a node for each rank"
    )
    wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
    raise Unavailable(rule, f"none for {wanted}", f"run: chorale fabric up {topology.spec or 'FILE'}")


def _cluster(topology: Topology) -> RankPlacement | None:
    from chorale.runners.ray.hosts import RayHosts  # noqa: PLC0415 - Ray takes a second to import

    nodes = RayHosts(topology.compute_count)
    if nodes.hosts is None:
        nodes.close()
        return None
    facts = {"network": CLUSTER, "nodes": ",".join(host.name() for host in nodes.hosts)}
    return RankPlacement(nodes.hosts, facts, is_here=False, close=nodes.close)


MAX_RANKS = 256
_REPORT_S = 1.5  # for the others to report once one rank has run into the limit; an interpreter takes at most 1

_SETTLE_S = 0.3  # for who was killed to be told from who only lost a neighbour


class OneCclRunner(LiveRunner[RankGroup]):
    """Implements `Runner` with one process per rank, all programs and sizes of a request in each.

    fabric: name of the fabric; needed only where several have the topology
    where:  `fabric`, `cluster` or `loopback`; None takes the fabric that is up for the topology, else a cluster.
            On loopback there is no network: times are about this machine's memory and scheduler
    version: of oneCCL
    fault:  misbehaviour on purpose, for tests

    The time limit of a request counts from when the ranks have found one another, for which they have
    `START_LIMIT_S`; building the interpreter, once, is not counted either.
    """

    name = "oneccl"

    def __init__(
        self,
        fabric: str | None = None,
        where: str | None = None,
        *,
        version: Version = DEFAULT_VERSION,
        fault: InjectedFault | None = None,
    ) -> None:
        super().__init__()
        self._fabric, self._where = fabric, where
        self._version = version
        self._misbehaviour = fault
        self._placement: RankPlacement | None = None

    def library(self, collective: str) -> tuple[str, ...]:
        """Return oneCCL's own algorithms for `collective`."""
        return ALGORITHMS.get(collective, ())

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, _faults)

    def _measure(self, request: RunRequest, environment: Environment) -> Outcome:
        interpreter = build_interpreter(self._version)
        self.close()
        placement = self._placement = place_ranks(request.topology, self._where, self._fabric)
        if placement.is_here and (reason := memory_shortage(request, work_bytes=0)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, reason)
        if (reason := dishonest_size(request, placement.honest_bytes)) is not None:
            raise RunStopped(FailureKind.REJECTED, reason)
        self._identify({"clock": "monotonic", **PACKAGES[self._version], **placement.facts}, environment)
        files = {INTERPRETER: interpreter.read_bytes(), **find_parts(self._version).runtime_files()}
        sizes = library_sizes(request, next(iter(request.without_plans.values())).collective.name)
        order = run_order(request, sizes)
        tasks = [task_text(request, order, rank, self._misbehaviour) for rank in range(request.topology.compute_count)]
        deadline = time.monotonic() + START_LIMIT_S
        with RankProcesses(placement.hosts) as processes:
            processes.start(files, tasks, sizes.environment, deadline)
            if not processes.wait(deadline + request.timeout_s + _REPORT_S):
                return _failure(order, processes, environment)
            return _outcome(request, order, processes, environment)

    def _end(self, gracefully: bool) -> None:
        """Let go of the hosts; processes end with their request."""
        placement, self._placement = self._placement, None
        if placement is not None:
            placement.close()


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = min(MAX_RANKS, ELEMENT_TYPES[request.dtype].max_ranks)
    if (ranks := request.topology.compute_count) > most:
        yield FailureKind.UNAVAILABLE, f"the oneccl runner takes at most {most} ranks of {request.dtype}, not {ranks}"


def _failure(order: list[RunEntry], processes: RankProcesses, facts: Facts) -> RunFailure:
    patience_s = _REPORT_S if crash_failure(processes) is None else _SETTLE_S
    processes.wait_for_reports(time.monotonic() + patience_s)
    if (stopped := crash_failure(processes)) is not None:
        return run_failure_of(stopped, {}, facts)
    return run_failure_of(*timeout_failure(processes, run_descriptions(order)), facts)


def _outcome(request: RunRequest, order: list[RunEntry], processes: RankProcesses, facts: Facts) -> Outcome:
    lines = [[line.split(" ", 2) for line in text.splitlines()[:-1]] for text in processes.texts("results")]
    stopped = wrong_result_failure(run_descriptions(order), [[words[2] for words in of_rank] for of_rank in lines])
    if stopped is not None:
        return run_failure_of(stopped, {}, facts)
    seconds = [
        (max(int(words[1]) for words in run) - min(int(words[0]) for words in run)) / 1e9
        for run in zip(*lines, strict=True)
    ]
    traces = collect_traces(request, order, processes.texts("trace"))
    return Measurement(OneCclRunner.name, collect_measurements(request, order, seconds), facts, traces)
