"""Trees inside one block, for the data of all ranks that enter it and for those of its own ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.forest.network import network_of_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.cut_table import find_violated_cuts
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import TreeTransfers, tree_transfers
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import Translations


@dataclass(frozen=True, slots=True, eq=False)
class BlockNetwork:
    """The first block as a network by itself.

    topology: its ranks, in order, and the switches that belong to it
    links:    int32 per link of it: the link of the whole network
    """

    topology: Topology
    links: Ranks


def first_block(topology: Topology, owner: Integers) -> BlockNetwork:
    """Return the block of the first rank of every orbit; `owner` is that of `block_owners`. O(links)."""
    nodes = np.flatnonzero(owner == 0)
    links = topology.links
    inside = np.flatnonzero((owner[links.src] == 0) & (owner[links.dst] == 0) & (links.src != links.dst))
    number = np.full(topology.node_count, -1, dtype=np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    block_links = Links(
        number[links.src[inside]], number[links.dst[inside]], links.bandwidth_class[inside], links.bandwidths,
        links.latency_class[inside], links.latencies_s,
    )  # fmt: skip
    ranks = int(np.count_nonzero(nodes < topology.compute_count))
    names = tuple(topology.node_ids[node] for node in nodes.tolist())
    block = Topology(f"block of {topology.spec}", names, ranks, block_links, topology.bandwidth_unit)
    return BlockNetwork(block, inside.astype(np.int32))


def block_owners(topology: Topology, translations: Translations) -> Integers:
    """Return int64 per node: the element that takes the first block to the node's, -1 for nodes of no block.

    The first block holds the first rank of every orbit. A switch belongs to the block of the ranks nearest to it, if
    that is one block and no translation keeps the switch in its place: an NVSwitch, a router of a group, but no switch
    in which blocks meet. O(rounds * links).
    """
    links, ranks = topology.links, topology.compute_count
    moved = np.bincount(translations.orbit, minlength=len(translations.table)) == len(translations)
    owner = np.full(topology.node_count, -1, dtype=np.int64)
    owner[:ranks] = translations.element[:ranks]
    undecided = moved[translations.orbit] & (owner < 0)
    most = len(translations)
    while undecided.any():
        reaches = undecided[links.dst] & (owner[links.src] >= 0)
        if not reaches.any():
            break
        low, high = np.full(topology.node_count, most), np.full(topology.node_count, -1)
        np.minimum.at(low, links.dst[reaches], owner[links.src[reaches]])
        np.maximum.at(high, links.dst[reaches], owner[links.src[reaches]])
        reached = high >= 0
        undecided &= ~reached
        single = reached & (low == high)
        owner[single] = low[single]
    return owner


def block_trees(block: BlockNetwork, room: Integers, supply: Integers) -> TreeTransfers | None:
    """Return what low trees send inside the block, over links of the whole network; None where there are none.

    room:   int64 per link of the block: trees that it can carry
    supply: int64 per rank of the block: trees from there
    """
    network = network_of_links(block.topology, room, supply)
    if len(find_violated_cuts(network, 1)):
        return None
    try:
        split = remove_switches(network, names=block.topology.node_ids)
        trees = pack_trees(split.network)
    except (InvalidInput, CheckFailed):  # a switch stands in the way of trees
        return None
    rows = tree_transfers(block.topology, room, split, trees)
    routes = replace(rows.routes, link_ids=block.links[rows.routes.link_ids])
    return replace(rows, routes=routes)
