"""MPICH's mpiexec without ssh: its manual launcher prints what to start on each node, and hosts start it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from chorale.runners.process_launch.base import STDOUT, Host, ProcessHandle, ProcessSpec
from chorale.runners.process_launch.local import LocalHost

_LINE = re.compile(rb"^HYDRA_LAUNCH: ([^\n]*--proxy-id (\d+)[^\n]*)\n", re.MULTILINE)
_WITHOUT_NODE_NAME = ("env", "-u", "SLURMD_NODENAME")
"""mpiexec hands its variables to all ranks, which would take its node in a job of Slurm for theirs."""

MANUAL_LAUNCHER_ENVIRONMENT = {"HYDRA_LAUNCHER": "manual"}


class MpichHost:
    """Implements `Host`: the job starts at `head`, and what its `mpiexec` asks for at `nodes`.

    The nodes are those of `-hosts`, in the same order, and `mpiexec` is that of MPICH on all of them. A job may call it
    several times, one after the other.
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
