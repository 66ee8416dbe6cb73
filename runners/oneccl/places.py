"""Where the ranks of a topology run: on its fabric if one is up, on a cluster, or side by side on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chorale.runners.environment import Facts
from chorale.runners.fabric.fabrics import find_fabric
from chorale.runners.places.kinds import CLUSTER, FABRIC, LOOPBACK, require_network_kind
from chorale.runners.places.local import LocalHost
from chorale.runners.places.place import Host
from chorale.synth.errors import Unavailable
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """The place of every rank, whether all are on this machine, and what measurements there depend on."""

    hosts: Sequence[Host]
    facts: Facts
    is_here: bool = True
    close: Callable[[], None] = lambda: None


def place_ranks(topology: Topology, where: str | None, fabric: str | None) -> RankPlacement:
    """Return where the ranks of `topology` run.

    where:  one of KINDS; None takes the fabric that is up for the topology, else the cluster
    fabric: name of the fabric, needed where several are up

    InvalidInput for an unknown kind or an ambiguous fabric; Unavailable if there is no such place.
    """
    require_network_kind(where)
    if where == LOOPBACK:
        return RankPlacement([LocalHost()] * topology.compute_count, {"network": LOOPBACK})
    found = None if where == CLUSTER else _fabric(topology, fabric)
    if found is None and where != FABRIC and fabric is None:
        found = _cluster(topology)
    if found is not None:
        return found
    rule = (
        "oneCCL needs a network that is the topology: a fabric that is up, or a Ray cluster with a node for each rank"
    )
    wanted = f"fabric {fabric}" if fabric else topology.spec or "this topology"
    raise Unavailable(rule, f"none for {wanted}", f"run: chorale fabric up {topology.spec or 'FILE'}")


def _fabric(topology: Topology, name: str | None) -> RankPlacement | None:
    fabric = find_fabric(topology.id, name)
    if fabric is None:
        return None
    facts: Facts = {"network": FABRIC, "fabric": fabric.name, "link_mbps": float(fabric.link_mbps)}
    return RankPlacement(fabric.hosts(), facts)


def _cluster(topology: Topology) -> RankPlacement | None:
    from chorale.runners.ray_places import RayHosts  # noqa: PLC0415 - Ray takes a second to import

    nodes = RayHosts(topology.compute_count)
    if nodes.hosts is None:
        nodes.close()
        return None
    return RankPlacement(nodes.hosts, {"network": CLUSTER}, is_here=False, close=nodes.close)
