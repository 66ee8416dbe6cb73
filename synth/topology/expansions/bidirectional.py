"""From a one-way network to a two-way one: every link gets a companion in the other direction."""

from __future__ import annotations

import numpy as np

from chorale.synth.topology.sorted_links import Rates, sorted_links
from chorale.synth.topology.topology import Topology


def bidirectional(topology: Topology, spec: str) -> Topology:
    """Return the union of G and its transpose: for every link u v, one more from v to u, with the same rates.

    Nodes stay; degree d becomes 2 d (a network that is two-way already gets every link twice). Symmetries of G stay.
    The result is reverse-symmetric. If G is reverse-symmetric, half of every shard may follow its schedule and
    the other half its mirror image, at the same cost; BFB on the result never takes more steps, but may take more
    time where links become parallel. O(L log L).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.6.
    """
    links = topology.links
    rates = Rates(
        np.tile(links.bandwidth_class, 2), links.bandwidths, np.tile(links.latency_class, 2), links.latencies_s
    )
    both_src, both_dst = np.concatenate([links.src, links.dst]), np.concatenate([links.dst, links.src])
    return Topology(
        spec=spec,
        node_ids=topology.node_ids,
        compute_count=topology.compute_count,
        links=sorted_links(both_src, both_dst, rates),
        bandwidth_unit=topology.bandwidth_unit,
        automorphisms=topology.automorphisms,
    )
