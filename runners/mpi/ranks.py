"""The ranks of an MPI job as the runner sees them: started by a launcher, connected to the runner, and ended."""

import contextlib
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence

import psutil

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.rounds import RunStopped
from chorale.runners.execution.started_ranks import StartedRanks
from chorale.runners.mpi.launch import MpiLaunch, start_launch
from chorale.runners.mpi.messages import NativeLibraries
from chorale.runners.process_launch.processes import STDERR, STDOUT, LocalProcess
from chorale.runners.process_launch.slurm import SlurmProcess
from chorale.synth.programs.program import Program

_SETTLE_S = 0.5  # time until all deaths are reported, to distinguish a killed rank from ranks that lost a neighbour
_SIGNALS = 128  # a shell adds this to the signal that ended a process
_DIED = re.compile(rb"^chorale: rank (-?\d+) ended with code (\d+)$", re.MULTILINE)


class MpiRanks(StartedRanks):
    """The ranks of one MPI job, which serves one request after another.

    transport: (`mpi` or `tcp`, network device for `tcp`)
    """

    def __init__(
        self,
        launch: MpiLaunch,
        ranks: int,
        native: NativeLibraries,
        transport: tuple[str, str | None],
        deadline: float,
    ) -> None:
        self._launcher: LocalProcess | SlurmProcess | None = None
        words = (transport[0], transport[1] or "", *map(str, native))

        def start(meeting: str, variables: Mapping[str, str]) -> list[LocalProcess | SlurmProcess]:
            self._launcher = start_launch(launch, (*words, meeting), variables)
            return [self._launcher]

        super().__init__(ranks, "" if launch.is_here else socket.getfqdn(), start, deadline)
        self.mpi = str(self.hellos[0]["mpi"])

    def load(self, programs: Sequence[Program], library: Sequence[str], deadline: float) -> None:
        """Send every rank its parts: first of `programs`, then of MPI's algorithms `library` for the same
        collective.
        """
        call = RankPart.of_library(programs[0].collective, len(self.ranks)).to_json()
        head = {"do": "load", "limit_s": deadline - time.monotonic(), "library": list(library)}
        commands = [
            head | {"part": [RankPart.of(one, rank).to_json() for one in programs] + [call] * len(library)}
            for rank in self.ranks
        ]
        self.request(commands, deadline, "the programs were loaded")

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
        """Return the failure to report after a rank's death. If a signal killed a rank, it caused the other deaths.

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
        # The launcher's own last line gives no reason; ssh and the ranks have printed it before.
        reasons = [line for line in lines if not line.startswith("[mpiexec@")]
        who = "the MPI job ended" if dead is None else f"rank {dead} failed"
        return RunStopped(FailureKind.CRASH, f"{who}: {(reasons or lines or ['no reason given'])[-1]}", dead)
