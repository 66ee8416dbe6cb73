"""Interfaces for starting processes: a host, a process on it, and a cluster that lends hosts with GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.names import unknown_name

FABRIC, CLUSTER, LOOPBACK = "fabric", "cluster", "loopback"
NETWORK_KINDS = (FABRIC, CLUSTER, LOOPBACK)


def require_network_kind(where: str | None) -> None:
    """Raise InvalidInput unless `where` is one of NETWORK_KINDS, or None for any."""
    if where not in (None, *NETWORK_KINDS):
        raise unknown_name("place to run", str(where), NETWORK_KINDS)


STDOUT = "stdout.txt"
STDERR = "stderr.txt"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start in a fresh working folder.

    argv:        the command; `./name` runs one of `files`.
    environment: variables besides those that the host has anyway.
    files:       plain name -> content, put into the folder before the start; all may be executed.
    grace_s:     how long it may take to end by itself (SIGTERM) before it is killed: for one that has others to end
                 elsewhere.

    What the process writes to its standard streams is in the files `STDOUT` and `STDERR` of the folder. Its
    standard input is empty.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    grace_s: float = 0.0


class ProcessHandle(Protocol):
    """A process that was started. It dies when whoever started it is gone, however that ended."""

    def poll(self) -> int | None:
        """Return the exit code as `subprocess` does, -N if signal N killed it; None while it runs."""
        ...

    def read(self, name: str) -> bytes:
        """Return the current content of the file `name` in the working folder, empty if there is no such file."""
        ...

    def kill(self) -> None:
        """Kill it and every process of its group. Safe to call twice."""
        ...

    def close(self) -> None:
        """Kill what still runs and remove the working folder. Safe to call twice."""
        ...


class Host(Protocol):
    """A place where processes can be started. `address` is the IP address at which processes elsewhere reach it."""

    @property
    def address(self) -> str: ...

    def start(self, spec: ProcessSpec) -> ProcessHandle:
        """Start a process; a command that is not there ends with code 127. Unavailable if nothing can be started."""
        ...


@dataclass(frozen=True, slots=True)
class LeasedHosts:
    """Nodes in the order of their ranks, each with as many GPUs for us."""

    hosts: Sequence[Host]
    gpus_per_node: int


class GpuCluster(Protocol):
    """Lends nodes one request at a time. A cluster is used by one thread."""

    def lease(self, ranks: int, gpus_per_node: int | None) -> LeasedHosts:
        """Return nodes for `ranks` processes with a GPU each. Raises Unavailable if there are not enough."""
        ...

    def release(self) -> None:
        """End what runs on the nodes that are lent. Safe to call twice."""
        ...


LOOPBACK_ADDRESS = "127.0.0.1"
_POLL_S = 0.02

_GUARD = """
folder=$1 grace=$2 input=$3
shift 3
exec 3<&0
(trap '' TERM; read _ <&3; [ "$grace" = 0 ] || { kill -TERM 0; sleep "$grace"; }
rm -rf "$folder" || rm -rf "$folder"; kill -KILL 0) >/dev/null 2>&1 &
exec 3<&-
exec "$@" <"$input"
"""
"""The shell that becomes the process leaves a guard in its group: once the pipe from the owner ends without a word, the
folder goes and all are killed. A process may be writing into the folder just then, hence the second try. One that has
others to end elsewhere is asked to end first, and given some seconds."""


def start_guarded(
    argv: Sequence[str], folder: Path, grace_s: float = 0.0, standard_input: str = os.devnull, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a command in a new process group. When this process ends, the group is killed and `folder` is removed.

    grace_s: see `ProcessSpec`; options: for Popen
    """
    guarded = ["/bin/sh", "-c", _GUARD, "sh", str(folder), f"{grace_s:g}", standard_input, *argv]
    return subprocess.Popen(guarded, stdin=subprocess.PIPE, start_new_session=True, **options)  # noqa: S603


def end_guarded(process: subprocess.Popen[bytes], grace_s: float = 0.0) -> None:
    """Kill a process of `start_guarded`, its descendants and the guard. Safe to call twice."""
    if process.stdin is None or process.stdin.closed:
        return
    # The guard lives as long as the pipe, so that until here the group's number belongs to nobody else.
    with contextlib.suppress(ProcessLookupError):
        if grace_s and process.poll() is None:
            # Ask to end and wait until only the guard is left.
            os.killpg(process.pid, signal.SIGTERM)
            deadline_s = time.monotonic() + grace_s
            while time.monotonic() < deadline_s and any(map(_is_asked_to_end, _members(process.pid))):
                time.sleep(_POLL_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    process.wait()


def rank_environment() -> dict[str, str]:
    """Return variables of ranks in Python: our modules, and one thread, as there may be more ranks than cores."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}


_WATCH = 'trap \'\' HUP INT TERM USR1 USR2; read _; sleep 6; rm -rf "$1" || rm -rf "$1"'
"""Processes that write into the folder get a few seconds to end: the processes of a step, see `ProcessSpec.grace_s`."""


class LocalHost:
    """Implements `Host` with processes on this machine, each in its own process group.

    prefix: command that starts its arguments elsewhere, such as in a namespace; it must `exec` them
    """

    def __init__(self, address: str = LOOPBACK_ADDRESS, prefix: tuple[str, ...] = ()) -> None:
        self.address = address
        self._prefix = prefix

    def start(self, spec: ProcessSpec) -> LocalProcess:
        """Start a process; see `Host.start`."""
        folder = tempfile.TemporaryDirectory(prefix="chorale-")
        path = Path(folder.name)
        try:
            for name, content in spec.files.items():
                file = path / _plain(name)
                file.write_bytes(content)
                file.chmod(0o700)
            with (path / STDOUT).open("wb") as output, (path / STDERR).open("wb") as errors:
                process = start_guarded(
                    (*self._prefix, *spec.argv),
                    path,
                    spec.grace_s,
                    cwd=path,
                    env={**os.environ, **spec.environment},
                    stdout=output,
                    stderr=errors,
                )
            return LocalProcess(folder, process, spec.grace_s)
        except OSError as error:
            folder.cleanup()
            raise Unavailable("a process must be able to start", error, "check the command and the disk") from error
        except BaseException:
            folder.cleanup()
            raise


class LocalProcess:
    """Implements `chorale.runners.process_launch.processes.ProcessHandle`."""

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
        """Kill the group: the process, its descendants and the guard."""
        end_guarded(self._process, self._grace_s)

    def close(self) -> None:
        """Kill what runs and remove the folder."""
        self.kill()
        if not self._is_closed:
            self._is_closed = True
            self._folder.cleanup()


@contextlib.contextmanager
def watched_folder(prefix: str, parent: Path | None) -> Iterator[Path]:
    """Create a folder in `parent` (default: the system's temporary folder) for the block; it is removed with this
    process.

    A separate shell removes the folder if this process is killed.
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


def _members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _is_asked_to_end(process: psutil.Process) -> bool:
    """Return whether SIGTERM ends a process that still runs. Guards ignore it."""
    with contextlib.suppress(OSError, psutil.Error):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        return not int(ignored, 16) >> (signal.SIGTERM - 1) & 1
    return False


def _plain(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidInput("a file of a job must have a plain name", name, "leave folders out")
    return name


_LINE = re.compile(rb"^HYDRA_LAUNCH: ([^\n]*--proxy-id (\d+)[^\n]*)\n", re.MULTILINE)
_WITHOUT_NODE_NAME = ("env", "-u", "SLURMD_NODENAME")
"""mpiexec hands its variables to all ranks, which would take its node in a job of Slurm for theirs."""

MANUAL_LAUNCHER_ENVIRONMENT = {"HYDRA_LAUNCHER": "manual"}


class MpichHost:
    """Implements `Host`: the job starts at `head`; its `mpiexec` starts processes at `nodes`.

    The nodes are those of `-hosts`, in the same order, and all have MPICH's `mpiexec`. A job may call it several times,
    one after the other.
    """

    def __init__(self, nodes: Sequence[Host], head: Host | None = None) -> None:
        self._nodes = nodes
        self._head = head or LocalHost()
        self.address = self._head.address

    def start(self, spec: ProcessSpec) -> MpichLaunch:
        """Start a job; see `Host.start`."""
        environment = {**spec.environment, **MANUAL_LAUNCHER_ENVIRONMENT}
        argv = (*_WITHOUT_NODE_NAME, *spec.argv)
        return MpichLaunch(self._head.start(replace(spec, argv=argv, environment=environment)), self._nodes)


class MpichLaunch:
    """Implements `ProcessHandle`. Proxies are started when `poll` finds that they are asked for."""

    def __init__(self, head: ProcessHandle, nodes: Sequence[Host]) -> None:
        self._head = head
        self._nodes = nodes
        self._proxies: list[ProcessHandle] = []

    def poll(self) -> int | None:
        """Return the exit code of the job, None while it runs."""
        code = self._head.poll()
        if code is None:
            requests = list(_LINE.finditer(self._head.read(STDOUT)))
            for match in requests[len(self._proxies) :]:
                node = self._nodes[int(match[2]) % len(self._nodes)]
                self._proxies.append(node.start(ProcessSpec(tuple(shlex.split(match[1].decode())))))
        return code

    def read(self, name: str) -> bytes:
        """Return what a file of the job's working folder holds now."""
        return self._head.read(name)

    def kill(self) -> None:
        """Kill the job and all proxies with what they started."""
        for started in (self._head, *self._proxies):
            started.kill()

    def close(self) -> None:
        """Kill what runs and remove the folders."""
        for started in (self._head, *self._proxies):
            started.close()
