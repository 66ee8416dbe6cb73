"""Interfaces for starting processes: a host, a process on it, and a cluster that lends hosts with GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chorale.synth.names import unknown_name

FABRIC, CLUSTER, LOOPBACK = "fabric", "cluster", "loopback"
NETWORK_KINDS = (FABRIC, CLUSTER, LOOPBACK)


def require_network_kind(where: str | None) -> None:
    """Raise InvalidInput unless `where` is one of NETWORK_KINDS, or None for whichever there is."""
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
        """Return its exit code as `subprocess` does, -N where signal N killed it; None while it runs."""
        ...

    def read(self, name: str) -> bytes:
        """Return what the file `name` of the working folder holds now, nothing where there is no such file."""
        ...

    def kill(self) -> None:
        """Kill it and every process of its group. Safe to call twice."""
        ...

    def close(self) -> None:
        """Kill what still runs and remove the working folder. Safe to call twice."""
        ...


class Host(Protocol):
    """Somewhere a process can be started. `address` is the IP address where processes elsewhere reach it."""

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
        """Return nodes for `ranks` processes with a GPU each; Unavailable if there are not enough."""
        ...

    def release(self) -> None:
        """End what runs on the nodes that are lent. Safe to call twice."""
        ...
