"""The arcs of a network without switches as paths of physical links, each link within its own number of trees."""

from __future__ import annotations

import numpy as np

from chorale.synth.compiled import compiled
from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.split.growing import with_capacity
from chorale.synth.forest.split.split_network import PathPieces, SplitNetwork
from chorale.synth.topology.topology import Topology


def link_paths(topology: Topology, carried: Integers, split: SplitNetwork) -> PathPieces:
    """Return the pieces of the arcs of `split.network` with links of `topology` as hops.

    `split` must come from `network_of_links(topology, carried, ...)`. A link gets at most what it carries; where a
    pair of nodes has several links, a piece may become several. O(links + hops of all pieces).
    """
    offsets, links = _links_of_arcs(topology, carried, split.original)
    return _over_links(split.pieces, offsets, links, carried[links])


def _links_of_arcs(topology: Topology, carried: Integers, original: ForestNetwork) -> tuple[Integers, Ranks]:
    """Return (offsets, links): arc a stands for `links[offsets[a]:offsets[a + 1]]`."""
    table = topology.links
    links = np.flatnonzero((table.src != table.dst) & (carried > 0)).astype(np.int32)
    nodes = original.nodes
    keys = table.dst[links].astype(np.int64) * nodes + table.src[links]
    arcs = original.dst.astype(np.int64) * nodes + original.src
    return np.append(np.searchsorted(keys, arcs), len(links)).astype(np.int64), links


@compiled
def _over_links(pieces: PathPieces, link_offsets: Integers, links: Ranks, room: Integers) -> PathPieces:
    """Return `pieces` over links; every arc fills its links in order."""
    arcs = len(pieces.offsets) - 1
    most = len(pieces.amount) + len(links)  # every piece made ends an old piece or fills a link
    amounts, starts, lengths = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    offsets = np.zeros(arcs + 1, np.int64)
    hops = np.empty(len(pieces.hops) + 1, np.int32)
    cursor, left = link_offsets[:-1].copy(), room.copy()
    made = used = 0
    for arc in range(arcs):
        for piece in range(pieces.offsets[arc], pieces.offsets[arc + 1]):
            path = pieces.hops[pieces.start[piece] : pieces.start[piece] + pieces.length[piece]]
            wanted = pieces.amount[piece]
            while wanted > 0:
                amount = wanted
                for hop in path:
                    while left[cursor[hop]] == 0:
                        cursor[hop] += 1
                    amount = min(amount, left[cursor[hop]])
                hops = with_capacity(hops, used, len(path))
                amounts[made], starts[made], lengths[made] = amount, used, len(path)
                for hop in path:
                    hops[used] = links[cursor[hop]]
                    left[cursor[hop]] -= amount
                    used += 1
                made += 1
                wanted -= amount
        offsets[arc + 1] = made
    return PathPieces(offsets, amounts[:made], starts[:made], lengths[:made], hops[:used])
