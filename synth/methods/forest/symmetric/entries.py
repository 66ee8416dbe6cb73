"""Where the data of the ranks of one block enter the other blocks: one rank of each, over a shortest way from the root.

A block is a box of GPUs, a group of routers or a single rank; translations take any block to any other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks


class Capacities(NamedTuple):
    """What the links of each orbit can still carry.

    room:   int64 per orbit: trees that each of its links can still carry
    shared: int64 per orbit: how many images of a use of one of its links use that link
    orbit:  int32 per link
    """

    room: Integers
    shared: Integers
    orbit: Ranks


class Entries(NamedTuple):
    """Entries into all blocks but the first, in the order of roots, then of blocks.

    root:    int32 per entry: rank of the first block whose data enter
    block:   int32 per entry: element that takes the first block to the one entered
    gateway: int32 per entry: rank of that block over which they enter
    offsets, links: the way from root to gateway is `links[offsets[i]:offsets[i + 1]]`
    """

    root: Ranks
    block: Ranks
    gateway: Ranks
    offsets: Integers
    links: Ranks


def enter_blocks(
    topology: Topology,
    moves: TranslatedLinks,
    owner: Integers,
    carried: Integers,
    k: int,
) -> tuple[Entries, Capacities] | None:
    """Return entries of k trees for all roots of the first block, and what they leave of `carried` (int64 per link).

    owner: int64 per node, as `chorale.synth.methods.forest.symmetric.symmetric_forest.block_owners` has it
    A link from block to block counts twice as far as a link inside one. Of the nearest ranks of a block, that at the
    root's own position is taken, unless it already has its part of all entries, else the one with the fewest. None
    where links on the ways chosen cannot carry them.
    O(roots * diameter * links + entries * (ranks of a block + links into the nodes of a way)).
    """
    translations, links = moves.translations, topology.links
    first = np.unique(moves.orbit, return_index=True)[1]
    shared = (len(translations) // moves.sizes).astype(np.int64)
    capacities = Capacities(carried[first].astype(np.int64), shared, moves.orbit)
    inside = (owner[links.src] == owner[links.dst]) & (owner[links.src] >= 0)
    network = _LinkLengths(
        links.incoming_offsets(topology.node_count), links.src, np.where(inside, 1, 2).astype(np.int32),
        topology.compute_count,
    )  # fmt: skip
    roots = translations.first_ranks
    ranks = np.ascontiguousarray(translations.table[: len(roots)])
    blocks = ranks.shape[1]
    entered = np.zeros(len(roots), dtype=np.int64)
    hops = np.empty(topology.node_count, dtype=np.int32)
    gateways, lengths, ways = [], [], []
    for position, root in enumerate(roots.tolist()):
        native.hops_through_switches(network, root, hops)
        gateway, length = np.zeros(blocks, dtype=np.int32), np.zeros(blocks, dtype=np.int32)
        way = np.empty((blocks, max(1, int(hops.max()))), dtype=np.int32)
        if not native.enter_from(position, k, network, hops, ranks, capacities, entered, gateway, way, length):
            return None
        ways.append(way[np.arange(way.shape[1]) >= way.shape[1] - length[:, None]])
        lengths.append(length[1:])
        gateways.append(gateway[1:])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    block = np.tile(np.arange(1, blocks, dtype=np.int32), len(roots))
    entries = Entries(np.repeat(roots, blocks - 1), block, np.concatenate(gateways), offsets, np.concatenate(ways))
    return entries, capacities


class _LinkLengths(NamedTuple):
    """Links by the node they lead into, with their lengths.

    offsets: int64[nodes + 1];  src, length: int32 per link
    """

    offsets: Integers
    src: Ranks
    length: Ranks
    compute_count: int
