"""Emulated fabrics: bring them up, find those of this user, start processes in them, take them down."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import psutil

from chorale.runners.fabric.holder import NamespaceHolder, detached_states, end_process, enter_command
from chorale.runners.fabric.link_facts import FabricLinks
from chorale.runners.fabric.link_options import LinkOptions
from chorale.runners.fabric.links import lay_links
from chorale.runners.fabric.plan import namespace_name, plan_fabric, rank_address
from chorale.runners.fabric.setup_script import namespaces_script, nodes_script
from chorale.runners.fabric.wire import is_wire_running
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch.base import FABRIC
from chorale.runners.process_launch.local import LocalHost
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import rational_text
from chorale.synth.topology.topology import Topology

# /sys shows the devices of the namespace in which it was mounted.
_ARRIVE = 'mount -t sysfs sys /sys 2>/dev/null; hostname "$0" && exec "$@"'
_FORMAT = "chorale-fabric/2"
_BUCKETS = FabricLinks()
_PLAIN = ("name", "spec", "topology_id", "ranks", "switches", "bits_per_s", "in_user_namespace")


@dataclass(frozen=True, slots=True)
class EmulatedFabric:
    """A network of namespaces, one for each rank and switch of a topology.

    bits_per_s: what all links carry together when all are busy
    pid:        the process that keeps the namespaces
    links:      how packets are carried
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
    links: FabricLinks = _BUCKETS

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

    def facts(self) -> Facts:
        """Return what measurements on it depend on; part of the id of their environment."""
        return {"network": FABRIC, "fabric": self.name, "link_mbps": float(self.link_mbps), **self.links.facts()}

    def is_as(self, topology_id: str, link_mbps: Fraction, options: LinkOptions) -> bool:
        """Return whether it was brought up with these."""
        links = self.links
        numbers = (links.latency_us, links.loss, links.overrides, links.seed)
        given = (rational_text(options.latency_us), rational_text(options.loss), options.overrides_text, options.seed)
        same_kind = options.kind in (None, links.kind)
        return numbers == given and same_kind and (self.topology_id, self.link_mbps) == (topology_id, link_mbps)

    @property
    def is_broken(self) -> bool:
        """Whether the process that carries its packets has ended."""
        return bool(self.links.wire_pid) and not is_wire_running(self.links.wire_pid, self.pid)

    def require_links(self) -> None:
        """Raise Unavailable if it is broken."""
        if self.is_broken:
            rule = f"the links of fabric {self.name} need the process that carries their packets"
            way_out = f"run `chorale fabric down {self.name}` and bring it up again"
            raise Unavailable(rule, f"process {self.links.wire_pid} has ended", way_out)

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
        facts: dict[str, object] = {"format": _FORMAT, "link_mbps": rational_text(self.link_mbps)}
        facts |= {key: getattr(self, key) for key in _PLAIN}
        facts["links"] = self.links.to_document()
        return json.dumps(facts)

    @staticmethod
    def from_line(line: str, pid: int) -> EmulatedFabric | None:
        """Return the fabric of `to_line`, None where another version wrote it."""
        facts = json.loads(line)
        if facts.pop("format") != _FORMAT:
            return None
        rate, links = Fraction(facts.pop("link_mbps")), FabricLinks.from_document(facts.pop("links"))
        return EmulatedFabric(link_mbps=rate, links=links, pid=pid, **facts)


def processes_in(networks: frozenset[str]) -> list[int]:
    """Return the ids of this user's processes that run in any of `networks`."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # others' processes, and those that are gone by now
            if os.readlink(f"/proc/{pid}/ns/net") in networks:
                found.append(pid)
    return found


_END_LIMIT_S = 10.0


def bring_up(
    topology: Topology,
    link_mbps: Fraction,
    name: str,
    options: LinkOptions | None = None,
    test: Callable[[EmulatedFabric], EmulatedFabric] | None = None,
) -> EmulatedFabric:
    """Return the new fabric `name`, which stays up when this process ends.

    test: gets the fabric before it can be seen by others and returns it with what it learned, or raises; then it goes

    If this process is ended before that, by whatever signal, nothing of it stays. Raises InvalidInput for a network
    that no fabric can be or a name that is taken, Unavailable where this machine or user cannot make one.
    """
    with temporary_fabric(topology, link_mbps, name, options) as (fabric, holder):
        tested = fabric if test is None else test(fabric)
        holder.detach(tested.to_line())
    return tested


@contextlib.contextmanager
def temporary_fabric(
    topology: Topology, link_mbps: Fraction, name: str, options: LinkOptions | None = None
) -> Iterator[tuple[EmulatedFabric, NamespaceHolder]]:
    """Give a fabric that nobody else finds and that ends with the `with`, unless its holder is told to keep it."""
    options = options or LinkOptions()
    plan = plan_fabric(topology, link_mbps, name, options)
    with _only_one(name), contextlib.closing(NamespaceHolder(name)) as holder:
        holder.run(namespaces_script(plan))
        links = lay_links(plan, holder, options)
        holder.run(nodes_script(plan, links.kind))
        size = (topology.compute_count, topology.switch_count, plan.bits_per_s)
        network = (name, topology.spec, topology.id, link_mbps)
        try:
            yield EmulatedFabric(*network, *size, holder.in_user_namespace, holder.pid, links), holder
        finally:
            holder.close()
            if not holder.is_detached:
                _end_wire(links.wire_pid, holder.pid)


def fabrics() -> list[EmulatedFabric]:
    """Return this user's fabrics that are up, sorted by name."""
    found = (EmulatedFabric.from_line(line, pid) for pid, line in detached_states())
    return sorted((fabric for fabric in found if fabric is not None), key=lambda fabric: fabric.name)


def find_fabric(topology_id: str, name: str | None = None) -> EmulatedFabric | None:
    """Return the fabric of a topology that is up, by `name` where it is given; None if there is none.

    Raises InvalidInput if several are up and `name` does not say which, or if `name` is up with another topology, and
    Unavailable if its links have ended.
    """
    if name is not None:
        named = next((fabric for fabric in fabrics() if fabric.name == name), None)
        if named is not None and named.topology_id != topology_id:
            rule = f"fabric {name} must have the topology of the program"
            raise InvalidInput(
                rule, named.spec, "leave the name out, or take it down and bring it up with that topology"
            )
        return _whole(named)
    fitting = [fabric for fabric in fabrics() if fabric.topology_id == topology_id]
    if len(fitting) > 1:
        names = ", ".join(fabric.name for fabric in fitting)
        raise InvalidInput("one fabric must be chosen where several have the topology", names, "say --fabric NAME")
    return _whole(fitting[0] if fitting else None)


def _whole(fabric: EmulatedFabric | None) -> EmulatedFabric | None:
    if fabric is not None:
        fabric.require_links()
    return fabric


def take_down(fabric: EmulatedFabric) -> None:
    """Remove `fabric` and kill every process in it. Raises Unavailable if one cannot be killed."""
    networks = fabric.networks()
    end_process(fabric.pid)
    _end_wire(fabric.links.wire_pid, fabric.pid)
    deadline = time.monotonic() + _END_LIMIT_S
    while inside := processes_in(networks):
        if time.monotonic() > deadline:
            raise Unavailable("processes in a fabric must end when it does", f"process {inside[0]} stays", "kill it")
        for pid in inside:
            end_process(pid)


def _end_wire(pid: int, holder_pid: int) -> None:
    """See to it that the process of the links is gone; it ends with the holder by itself."""
    if pid and is_wire_running(pid, holder_pid):
        end_process(pid)


def require_free(name: str) -> None:
    """Raise InvalidInput if a fabric of this name is up."""
    taken = next((fabric for fabric in fabrics() if fabric.name == name), None)
    if taken is not None:
        found = f"{name}, which is {taken.spec} at {rational_text(taken.link_mbps)} Mbit/s"
        way_out = f"choose another --name, or `chorale fabric down {name}` first"
        raise InvalidInput("the name of a fabric must be free", found, way_out)


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Keep other commands of this user from making a fabric `name` meanwhile, and check that there is none.

    The lock is an abstract socket: the kernel lets go of it when its owner ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0chorale-fabric-{os.geteuid()}-{name}")
        except OSError:
            rule = f"only one command at a time may bring up fabric {name}"
            raise InvalidInput(rule, "another is doing that now", "wait for it") from None
        require_free(name)
        yield
