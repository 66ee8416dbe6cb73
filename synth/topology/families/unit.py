"""What families without switches share: nodes named by rank, links of capacity 1."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

NodeColumn = NDArray[np.int64]
Arcs = tuple[NodeColumn, NodeColumn]
"""One link from each node of the first column to the node beside it in the second."""


def unit_topology(
    spec: str,
    node_count: int,
    arcs: Iterable[Arcs],
    generators: Iterable[NodeColumn] = (),
) -> Topology:
    """Return the network on `node_count` compute nodes with one link for each entry of each (src, dst) of `arcs`.

    `generators` are symmetries known to the family. Where a family has a group of them that acts regularly (for
    every two nodes exactly one member takes one to the other), it gives generators of that group.
    """
    columns = list(arcs)
    src = np.concatenate([src for src, _ in columns])
    dst = np.concatenate([dst for _, dst in columns])
    return Topology(
        spec=spec,
        node_ids=tuple(map(str, range(node_count))),
        compute_count=node_count,
        links=Links.of_unit_capacity(src, dst),
        automorphisms=tuple(generator.astype(np.int32) for generator in generators),
    )


def bidirectional_arcs(src: NodeColumn, dst: NodeColumn) -> list[Arcs]:
    """Return the arcs src to dst and dst to src."""
    return [(src, dst), (dst, src)]
