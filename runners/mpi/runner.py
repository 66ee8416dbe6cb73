"""MpiRunner: times programs over MPI messages, alternately with MPI's own collectives."""

import contextlib
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping

import psutil

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.api.validation import RequestFault, memory_shortage
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped
from chorale.runners.execution.started_ranks import StartedRanks
from chorale.runners.mpi.launch import MpiLaunch, mpi_launch_of, require_known_hosts, start_launch
from chorale.runners.mpi.messages import NativeLibraries, native_libraries
from chorale.runners.process_launch.processes import STDERR, STDOUT, LocalProcess
from chorale.runners.process_launch.slurm import host_names, in_slurm_job, placement_fault

_SETTLE_S = 0.5  # time until all deaths are reported, to distinguish a killed rank from ranks that lost a neighbour
_SIGNALS = 128  # a shell adds this to the signal that ended a process
_DIED = re.compile(rb"^chorale: rank (-?\d+) ended with code (\d+)$", re.MULTILINE)
_WORK_BYTES = 40  # bytes per element that are needed to create and check data
START_LIMIT_S = 30.0
"""Seconds that the ranks may take to start, in addition to a request's time limit."""


class MpiRanks(StartedRanks):
    """Starts and controls the ranks of one MPI job, which serves one request after another.

    transport: name of the transport (`mpi` or `tcp`), and the network device for `tcp` (None to let ranks choose)
    """

    def __init__(
        self, launch: MpiLaunch, ranks: int, native: NativeLibraries, transport: tuple[str, str | None], deadline: float
    ) -> None:
        self._launcher: LocalProcess | None = None
        words = (transport[0], transport[1] or "", *map(str, native))

        def start(meeting: str, variables: Mapping[str, str]) -> list[LocalProcess]:
            self._launcher = start_launch(launch, (*words, meeting), variables)
            return [self._launcher]

        super().__init__(ranks, "" if launch.is_here else socket.getfqdn(), start, deadline)
        self.mpi = str(self.hellos[0]["mpi"])

    def close(self, gracefully: bool = True) -> None:
        """End the ranks, the launcher and all its descendants on this machine, even in other process groups."""
        descendants: list[psutil.Process] = []
        if self._launcher is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendants = psutil.Process(self._launcher.pid).children(recursive=True)
            self._launcher = None
        super().close(gracefully)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _death(self, otherwise: str = "", rank: int | None = None) -> RunStopped:
        """Return the failure to report after a rank's death. A rank killed by a signal is named as the cause.

        otherwise, rank: reason and rank to report if the output of the ranks' shells does not show a death
        """
        time.sleep(_SETTLE_S)
        said = [b"", b""] if self._launcher is None else [self._launcher.read(name) for name in (STDOUT, STDERR)]
        deaths = [(int(number), int(code)) for number, code in _DIED.findall(said[0])]
        dead, code = min(deaths, key=lambda death: death[1] <= _SIGNALS, default=(None, 0))
        if code > _SIGNALS:
            message = f"rank {dead} was killed by {signal.Signals(code - _SIGNALS).name}"
            return RunStopped(FailureKind.CRASH, message, dead)
        if otherwise:
            return RunStopped(FailureKind.CRASH, " ".join(otherwise.split()), rank)  # MPI's own errors have many lines
        text = _DIED.sub(b"", b"\n".join(said)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # The launcher's own last line gives no reason; ssh or the ranks have printed the reason before it.
        reasons = [line for line in lines if not line.startswith("[mpiexec@")]
        who = "the MPI job ended" if dead is None else f"rank {dead} failed"
        return RunStopped(FailureKind.CRASH, f"{who}: {(reasons or lines or ['no reason given'])[-1]}", dead)


class MpiRunner(LiveRunner[MpiRanks]):
    """Implements `Runner` with one MPI process per rank.

    fabric: name of the fabric; needed only if several fabrics have the topology
    where:  `fabric`, `cluster` or `loopback`; None for the topology's fabric if it is up, else the cluster.
            Loopback measures this machine, not a network
    hosts:  comma-separated list of cluster hosts in rank order, or @FILE with one per line; None for the allocation of
            the scheduler job to which this process belongs
    transport: `mpi` for MPI messages, `tcp` for the engine's connections over TCP, or over shared memory within a host
    interface: network device for the engine's TCP; None for the fabric's device, else the first device that is up
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
        """Return `mpi`, the name for the plain MPI call, in which MPI chooses the algorithm."""
        return ("mpi",)

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        yield from super()._faults(request)
        reduces = any(program.collective.reduces for program in request.without_plans.values())
        if request.library and reduces and request.dtype in ("bfloat16", "float16"):
            yield FailureKind.REJECTED, f"MPI has no sum of its own for {request.dtype}"

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
        more = {"limit_s": request.timeout_s}
        programs = list(request.without_plans.values())
        group.load_parts(programs, request.library, more, deadline, "the programs were loaded")
        rounds = MeasurementRounds(group, request, deadline)
        results = rounds.measure()
        environment["clock_error_us"] = group.clock_error_s * 1e6
        return Measurement(self.name, results, environment, rounds.traces)
