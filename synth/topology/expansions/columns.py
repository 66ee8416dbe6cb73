"""What expansions share: ranks as names, and the networks that they take."""

from __future__ import annotations

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.links import Links
from chorale.synth.topology.sorted_links import Column
from chorale.synth.topology.topology import Topology


def ranked_topology(spec: str, node_count: int, links: Links, like: Topology, symmetries: list[Column]) -> Topology:
    """Return a direct-connect network whose nodes are named by rank, in the bandwidth unit of `like`."""
    return Topology(
        spec=spec,
        node_ids=tuple(map(str, range(node_count))),
        compute_count=node_count,
        links=links,
        bandwidth_unit=like.bandwidth_unit,
        automorphisms=tuple(symmetry.astype(np.int32) for symmetry in symmetries),
    )


def require_direct(topology: Topology, function: str) -> None:
    """Refuse a network with switches."""
    if topology.switch_count:
        value = f"{topology.spec} with {topology.switch_count} switches"
        raise InvalidInput(f"{function} must be given a network without switches", value, "choose a direct-connect one")
