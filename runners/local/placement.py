"""Where the ranks of the local runner are, and how their engines reach one another."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

from chorale.runners.fabric.fabric import EmulatedFabric, find_fabric
from chorale.runners.fabric.plan import NODE_DEVICE
from chorale.runners.measurement.machine import Facts
from chorale.runners.process_launch.base import FABRIC, LOOPBACK
from chorale.synth.errors import Unavailable
from chorale.synth.names import unknown_name
from chorale.synth.topology.topology import Topology

EMULATED = "emulated"
PLACES = (EMULATED, FABRIC, LOOPBACK)


@dataclass(frozen=True, slots=True)
class RankLocations:
    """Where ranks run.

    listen:     where the engine of each rank listens; empty where all meet in an emulated network
    namespaces: files of the namespaces that each rank enters, the user's first; empty for those that are there
    interface:  the network device by which libraries reach other ranks
    facts:      what the environment of a measurement says about it
    honest_bytes: the smallest step that links do not carry too fast, see `chorale.runners.fabric.honesty`
    """

    listen: tuple[str, ...] = ()
    namespaces: tuple[tuple[str, ...], ...] = ()
    interface: str = "lo"
    facts: Facts = field(default_factory=lambda: {"network": EMULATED})
    honest_bytes: int = 0


def placement_of(topology: Topology, where: str, fabric: str | None) -> RankLocations:
    """Return where the ranks of `topology` run, by a name of PLACES.

    InvalidInput for another name or an ambiguous fabric; Unavailable if there is no such fabric.
    """
    if where not in PLACES:
        raise unknown_name("place to run", where, PLACES)
    if where == EMULATED:
        return RankLocations()
    if where == LOOPBACK:
        names = f"chorale-{os.getpid()}-{secrets.token_hex(8)}"
        listen = tuple(f"shm:{names}-{rank}" for rank in range(topology.compute_count))
        return RankLocations(listen, facts={"network": LOOPBACK})
    up = find_fabric(topology.id, fabric)
    if up is None:
        wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
        way_out = f"run: chorale fabric up {topology.spec or 'FILE'} --link-mbps 50"
        raise Unavailable("ranks on a fabric need one that is up with the topology", f"none for {wanted}", way_out)
    return _on_fabric(up)


def _on_fabric(fabric: EmulatedFabric) -> RankLocations:
    ranks = range(fabric.ranks)
    # Root needs no user namespace to enter, and would lose its rights on the files of others in it.
    user = (f"/proc/{fabric.pid}/ns/user",) if fabric.in_user_namespace and os.geteuid() != 0 else ()
    return RankLocations(
        tuple(f"tcp:{fabric.address(rank)}" for rank in ranks),
        tuple((*user, f"/proc/{fabric.pid}/root/run/netns/{fabric.hostname(rank)}") for rank in ranks),
        NODE_DEVICE,
        fabric.facts(),
        fabric.links.honest_bytes,
    )
