"""Trees along shortest paths on networks without switches: what rank 0 receives, moved to the trees of one root."""

from __future__ import annotations

import numpy as np

from chorale.synth.methods.forest.in_arc_shares import in_arc_shares
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.symmetric.base_rows import BaseRows
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks


def shortest_path_rows(topology: Topology, network: ForestNetwork, moves: TranslatedLinks) -> BaseRows | None:
    """Return rows in which every node takes each tree from a neighbour one hop nearer to its root: the least height.

    The tree of root 0 reaches node v as root -v reaches node 0, so the choices of node 0 decide. None where there are
    switches, parallel links or several orbits of ranks, and where nearer neighbours cannot carry everything.
    O(degree * (links + nodes)).
    """
    links, translations = topology.links, moves.translations
    if topology.switch_count or translations.rank_orbits > 1 or len(network.src) != len(links):
        return None
    offsets = links.incoming_offsets(topology.node_count)
    tails = links.src[offsets[0] : offsets[1]]
    hops = distances_to(topology, np.append(tails, np.int32(0)))
    if hops.max() >= np.iinfo(np.uint16).max:
        return None
    shares = in_arc_shares(network, offsets, hops.astype(np.uint16), 0, beside=False)
    if shares.arc.min() < 0:
        return None
    back = translations.negative(translations.element[shares.root])
    route = moves.images(shares.arc, back)
    step = hops[-1][shares.root].astype(np.int64) - 1
    return BaseRows(step, route.astype(np.int64), np.zeros_like(step), shares.lo, shares.hi, Routes.direct(len(links)))
