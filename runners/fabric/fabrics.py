"""Bring fabrics up, find those of this user, take them down."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from fractions import Fraction

from chorale.runners.fabric.fabric import EmulatedFabric, processes_in
from chorale.runners.fabric.holder import NamespaceHolder, detached_states, end_process
from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.script import setup_script
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import rational_text
from chorale.synth.topology.topology import Topology

_END_LIMIT_S = 10.0


def bring_up(topology: Topology, link_mbps: Fraction, name: str) -> EmulatedFabric:
    """Return the new fabric `name`, which stays up when this process ends.

    If this process is ended before that, by whatever signal, nothing of it stays. Raises InvalidInput for a network
    that no fabric can be or a name that is taken, Unavailable where this machine or user cannot make one.
    """
    with temporary_fabric(topology, link_mbps, name) as (fabric, holder):
        holder.detach(fabric.to_line())
    return fabric


@contextlib.contextmanager
def temporary_fabric(
    topology: Topology, link_mbps: Fraction, name: str
) -> Iterator[tuple[EmulatedFabric, NamespaceHolder]]:
    """Give a fabric that nobody else finds and that ends with the `with`, unless its holder is told to keep it."""
    plan = plan_fabric(topology, link_mbps, name)
    with _only_one(name), contextlib.closing(NamespaceHolder(name)) as holder:
        holder.run(setup_script(plan))
        size = (topology.compute_count, topology.switch_count, plan.bits_per_s)
        network = (name, topology.spec, topology.id, link_mbps)
        yield EmulatedFabric(*network, *size, holder.in_user_namespace, holder.pid), holder


def fabrics() -> list[EmulatedFabric]:
    """Return this user's fabrics that are up, sorted by name."""
    found = (EmulatedFabric.from_line(line, pid) for pid, line in detached_states())
    return sorted((fabric for fabric in found if fabric is not None), key=lambda fabric: fabric.name)


def find_fabric(topology_id: str, name: str | None = None) -> EmulatedFabric | None:
    """Return the fabric of a topology that is up, by `name` where it is given; None if there is none.

    Raises InvalidInput if several are up and `name` does not say which, or if `name` is up with another topology.
    """
    if name is not None:
        named = next((fabric for fabric in fabrics() if fabric.name == name), None)
        if named is not None and named.topology_id != topology_id:
            rule = f"fabric {name} must have the topology of the program"
            raise InvalidInput(
                rule, named.spec, "leave the name out, or take it down and bring it up with that topology"
            )
        return named
    fitting = [fabric for fabric in fabrics() if fabric.topology_id == topology_id]
    if len(fitting) > 1:
        names = ", ".join(fabric.name for fabric in fitting)
        raise InvalidInput("one fabric must be chosen where several have the topology", names, "say --fabric NAME")
    return fitting[0] if fitting else None


def take_down(fabric: EmulatedFabric) -> None:
    """Remove `fabric` and kill every process in it. Raises Unavailable if one cannot be killed."""
    networks = fabric.networks()
    end_process(fabric.pid)
    deadline = time.monotonic() + _END_LIMIT_S
    while inside := processes_in(networks):
        if time.monotonic() > deadline:
            raise Unavailable("processes in a fabric must end when it does", f"process {inside[0]} stays", "kill it")
        for pid in inside:
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
