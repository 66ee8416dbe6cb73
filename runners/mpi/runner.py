"""MpiRunner: programs on the processes of an MPI job, messages as MPI messages, MPI's own collectives beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.execution.rounds import DeadlinePassed, MeasurementRounds, RunStopped, run_failure_of
from chorale.runners.fabric.links import dishonest_size
from chorale.runners.measurement.machine import environment_id, load_average, machine_facts
from chorale.runners.mpi.algorithms import mpi_algorithms
from chorale.runners.mpi.job import MpiRankGroup
from chorale.runners.mpi.launch import MpiLaunch, mpi_launch_of
from chorale.runners.mpi.messages import native_libraries
from chorale.runners.process_launch.placement import host_names, placement_fault
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology

LIBRARY_ALGORITHMS = ("mpi",)
"""MPI's own algorithms: the call of the collective's name, which chooses by itself. Those that it chooses among are
measured where a request names them (see `chorale.runners.mpi.algorithms`)."""

_WORK_BYTES = 40  # per element, to make and to check data

START_LIMIT_S = 30.0
"""How long the ranks may take to start, which is besides the time limit of a request."""

Environment = dict[str, str | int | float | None]


class MpiRunner:
    """Implements `Runner` with one MPI process per rank, which stay between requests for one topology.

    fabric: name of the fabric; needed only where several have the topology
    where:  `fabric`, `cluster` or `loopback`; None takes the fabric that is up for the topology, else the cluster.
            Over loopback this machine is measured, not a network
    hosts:  the cluster: a comma list in the order of the ranks, or @FILE with one on each line; None means the
            allocation of the scheduler's job that this process is part of
    transport: `mpi` for MPI's messages, `tcp` for connections of the engine: TCP, and shared memory within a host
    interface: network device of the engine's TCP; None takes the fabric's, else the first that is up
    """

    name = "mpi"

    def __init__(
        self,
        fabric: str | None = None,
        where: str | None = None,
        hosts: str | None = None,
        transport: str = "mpi",
        interface: str | None = None,
    ) -> None:
        self._where = (where, fabric, hosts)
        self._transport = (transport, interface)
        self._group: MpiRankGroup | None = None
        self._group_key: tuple[str, MpiLaunch] | None = None

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see the port for the contract. The first one for a topology starts the ranks besides.

        InvalidInput if it is not clear where.
        """
        environment: Environment = dict(machine_facts(), runner=self.name, load_average=load_average())
        if (fault := _fault_of(request)) is not None:
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
                self._end(gracefully=False)
        return outcome

    def library(self, collective: str) -> tuple[str, ...]:
        """MPI has an algorithm for every collective. Requests may name those besides that `mpi_algorithms` lists."""
        return LIBRARY_ALGORITHMS

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks on their hosts; empty when none are running."""
        return [] if self._group is None else list(self._group.pids)

    def close(self) -> None:
        """End the job."""
        self._end(gracefully=True)

    def __enter__(self) -> MpiRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        launch = mpi_launch_of(request.topology, *self._where)
        if launch.is_here and (lack := memory_shortage(request, _WORK_BYTES)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, lack)
        if (reason := dishonest_size(request, launch.honest_bytes)) is not None:
            raise RunStopped(FailureKind.REJECTED, reason)
        native = native_libraries()
        group = self._group_for(request.topology, launch)
        if (fault := placement_fault(launch.hosts, 1, group.rank_hosts)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, fault)
        facts: Environment = {"mpi": group.mpi, "clock": "monotonic", **launch.facts}
        if not launch.is_here:
            facts["nodes"] = host_names(group.rank_hosts)
        if self._transport[0] != "mpi":
            facts["transport"] = self._transport[0]
        environment.update(facts)
        environment["environment_id"] = environment_id({**machine_facts(), "runner": self.name, **facts})
        deadline = time.monotonic() + request.timeout_s
        group.load(list(request.without_plans.values()), request.library, native, self._transport, deadline)
        rounds = MeasurementRounds(group, request, deadline)
        results = rounds.measure()
        environment["clock_error_us"] = group.clock_error_s * 1e6
        return Measurement(self.name, results, environment, rounds.traces)

    def _group_for(self, topology: Topology, launch: MpiLaunch) -> MpiRankGroup:
        """Return the ranks that are there, or new ones where they would be started in another way."""
        if self._group is None or self._group_key != (topology.id, launch):
            self._end(gracefully=True)
            self._group = MpiRankGroup(launch, topology.compute_count, time.monotonic() + START_LIMIT_S)
            self._group_key = (topology.id, launch)
        return self._group

    def _end(self, gracefully: bool) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close(gracefully)

    def _explain(self, stopped: RunStopped, environment: Environment) -> RunFailure:
        stuck = isinstance(stopped, DeadlinePassed) and self._group is not None
        return run_failure_of(
            stopped, self._group.blocked_ranks() if stuck and self._group is not None else {}, environment
        )


def _fault_of(request: RunRequest) -> RequestFault | None:
    """Return why `request` cannot run; MPI is asked for its algorithms where the request names others than its own
    choice."""
    try:
        chosen = mpi_algorithms() if set(request.library) - set(LIBRARY_ALGORITHMS) else {}
    except Unavailable as missing:
        return FailureKind.UNAVAILABLE, str(missing)
    library = lambda collective: (*LIBRARY_ALGORITHMS, *chosen.get(collective, ()))  # noqa: E731
    return validate_request(request, library, _faults)


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = ELEMENT_TYPES[request.dtype].max_ranks
    if request.topology.compute_count > most:
        yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"
    reduces = any(program.collective.reduces for program in request.without_plans.values())
    if request.library and reduces and request.dtype in ("bfloat16", "float16"):
        yield FailureKind.REJECTED, f"MPI has no sum of its own for {request.dtype}"
