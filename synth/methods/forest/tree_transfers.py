"""The transfers of packed trees: every tree streams its part of its root's data over the links behind its arcs.

Arcs of the network without switches become paths of physical links, each link within its own number of trees.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork, Trees
from chorale.synth.methods.forest.split.splitting_off import PathPieces, SplitNetwork
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology


def link_paths(topology: Topology, carried: Integers, split: SplitNetwork) -> PathPieces:
    """Return the pieces of the arcs of `split.network` with links of `topology` as hops.

    `split` must come from `network_of_links(topology, carried, ...)`. A link gets at most what it carries; where a
    pair of nodes has several links, a piece may become several. O(links + hops of all pieces).
    """
    offsets, links = _links_of_arcs(topology, carried, split.original)
    return PathPieces(*native.pieces_over_links(split.pieces, offsets, links, carried[links]))


def _links_of_arcs(topology: Topology, carried: Integers, original: ForestNetwork) -> tuple[Integers, Ranks]:
    """Return (offsets, links): arc a stands for `links[offsets[a]:offsets[a + 1]]`."""
    table = topology.links
    links = np.flatnonzero((table.src != table.dst) & (carried > 0)).astype(np.int32)
    nodes = original.nodes
    keys = table.dst[links].astype(np.int64) * nodes + table.src[links]
    arcs = original.dst.astype(np.int64) * nodes + original.src
    return np.append(np.searchsorted(keys, arcs), len(links)).astype(np.int64), links


MAX_TREES_PER_ROOT = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class TreeTransfers:
    """Transfers as int32 columns.

    units:  how many units the root with the most trees sends: the weights of its trees added up
    depth:  of the sender in its tree
    route:  index into `routes`
    root:   whose data it is
    lo, hi: units of the root
    """

    units: int
    routes: Routes
    depth: Ranks
    route: Ranks
    root: Ranks
    lo: Ranks
    hi: Ranks

    @property
    def height(self) -> int:
        return int(self.depth.max(initial=-1)) + 1


def tree_transfers(topology: Topology, carried: Integers, split: SplitNetwork, trees: Trees) -> TreeTransfers:
    """Return what `trees` of `split.network` send over the links of `topology`.

    split: `network_of_links(topology, carried, ...)` without its switches. The trees of one root take its units in
    their order. An arc hands out its paths in their order, so that a transfer of several units may become
    several transfers. O(trees * ranks + hops of all paths).
    """
    first, units = _first_units(trees)
    paths = link_paths(topology, carried, split)
    columns = (trees.root, trees.weight, trees.parent_arc)
    network = split.network
    depth, path, *rows = native.send_trees(*columns, first, network.src, paths.offsets, paths.amount)
    routes, route = _routes(topology, paths, path)
    return TreeTransfers(units, routes, depth, route, *rows)


def split_over_shards(
    lo: NDArray[np.integer], hi: NDArray[np.integer], ranks: int, units: int
) -> tuple[int, tuple[Integers, ...]]:
    """Return (chunks per shard, (row, shard, lo, hi)) of intervals of the whole vector, cut where shards end.

    The vector is `units` units, and `ranks` shards of c chunks, c the smallest number that makes a unit whole chunks.
    row: which interval it is a part of.
    """
    chunks = units // gcd(ranks, units)
    per_unit = ranks // gcd(ranks, units)
    lo, hi = lo.astype(np.int64) * per_unit, hi.astype(np.int64) * per_unit
    first_shard, last_shard = lo // chunks, (hi - 1) // chunks
    count = last_shard - first_shard + 1
    row = np.repeat(np.arange(len(lo)), count)
    shard = first_shard[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    begin = np.maximum(lo[row] - shard * chunks, 0)
    end = np.minimum(hi[row] - shard * chunks, chunks)
    return chunks, (row, shard, begin, end)


def _first_units(trees: Trees) -> tuple[Integers, int]:
    """Return (the first unit of its root that each tree sends, units per root)."""
    order = np.argsort(trees.root, kind="stable")
    before = np.cumsum(trees.weight[order]) - trees.weight[order]
    starts = np.flatnonzero(np.diff(trees.root[order], prepend=-1))
    of_root = np.diff(starts, append=len(trees))
    first = np.empty(len(trees), dtype=np.int64)
    first[order] = before - np.repeat(before[starts], of_root)
    k = int((first + trees.weight).max(initial=0))
    if k > MAX_TREES_PER_ROOT:
        rule = f"a schedule has at most {MAX_TREES_PER_ROOT} trees per root"
        raise InvalidInput(rule, k, "round the bandwidths to fewer digits, or choose a fixed k")
    return first, k


def _routes(topology: Topology, paths: PathPieces, used: Ranks) -> tuple[Routes, Ranks]:
    """Return the table of the paths that are used, in their order, and the route of each row."""
    if topology.switch_count == 0:
        return Routes.direct(len(topology.links)), paths.hops[paths.start[used]]
    is_used = np.zeros(len(paths.amount), dtype=bool)
    is_used[used] = True
    kept = np.flatnonzero(is_used)
    lengths = paths.length[kept]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    position = np.arange(offsets[-1]) + np.repeat(paths.start[kept] - offsets[:-1], lengths)
    number = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    return Routes(offsets, paths.hops[position]), number[used]
