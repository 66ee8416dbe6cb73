"""Emulated hosts: network namespaces on one bridge, each with processes, shared memory and a Ray node of its own.

They share the file system, as hosts with a file server do, but for `/run`, where Ray's sessions are. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from chorale.runners.fabric.fabric import NamespaceHolder
from chorale.synth.errors import Unavailable

ROOT = Path(__file__).parents[3]
PORT = 6379
LIMIT_S = 120.0
OBJECT_STORE_BYTES = 100 * 2**20

HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""What docs/operations/faults.md recommends for heads: a host that is gone is known after some 9 s, not 65 s."""

BRIDGE = "ip link add bridge type bridge && ip link set bridge up"
_HOST = """
ip netns add host{number}
ip link add host{number} type veth peer name eth0 netns host{number}
ip link set host{number} master bridge up
ip -n host{number} link set lo up
ip -n host{number} link set eth0 up
ip -n host{number} address add {address}/24 dev eth0
"""
_LIVE = """
mount -t tmpfs none /run && mount -t tmpfs none /dev/shm && mount -t proc proc /proc || exit 1
hostname $0 && echo up && exec cat
"""


class Host:
    """A host: its first process, and the device of the bridge to which its cable leads."""

    def __init__(self, number: int, holder: NamespaceHolder) -> None:
        self.address = f"10.97.0.{number + 1}"
        self._name = f"host{number}"
        self._holder = holder
        holder.run(_HOST.format(number=number, address=self.address))
        network = f"--net=/proc/{holder.pid}/root/run/netns/{self._name}"
        isolated = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
        command = ["nsenter", network, *isolated, "sh", "-c", _LIVE, self._name]
        # Its complaint is that it cannot wait as it would like to, once this test kills what it started.
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **pipes, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "up\n":
            raise Unavailable("emulated hosts need namespaces", self._name, "use root")
        self.first = psutil.Process(self._process.pid).children()[0]

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that starts the command after it on this host."""
        return ("nsenter", f"--target={self.first.pid}", "--mount", "--net", "--pid", "--uts")

    def join(self, environment: dict[str, str], head: Host | None, cpus: int = 2) -> None:
        """Start a Ray node: the head, or one that joins it."""
        role = (
            ["--head", f"--port={PORT}", "--include-dashboard=false", "--temp-dir=/run/ray"]
            if head is None
            else [f"--address={head.address}:{PORT}"]
        )
        size = [f"--num-cpus={cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        ray = str(Path(sys.executable).with_name("ray"))
        command = [*self.prefix, ray, "start", *role, f"--node-ip-address={self.address}", *size]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def link(self, state: str) -> None:
        """Pull the cable out ("down") or put it in again ("up")."""
        self._holder.run(f"ip link set {self._name} {state}")

    def squeeze(self) -> None:
        """Let through 256 kbit/s towards the host; what does not fit into 8 KiB is lost."""
        self._holder.run(f"tc qdisc replace dev {self._name} root tbf rate 256kbit burst 2kb limit 8kb")

    def kill(self) -> None:
        """Take the power away: every process of the host ends at once, and nobody answers for it any more."""
        self.link("down")
        self.first.kill()
        self._process.wait()

    def close(self) -> None:
        """End every process of the host, if there are any, and let go of it."""
        with suppress(psutil.Error):
            self.first.kill()
        self._process.wait(LIMIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def environment(home: Path) -> dict[str, str]:
    settings = {"CHORALE_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    cluster = {"RAY_AUTH_MODE": "disabled", "CHORALE_INSECURE_CLUSTER": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **settings, **cluster, **HEALTH, "RAY_memory_monitor_refresh_ms": "0"}


@contextmanager
def cluster(count: int, home: Path) -> Iterator[list[Host]]:
    """Give `count` hosts with a Ray node each; the first is the head. All ends with the `with`."""
    holder = NamespaceHolder("faults")
    hosts: list[Host] = []
    try:
        holder.run(BRIDGE)
        for number in range(count):
            hosts.append(Host(number, holder))
            hosts[-1].join(environment(home), hosts[0] if number else None)
        yield hosts
    finally:
        for host in hosts:
            host.close()
        holder.close()
