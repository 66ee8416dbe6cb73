"""Processes on this machine: as they are, or behind a command that puts them where they belong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from chorale.runners.process_launch.base import STDERR, STDOUT, ProcessSpec
from chorale.synth.errors import InvalidInput, Unavailable

LOOPBACK_ADDRESS = "127.0.0.1"
_POLL_S = 0.02

_GUARD = """
folder=$1 grace=$2
shift 2
exec 3<&0
(trap '' TERM; read _ <&3; [ "$grace" = 0 ] || { kill -TERM 0; sleep "$grace"; }
rm -rf "$folder" || rm -rf "$folder"; kill -KILL 0) &
exec 3<&-
exec "$@" </dev/null
"""
"""The shell that becomes the process leaves a guard in its group: once the pipe from the owner ends without a word, the
folder goes and all are killed. A process may be writing into the folder just then, hence the second try. One that has
others to end elsewhere is asked to end first, and given some seconds."""


_WATCH = 'trap \'\' HUP INT TERM USR1 USR2; read _; sleep 6; rm -rf "$1" || rm -rf "$1"'
"""Processes that write into the folder have some seconds to end: those of a step, see `ProcessSpec.grace_s`."""


class LocalHost:
    """Implements `Host` with processes on this machine, each in a process group of its own.

    prefix: command that starts the command given to it elsewhere, such as in a namespace; it must `exec` it.
    """

    def __init__(self, address: str = LOOPBACK_ADDRESS, prefix: tuple[str, ...] = ()) -> None:
        self.address = address
        self._prefix = prefix

    def start(self, spec: ProcessSpec) -> LocalProcess:
        """Start a process; see `Host.start`."""
        folder = tempfile.TemporaryDirectory(prefix="chorale-")
        try:
            _fill(Path(folder.name), spec)
            return LocalProcess(folder, self._spawn(Path(folder.name), spec), spec.grace_s)
        except OSError as error:
            folder.cleanup()
            raise Unavailable("a process must be able to start", error, "check the command and the disk") from error
        except BaseException:
            folder.cleanup()
            raise

    def _spawn(self, folder: Path, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        with (folder / STDOUT).open("wb") as output, (folder / STDERR).open("wb") as errors:
            return subprocess.Popen(  # noqa: S603 - the command is the caller's
                ["/bin/sh", "-c", _GUARD, "sh", str(folder), f"{spec.grace_s:g}", *self._prefix, *spec.argv],
                cwd=folder,
                env={**os.environ, **spec.environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )


class LocalProcess:
    """Implements `chorale.runners.process_launch.base.ProcessHandle`."""

    def __init__(
        self, folder: tempfile.TemporaryDirectory[str], process: subprocess.Popen[bytes], grace_s: float = 0.0
    ) -> None:
        self._folder = folder
        self._process = process
        self._grace_s = grace_s
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Process id; also the id of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.poll()

    def read(self, name: str) -> bytes:
        """Return what a file of the working folder holds now."""
        path = Path(self._folder.name) / _plain(name)
        return path.read_bytes() if path.exists() else b""

    def kill(self) -> None:
        """Kill the group: the process, what it started, and the guard."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        # The guard lives as long as the pipe, so that until here the group's number belongs to nobody else.
        with contextlib.suppress(ProcessLookupError):
            if self._grace_s and self.poll() is None:
                end_group_in_order(self._process.pid, self._grace_s)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()

    def close(self) -> None:
        """Kill what runs and remove the folder."""
        self.kill()
        if not self._is_closed:
            self._is_closed = True
            self._folder.cleanup()


@contextlib.contextmanager
def watched_folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    """Make a folder in `parent` for the block, by default in the system's temporary folder; it goes with this process.

    A shell beside this process removes the folder where the process ends without a word.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        watcher = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _WATCH, "sh", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield Path(name)
        finally:
            watcher.kill()
            watcher.communicate()


def end_group_in_order(group: int, grace_s: float) -> None:
    """Ask the processes of a group to end and wait until only its guard is left, for `grace_s` at most."""
    os.killpg(group, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s and any(map(_is_asked_to_end, _members(group))):
        time.sleep(_POLL_S)


def _members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _is_asked_to_end(process: psutil.Process) -> bool:
    """Whether SIGTERM ends a process that still runs: guards ignore it."""
    with contextlib.suppress(OSError, psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        return not int(ignored, 16) >> (signal.SIGTERM - 1) & 1
    return False


def _fill(folder: Path, spec: ProcessSpec) -> None:
    for name, content in spec.files.items():
        path = folder / _plain(name)
        path.write_bytes(content)
        path.chmod(0o700)


def _plain(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidInput("a file of a job must have a plain name", name, "leave folders out")
    return name
