"""Starts processes on hosts and limits their memory: defines the interfaces, and implements them for this machine."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from chorale.synth.errors import InvalidInput, Unavailable, unknown_name

FABRIC, CLUSTER, LOOPBACK = "fabric", "cluster", "loopback"
NETWORK_KINDS = (FABRIC, CLUSTER, LOOPBACK)
STDOUT = "stdout.txt"
STDERR = "stderr.txt"
LOOK_S = 0.05
"""Seconds between two checks of a process's memory. In between, the process may exceed its limit."""
_PAGE_BYTES = resource.getpagesize()


def require_network_kind(where: str | None) -> None:
    """Raise InvalidInput unless `where` is one of NETWORK_KINDS, or None for any."""
    if where not in (None, *NETWORK_KINDS):
        raise unknown_name("place to run", str(where), NETWORK_KINDS)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Describes a process to start in a fresh working folder.

    argv:        the command; `./name` runs one of `files`.
    environment: variables in addition to the host's environment.
    files:       file name -> content, written into the folder before the start; all files are executable.
    grace_s:     seconds between SIGTERM and SIGKILL, for processes that must first end processes on other hosts.
    after_kill:  function that is called after a kill if the process was still running; may raise Unavailable.

    The process's standard output and error go to the files `STDOUT` and `STDERR` in the folder. Its standard input
    is empty.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    grace_s: float = 0.0
    after_kill: Callable[[], None] | None = None


class ProcessHandle(Protocol):
    """A started process. It is killed when the process that started it ends for any reason."""

    def poll(self) -> int | None:
        """Return the exit code as `subprocess` does: None while the process runs, -N if signal N killed it."""
        ...

    def read(self, name: str) -> bytes:
        """Return the current content of the file `name` in the working folder; empty if the file does not exist."""
        ...

    def kill(self) -> None:
        """Kill the process and its complete group. Safe to call twice."""
        ...

    def close(self) -> None:
        """Kill all remaining processes and remove the working folder. Safe to call twice."""
        ...


class Host(Protocol):
    """A machine or namespace in which processes can be started. Other hosts reach it at the IP address `address`."""

    @property
    def address(self) -> str: ...

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Start a process. If the command does not exist, the process ends with code 127. Raises Unavailable if no
        process can be started."""
        ...


LOOPBACK_ADDRESS = "127.0.0.1"
_POLL_S = 0.02

_GUARD = """
folder=$1 grace=$2
shift 2
exec 3<&0
(trap '' TERM; read _ <&3; [ "$grace" = 0 ] || { kill -TERM 0; sleep "$grace"; }
rm -rf "$folder" || rm -rf "$folder"; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
exec "$@" </dev/null
"""
"""Before the shell executes the command, it starts a guard in its process group. When the pipe from the owner closes,
the guard removes the folder (twice, because a process may still write into it) and kills the group. If there is a grace
period, the guard first sends SIGTERM and waits."""


def rank_environment() -> dict[str, str]:
    """Return environment variables for Python ranks: the path of Chorale's modules, and one thread per library, because
    there may be more ranks than cores.
    """
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}


class LocalHost:
    """Implements `Host` with processes on this machine, each in its own process group.

    prefix: words to put before a command to run it elsewhere, such as in a namespace; they must run it by exec
    """

    def __init__(self, address: str = LOOPBACK_ADDRESS, prefix: tuple[str, ...] = ()) -> None:
        self.address = address
        self._prefix = prefix

    def start(self, spec: ProcessSpec) -> LocalProcess:
        folder = tempfile.TemporaryDirectory(prefix="chorale-")
        path = Path(folder.name)
        try:
            for name, content in spec.files.items():
                file = path / _plain(name)
                file.write_bytes(content)
                file.chmod(0o700)
            guarded = ["/bin/sh", "-c", _GUARD, "sh", str(path), f"{spec.grace_s:g}", *self._prefix, *spec.argv]
            with (path / STDOUT).open("wb") as output, (path / STDERR).open("wb") as errors:
                process = subprocess.Popen(  # noqa: S603
                    guarded,
                    cwd=path,
                    env={**os.environ, **spec.environment},
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            return LocalProcess(folder, process, spec)
        except OSError as error:
            folder.cleanup()
            raise Unavailable("a process could not start: {}", error, "check the command and the disk") from error
        except BaseException:
            folder.cleanup()
            raise


class LocalProcess:
    """Implements `ProcessHandle`. The process id `pid` is also the id of the process group."""

    def __init__(
        self, folder: tempfile.TemporaryDirectory[str], process: subprocess.Popen[bytes], spec: ProcessSpec
    ) -> None:
        self._folder, self._process, self._spec = folder, process, spec
        self._is_closed = False
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def read(self, name: str) -> bytes:
        path = Path(self._folder.name) / _plain(name)
        return path.read_bytes() if path.exists() else b""

    def kill(self) -> None:
        """Kill the group: the process, its descendants and the guard."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        was_running = self._process.poll() is None
        # The guard process lives until the pipe is closed, so no other process group can have this id yet.
        with contextlib.suppress(ProcessLookupError):
            if self._spec.grace_s and was_running:
                os.killpg(self.pid, signal.SIGTERM)
                deadline_s = time.monotonic() + self._spec.grace_s
                while time.monotonic() < deadline_s and self._process.poll() is None:
                    time.sleep(_POLL_S)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()
        if was_running and self._spec.after_kill is not None:
            self._spec.after_kill()

    def close(self) -> None:
        try:
            self.kill()
        finally:
            if not self._is_closed:
                self._is_closed = True
                self._folder.cleanup()


def _plain(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidInput("{} is not a plain file name", name, "leave out folders")
    return name


def resident_bytes(pid: int | str = "self") -> int:
    """Return the private memory that a process uses, in bytes; 0 if it has ended.

    Only pages that were written count. RLIMIT_DATA, in contrast, would also count memory that is reserved but never
    used, such as thread stacks and malloc arenas. The amount of such memory depends on the machine's load, so with this
    limit, small computations would fail at random.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


@contextlib.contextmanager
def memory_guard(more_bytes: int, exceeded: Callable[[], None]) -> Iterator[None]:
    """Call `exceeded` in another thread if this process's memory grows by `more_bytes` during the block."""
    limit_bytes, over = resident_bytes() + more_bytes, threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            if resident_bytes() > limit_bytes:
                exceeded()
                return

    threading.Thread(target=look, name="memory-guard", daemon=True).start()
    try:
        yield
    finally:
        over.set()
