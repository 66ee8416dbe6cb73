"""The MPI job as the runner sees it, and its ranks: a launcher that is started, fed with commands and ended."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from chorale.runners.api.base import FailureKind, StuckInstruction
from chorale.runners.execution.rank_part import RankPart
from chorale.runners.execution.rounds import DeadlinePassed, RunStopped
from chorale.runners.mpi.launch import SCRIPT, MpiLaunch
from chorale.runners.mpi.messages import DIED, READY_FOR_MORE, Message, NativeLibraries, decode_line, encode_pieces
from chorale.runners.process_launch.placement import RankHost
from chorale.runners.process_launch.processes import end_guarded, start_guarded
from chorale.runners.process_launch.slurm import STEP_GRACE_S, launcher_environment, new_step_name, require_steps_ended
from chorale.synth.programs.program import Program

_KEPT_LINES = 200
_LEAVE_S = 3.0
_OTHERS_S = 0.5  # for more ranks to say that they died, after the first


class JobEnded(Exception):  # noqa: N818 - an event for the caller, never shown to people
    """A rank has died or the launcher is gone; `MpiJob.deaths` and `output_tail` say more."""


class MpiJob:
    """A guarded launcher, with pipes to rank 0 of its job. When it ends, its ranks end on all hosts. If the ranks are
    steps of a Slurm job, those must be ended first.
    """

    def __init__(self, launch: MpiLaunch) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chorale-mpi-")
        folder = Path(self._folder.name)
        self._errors = (folder / "stderr.txt").open("w+b")
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._received = b""
        self._documents: deque[Message] = deque()
        self._step_name = new_step_name() if launch.in_steps else None
        script = folder / "launcher"
        script.write_text(launch.script)
        script.chmod(0o700)
        # An MPI puts its files where they are removed, whatever its end.
        environment = {"TMPDIR": self._folder.name} if launch.is_here else {}
        if self._step_name is not None:
            environment = launcher_environment(str(script), self._step_name)
        commands, self._commands = os.pipe()
        try:
            self._process = start_guarded(
                [str(script) if word == SCRIPT else word for word in launch.argv],
                folder,
                self._grace_s,
                f"/dev/fd/{commands}",
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **launch.environment, **environment},
                pass_fds=[commands],
            )
        except BaseException:
            os.close(self._commands)
            self._clean()
            raise
        finally:
            os.close(commands)

    def send(self, document: Message, deadline: float) -> None:
        """Give `document` to rank 0. Raises TimeoutError when `deadline` passes, JobEnded when the job is gone."""
        lines = list(encode_pieces(document))
        for number, line in enumerate(lines):
            try:
                os.write(self._commands, line)  # shorter than a pipe, which is empty
            except BrokenPipeError:
                raise JobEnded from None
            if number < len(lines) - 1:
                while READY_FOR_MORE not in self._documents:
                    self._listen(deadline)
                self._documents.remove(READY_FOR_MORE)

    def receive(self, deadline: float) -> Message:
        """Return the next document of rank 0; raises as `send` does."""
        while not self._documents:
            self._listen(deadline)
        return self._documents.popleft()

    def deaths(self) -> list[tuple[int, int]]:
        """Return (rank, exit code as a shell has it) of the ranks of a job that has ended, in the order of dying."""
        deadline = time.monotonic() + _OTHERS_S
        with contextlib.suppress(EOFError, TimeoutError):
            while True:
                self._read(deadline)
        return [(message["rank"], message["code"]) for message in self._documents if message["answer"] == DIED]

    def output_tail(self) -> list[str]:
        """Return the last lines that the launcher and the ranks printed for people."""
        self._errors.seek(0)
        return [*self._lines, *self._errors.read().decode(errors="replace").splitlines()[-_KEPT_LINES:]]

    def close(self, gracefully: bool) -> None:
        """End the job: with `gracefully` the ranks leave by themselves, otherwise they are killed."""
        os.close(self._commands)
        if gracefully:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
        descendants: list[psutil.Process] = []  # what the launcher has started here, maybe in groups of its own
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        end_guarded(self._process, self._grace_s)
        kill_processes(descendants)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._clean()
        if self._step_name is not None:
            require_steps_ended(self._step_name)

    @property
    def _grace_s(self) -> float:
        return 0.0 if self._step_name is None else STEP_GRACE_S

    def _clean(self) -> None:
        self._errors.close()
        self._folder.cleanup()

    def _listen(self, deadline: float) -> None:
        """Wait for documents. Raises JobEnded if the next one reports the death of a rank."""
        try:
            self._read(deadline)
        except EOFError:
            raise JobEnded from None
        if any(message["answer"] == DIED for message in self._documents):
            raise JobEnded

    def _read(self, deadline: float) -> None:
        """Take what comes next on the job's standard output."""
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
        content = os.read(stream.fileno(), 2**16)
        if not content:
            raise EOFError
        *lines, self._received = (self._received + content).split(b"\n")
        for line in lines:
            document = decode_line(line)
            if document is None:
                self._lines.append(line.decode(errors="replace"))
            else:
                self._documents.append(document)


def kill_processes(processes: Sequence[psutil.Process]) -> None:
    """Kill those that still run."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


_LEAD_S = 0.01  # from the order to start until the start, so that every rank has heard it
_LEAD_PER_RANK_S = 0.0005
_ANSWER_S = 1.0  # for what is left to say after a failure
_SIGNALS = 128  # a shell adds this to the signal that ended a process
_ANSWER_TO = {"load": "loaded", "prepare": "ready", "check": "checked", "trace": "traced"}


class MpiRankGroup:
    """Implements `RankGroup` by an MPI job, commanded through rank 0; after RunStopped only good for `close`."""

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
            [RankPart.of(program, rank).to_json() for program in programs] + [call] * len(library)
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
        """Return the stuck blocks of each rank, None for a rank that does not answer; only rank 0 if not even it
        answers.
        """
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
            kill_processes(self._processes)  # where a network is cut, those behind it do not notice the end

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
        said = [line.strip() for line in self._job.output_tail() if line.strip()]
        # The launcher's own last line only says that it waited in vain; ssh and the ranks said why before.
        reasons = [line for line in said if not line.startswith("[mpiexec@")]
        last = (reasons or said or ["no reason given"])[-1]
        who = "the MPI job ended" if rank is None else f"rank {rank} failed"
        return RunStopped(FailureKind.CRASH, f"{who}: {last}", rank)
