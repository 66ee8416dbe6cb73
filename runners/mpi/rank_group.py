"""The ranks of an MPI job, commanded through rank 0; what goes wrong becomes RunStopped."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence

import psutil

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped, StuckInstruction
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.job import JobEnded, MpiJob
from chorale.runners.mpi.launch import MpiLaunch
from chorale.runners.mpi.native_libraries import NativeLibraries
from chorale.runners.process_launch.placement import RankHost
from chorale.synth.programs.program import Program

_LEAD_S = 0.01  # from the order to start until the start, so that every rank has heard it
_LEAD_PER_RANK_S = 0.0005
_ANSWER_S = 1.0  # for what is left to say after a failure
_SIGNALS = 128  # a shell adds this to the signal that ended a process


class MpiRankGroup:
    """Implements `RankGroup` with one MPI job; after RunStopped it is only good for `close`."""

    def __init__(self, launch: MpiLaunch, ranks: int, deadline: float) -> None:
        self.ranks = range(ranks)
        self.pids: list[int] = []
        self.clock_error_s = 0.0
        self._is_closed = False
        self._processes: list[psutil.Process] = []
        self._job = MpiJob(launch)
        try:
            hellos = self._answers("hello", deadline, "the ranks were started")
        except BaseException:
            self.close(gracefully=False)
            raise
        self.pids = [hellos[rank]["pid"] for rank in self.ranks]
        self.mpi = str(hellos[0]["mpi"])
        self.rank_hosts = {rank: RankHost.of_words(hellos[rank]["host"]) for rank in self.ranks}
        self._processes = [psutil.Process(pid) for pid in self.pids] if launch.is_here else []

    def load(
        self,
        programs: Sequence[Program],
        library: Sequence[str],
        native: NativeLibraries,
        transport: tuple[str, str | None],
        deadline: float,
    ) -> None:
        """Give every rank its part of `programs`, and then of MPI's algorithms `library` for the same collective.

        transport: `mpi` or `tcp`, and the device of the latter
        """
        call = RankPart.of_library(programs[0].collective, len(self.ranks)).to_json()
        parts = [
            [RankPart.of_program(program, rank).to_json() for program in programs] + [call] * len(library)
            for rank in self.ranks
        ]
        command = {
            "do": "load",
            "libraries": [str(native.engine), str(native.messages)],
            "transport": transport,
            "limit_s": deadline - time.monotonic(),
            "library": list(library),
            "each": parts,
        }
        self.request(command, deadline, "the programs were loaded")

    def request(self, command: Message, deadline: float, doing: str) -> Mapping[int, Message]:
        """Give `command` to every rank and return the answer of each."""
        self._send(command, deadline, doing)
        return self._answers(_ANSWER_TO[command["do"]], deadline, doing)

    def timed_start(self, deadline: float, doing: str) -> float:
        """Start all ranks at one time; return the seconds from then to the last one's end, on the clock of rank 0."""
        lead_s = _LEAD_S + _LEAD_PER_RANK_S * len(self.ranks)
        limit_s = deadline - time.monotonic() - lead_s
        self._send({"do": "go", "lead_s": lead_s, "limit_s": limit_s}, deadline, doing)
        started = self._receive("started", deadline, doing)
        ends = self._answers("done", deadline, doing)
        self.clock_error_s = max(self.clock_error_s, *(end["clock_error_s"] for end in ends.values()))
        return float(max(end["end"] for end in ends.values()) - started["at"])

    def blocked_ranks(self) -> dict[int, list[StuckInstruction] | None]:
        """Return where each rank is stuck, None for one that is silent; rank 0 alone if not even that one answers."""
        deadline = time.monotonic() + _ANSWER_S
        replies: dict[int, list[StuckInstruction] | None] = {}
        try:
            self._job.send({"do": "status"}, deadline)
            while len(replies) < len(self.ranks):
                answer = self._job.receive(deadline)
                if answer["answer"] == "blocked":
                    replies[answer["rank"]] = [(block, step, why) for block, step, why in answer["blocks"]]
        except (TimeoutError, JobEnded):
            return {rank: replies.get(rank) for rank in self.ranks} if replies else {0: None}
        return replies

    def close(self, gracefully: bool = True) -> None:
        """End the job. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._job.close(gracefully)
            # Where a network is cut, the end of the launcher is not noticed behind the cut.
            for process in self._processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _send(self, command: Message, deadline: float, doing: str) -> None:
        try:
            self._job.send(command, deadline)
        except TimeoutError:
            raise DeadlinePassed(doing) from None
        except JobEnded:
            raise self._death() from None

    def _answers(self, kind: str, deadline: float, doing: str) -> dict[int, Message]:
        replies: dict[int, Message] = {}
        while len(replies) < len(self.ranks):
            answer = self._receive(kind, deadline, doing)
            replies[answer["rank"]] = answer
        return replies

    def _receive(self, kind: str, deadline: float, doing: str) -> Message:
        try:
            answer = self._job.receive(deadline)
        except TimeoutError:
            raise DeadlinePassed(doing) from None
        except JobEnded:
            raise self._death() from None
        if answer["answer"] != kind:
            if self._job.deaths():
                raise self._death()
            message = answer.get("message", f"it said {answer['answer']} instead of {kind}")
            reason = " ".join(str(message).split())  # MPI's own errors have many lines
            raise RunStopped(FailureKind.CRASH, f"rank {answer['rank']} failed: {reason}", answer["rank"])
        return answer

    def _death(self) -> RunStopped:
        """Return who died of what. A rank that was killed is the cause of others that fail after it."""
        deaths = self._job.deaths()
        rank, code = min(deaths, key=lambda death: death[1] <= _SIGNALS, default=(None, 0))
        if code > _SIGNALS:
            message = f"rank {rank} was killed by {signal.Signals(code - _SIGNALS).name}"
            return RunStopped(FailureKind.CRASH, message, rank)
        last = next((line.strip() for line in reversed(self._job.output_tail()) if line.strip()), "no reason given")
        who = "the MPI job ended" if rank is None else f"rank {rank} failed"
        return RunStopped(FailureKind.CRASH, f"{who}: {last}", rank)


_ANSWER_TO = {"load": "loaded", "prepare": "ready", "check": "checked", "trace": "traced"}
