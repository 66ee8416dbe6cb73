"""The transpose of a topology: every link turned around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology


def transpose(topology: Topology) -> Topology:
    """Return `topology` with every link turned around; its spec is `transpose(<spec>)`."""
    return transpose_with_links(topology)[0]


def transpose_with_links(topology: Topology) -> tuple[Topology, NDArray[np.int32]]:
    """Return the transpose and int32[links]: the link of `topology` that each link of the transpose came from.

    Parallel links keep their order among themselves. Symmetries stay symmetries. O(L log L).
    """
    links = topology.links
    origin = np.lexsort((links.dst, links.src)).astype(np.int32)
    turned = Links(
        src=links.dst[origin],
        dst=links.src[origin],
        bandwidth_class=links.bandwidth_class[origin],
        bandwidths=links.bandwidths,
        latency_class=links.latency_class[origin],
        latencies_s=links.latencies_s,
    )
    result = Topology(
        spec=f"transpose({topology.spec})",
        node_ids=topology.node_ids,
        compute_count=topology.compute_count,
        links=turned,
        bandwidth_unit=topology.bandwidth_unit,
        automorphisms=topology.automorphisms,
    )
    return result, origin
