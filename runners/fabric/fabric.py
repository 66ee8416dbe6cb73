"""A fabric that is up: who is where in it, and how to start something there."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import psutil

from chorale.runners.fabric.holder import enter_command
from chorale.runners.fabric.plan import namespace_name, rank_address
from chorale.runners.places.local import LocalHost
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text

# /sys shows the devices of the namespace in which it was mounted.
_ARRIVE = 'mount -t sysfs sys /sys 2>/dev/null; hostname "$0" && exec "$@"'
_FORMAT = "chorale-fabric/1"
_PLAIN = ("name", "spec", "topology_id", "ranks", "switches", "bits_per_s", "in_user_namespace")


@dataclass(frozen=True, slots=True)
class EmulatedFabric:
    """A network of namespaces, one for each rank and switch of a topology.

    bits_per_s: what all links carry together when all are busy
    pid:        the process that keeps the namespaces
    """

    name: str
    spec: str
    topology_id: str
    link_mbps: Fraction
    ranks: int
    switches: int
    bits_per_s: int
    in_user_namespace: bool
    pid: int

    def address(self, rank: int) -> str:
        """Return the IP address where the other ranks reach `rank`."""
        self._require_rank(rank)
        return rank_address(rank)

    def hostname(self, rank: int) -> str:
        """Return the name that `rank` has as a host, which is also that of its namespace."""
        self._require_rank(rank)
        return namespace_name(self.name, rank)

    def command_prefix(self, rank: int, from_inside: bool = False) -> tuple[str, ...]:
        """Return the command that starts (by exec) the command after it as a process on `rank`.

        The process sees the files, and keeps the working folder, of whoever starts it; network and host name are
        the rank's. Whoever is not root looks like root to it. `from_inside`: whoever starts it is on a node of this
        fabric already.
        """
        namespace = f"--net=/proc/{self.pid}/root/run/netns/{self.hostname(rank)}"
        # Root needs no user namespace to enter, and would lose its rights on the files of others in it.
        enter_user = self.in_user_namespace and not from_inside and os.geteuid() != 0
        enter = enter_command(self.pid, enter_user, namespace)
        return (*enter, "unshare", "--mount", "--uts", "sh", "-c", _ARRIVE, self.hostname(rank))

    def hosts(self) -> tuple[LocalHost, ...]:
        """Return where the processes of all ranks are started, in the order of the ranks."""
        return tuple(LocalHost(self.address(rank), self.command_prefix(rank)) for rank in range(self.ranks))

    def networks(self) -> frozenset[str]:
        """Return its network namespaces as /proc names them."""
        folder = Path(f"/proc/{self.pid}/root/run/netns")
        nodes = range(self.ranks + self.switches)
        return frozenset(f"net:[{(folder / namespace_name(self.name, node)).stat().st_ino}]" for node in nodes)

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise InvalidInput(f"a rank of fabric {self.name} must be 0 to {self.ranks - 1}", rank, "name another")

    def to_line(self) -> str:
        """Return all but the process id as one line of text."""
        facts = {"format": _FORMAT, "link_mbps": rational_text(self.link_mbps)}
        facts |= {key: getattr(self, key) for key in _PLAIN}
        return json.dumps(facts)

    @staticmethod
    def from_line(line: str, pid: int) -> EmulatedFabric | None:
        """Return the fabric of `to_line`, None where another version wrote it."""
        facts = json.loads(line)
        if facts.pop("format") != _FORMAT:
            return None
        return EmulatedFabric(link_mbps=Fraction(facts.pop("link_mbps")), pid=pid, **facts)


def processes_in(networks: frozenset[str]) -> list[int]:
    """Return the ids of this user's processes that run in any of `networks`."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # others' processes, and those that are gone by now
            if os.readlink(f"/proc/{pid}/ns/net") in networks:
                found.append(pid)
    return found
