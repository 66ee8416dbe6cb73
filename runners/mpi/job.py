"""The MPI job as the runner sees it: a launcher that is started, fed with commands, listened to and ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path

import psutil

from chorale.runners.mpi.framing import DIED, READY_FOR_MORE, Message, decode_line, encode_pieces
from chorale.runners.mpi.launch import MpiLaunch
from chorale.runners.mpi.mpiexec import SCRIPT
from chorale.runners.process_launch.local import end_group_in_order
from chorale.runners.process_launch.slurm import STEP_GRACE_S, end_steps, launcher_environment, new_step_name
from chorale.synth.errors import Unavailable

_GUARD = (
    "folder=$1; commands=$2; grace=$3; shift 3; exec 3<&0; (trap '' TERM; read _ <&3; "
    '[ "$grace" = 0 ] || { kill -TERM 0; sleep "$grace"; }; rm -rf "$folder"; kill -KILL 0) >/dev/null 2>&1 & '
    'exec 3<&-; exec "$@" <"$commands"'
)
"""The shell that becomes the launcher leaves a guard in its group: once the pipe from the owner ends, the folder is
removed and all are killed. A launcher that is gone takes the ranks along, wherever they are; one whose ranks are steps
of a Slurm job has to end these first."""

_KEPT_LINES = 200
_LEAVE_S = 3.0
_OTHERS_S = 0.5  # for more ranks to say that they died, after the first


class JobEnded(Exception):  # noqa: N818 - an event for the caller, never shown to people
    """A rank has died or the launcher is gone; `MpiJob.deaths` and `output_tail` say more."""


class MpiJob:
    """A launcher in a process group of its own, with pipes to rank 0 of its job."""

    def __init__(self, launch: MpiLaunch) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chorale-mpi-")
        self._errors = (Path(self._folder.name) / "stderr.txt").open("w+b")
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._received = b""
        self._documents: deque[Message] = deque()
        self._step_name = new_step_name() if launch.in_steps else None
        commands, self._commands = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module behind a launcher
                ["/bin/sh", "-c", _GUARD, *self._guard_arguments(commands), *self._argv(launch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **launch.environment, **self._environment(launch)},
                pass_fds=[commands],
                start_new_session=True,
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
                self._await_more(deadline)

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
        """End the job: `gracefully`, so that the ranks leave by themselves, or at once."""
        os.close(self._commands)
        if gracefully:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
        # The guard lives as long as its pipe, so that until here the group's number belongs to nobody else.
        descendants = self._descendants()
        if self._step_name is not None and self._process.poll() is None:
            end_group_in_order(self._process.pid, STEP_GRACE_S)
        os.killpg(self._process.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()
        self._clean()
        if self._step_name is not None and not end_steps(self._step_name):
            way_out = f"see `squeue --steps`, cancel the step {self._step_name}, then measure again"
            raise Unavailable("the step of a measurement must end with it", "it still runs", way_out)

    def _guard_arguments(self, commands: int) -> list[str]:
        grace_s = 0.0 if self._step_name is None else STEP_GRACE_S
        return ["sh", self._folder.name, f"/dev/fd/{commands}", f"{grace_s:g}"]

    def _descendants(self) -> list[psutil.Process]:
        """Return what the launcher has started here, which may be in groups of its own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _environment(self, launch: MpiLaunch) -> dict[str, str]:
        """Return the variables with which an MPI puts its files where they are removed, whatever its end."""
        if self._step_name is not None:
            return launcher_environment(str(self._script), self._step_name)
        return {"TMPDIR": self._folder.name} if launch.is_here else {}

    @property
    def _script(self) -> Path:
        return Path(self._folder.name) / "launcher"

    def _argv(self, launch: MpiLaunch) -> list[str]:
        self._script.write_text(launch.script)
        self._script.chmod(0o700)
        return [str(self._script) if word == SCRIPT else word for word in launch.argv]

    def _clean(self) -> None:
        self._errors.close()
        self._folder.cleanup()

    def _await_more(self, deadline: float) -> None:
        while READY_FOR_MORE not in self._documents:
            self._listen(deadline)
        self._documents.remove(READY_FOR_MORE)

    def _listen(self, deadline: float) -> None:
        """Wait for documents; JobEnded where the next one is the death of a rank."""
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
