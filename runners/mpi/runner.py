"""MpiRunner: times programs over MPI messages, alternately with MPI's own collectives."""

import time
from collections.abc import Iterator

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.validation import RequestFault, memory_shortage, validate_request
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped
from chorale.runners.mpi.algorithms import mpi_algorithms
from chorale.runners.mpi.launch import mpi_launch_of, require_known_hosts
from chorale.runners.mpi.messages import native_libraries
from chorale.runners.mpi.ranks import MpiRanks
from chorale.runners.process_launch.placement import host_names, placement_fault
from chorale.runners.process_launch.slurm import in_slurm_job
from chorale.synth.errors import Unavailable

LIBRARY_ALGORITHMS = ("mpi",)
"""MPI's own choice: the plain MPI call for the collective. A request may also name MPI's individual algorithms (see
`chorale.runners.mpi.algorithms`).
"""

_WORK_BYTES = 40  # per element, to create and check data

START_LIMIT_S = 30.0
"""Time that the ranks may need to start, in addition to a request's time limit."""


class MpiRunner(LiveRunner[MpiRanks]):
    """Implements `Runner` with one MPI process per rank.

    fabric: name of the fabric; needed only if several have the topology
    where:  `fabric`, `cluster` or `loopback`; None for the topology's fabric if it is up, else the cluster.
            Loopback measures this machine, not a network
    hosts:  cluster hosts: a comma-separated list in rank order, or @FILE with one per line; None for the allocation of
            the scheduler job to which this process belongs
    transport: `mpi` for MPI messages, `tcp` for the engine's own connections: TCP, and shared memory within a host
    interface: network device for the engine's TCP; None for the fabric's, else the first that is up
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
        super().__init__()
        self._where = (where, fabric, hosts)
        self._transport = (transport, interface)

    def library(self, collective: str) -> tuple[str, ...]:
        """Return MPI's own choice, which exists for every collective. Requests may also name `mpi_algorithms`."""
        return LIBRARY_ALGORITHMS

    def _fault(self, request: RunRequest) -> RequestFault | None:
        """Return why `request` cannot run, or None. MPI is queried if the request names individual algorithms."""
        try:
            chosen = mpi_algorithms() if set(request.library) - set(LIBRARY_ALGORITHMS) else {}
        except Unavailable as missing:
            return FailureKind.UNAVAILABLE, str(missing)
        library = lambda collective: (*LIBRARY_ALGORITHMS, *chosen.get(collective, ()))  # noqa: E731
        return validate_request(request, library, _faults)

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        launch = mpi_launch_of(request.topology, *self._where)
        if launch.is_here and (lack := memory_shortage(request, _WORK_BYTES)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, lack)
        if not in_slurm_job():  # srun finds its nodes by itself
            require_known_hosts(self._where[2])
        native, ranks = native_libraries(), request.topology.compute_count
        group = self._group_for(
            (request.topology.id, launch),
            lambda: MpiRanks(launch, ranks, native, self._transport, time.monotonic() + START_LIMIT_S),
        )
        if (fault := placement_fault(launch.hosts, 1, group.hosts)) is not None:
            raise RunStopped(FailureKind.UNAVAILABLE, fault)
        facts: Environment = {"mpi": group.mpi, "clock": "monotonic", **launch.facts}
        if not launch.is_here:
            facts["nodes"] = host_names(group.hosts)
        if self._transport[0] != "mpi":
            facts["transport"] = self._transport[0]
        self._identify(facts, environment)
        deadline = time.monotonic() + request.timeout_s
        group.load(list(request.without_plans.values()), request.library, deadline)
        rounds = MeasurementRounds(group, request, deadline)
        results = rounds.measure()
        environment["clock_error_us"] = group.clock_error_s * 1e6
        return Measurement(self.name, results, environment, rounds.traces)


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = ELEMENT_TYPES[request.dtype].max_ranks
    if request.topology.compute_count > most:
        yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"
    reduces = any(program.collective.reduces for program in request.without_plans.values())
    if request.library and reduces and request.dtype in ("bfloat16", "float16"):
        yield FailureKind.REJECTED, f"MPI has no sum of its own for {request.dtype}"
