"""Processes on this machine: as they are, or behind a command that puts them where they belong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from chorale.runners.process_launch.base import STDERR, STDOUT, ProcessSpec
from chorale.synth.errors import InvalidInput, Unavailable

LOOPBACK_ADDRESS = "127.0.0.1"

_GUARD = """
folder=$1
shift
exec 3<&0
(read _ <&3; rm -rf "$folder" || rm -rf "$folder"; kill -KILL 0) &
exec 3<&-
exec "$@" </dev/null
"""
"""The shell that becomes the process leaves a guard in its group: once the pipe from the owner ends without a word, the
folder goes and all are killed. A process may be writing into the folder just then, hence the second try."""


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
            return LocalProcess(folder, self._spawn(Path(folder.name), spec))
        except OSError as error:
            folder.cleanup()
            raise Unavailable("a process must be able to start", error, "check the command and the disk") from error
        except BaseException:
            folder.cleanup()
            raise

    def _spawn(self, folder: Path, spec: ProcessSpec) -> subprocess.Popen[bytes]:
        with (folder / STDOUT).open("wb") as output, (folder / STDERR).open("wb") as errors:
            return subprocess.Popen(  # noqa: S603 - the command is the caller's
                ["/bin/sh", "-c", _GUARD, "sh", str(folder), *self._prefix, *spec.argv],
                cwd=folder,
                env={**os.environ, **spec.environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )


class LocalProcess:
    """Implements `chorale.runners.process_launch.base.ProcessHandle`."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str], process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process
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
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()

    def close(self) -> None:
        """Kill what runs and remove the folder."""
        self.kill()
        if not self._is_closed:
            self._is_closed = True
            self._folder.cleanup()


def _fill(folder: Path, spec: ProcessSpec) -> None:
    for name, content in spec.files.items():
        path = folder / _plain(name)
        path.write_bytes(content)
        path.chmod(0o700)


def _plain(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidInput("a file of a job must have a plain name", name, "leave folders out")
    return name
