"""The transfers of packed trees: every tree streams its part of its root's data over the links behind its arcs.

Arcs of the network without switches become paths of physical links, each link within its own number of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.split.splitting_off import PathPieces, SplitNetwork, with_capacity
from chorale.synth.methods.forest.trees import Trees, find_depths
from chorale.synth.schedule.schedule import Routes
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


class _PathRows(NamedTuple):
    """Columns of TreeTransfers; path: which piece, instead of a route."""

    depth: Ranks
    path: Ranks
    root: Ranks
    lo: Ranks
    hi: Ranks


def tree_transfers(topology: Topology, carried: Integers, split: SplitNetwork, trees: Trees) -> TreeTransfers:
    """Return what `trees` of `split.network` send over the links of `topology`.

    split: `network_of_links(topology, carried, ...)` without its switches. The trees of one root take its units in
    their order. An arc hands out its paths in their order, so that a transfer of several units may become
    several transfers. O(trees * ranks + hops of all paths).
    """
    first, units = _first_units(trees)
    paths = link_paths(topology, carried, split)
    rows = _send(trees.root, trees.weight, trees.parent_arc, first, split.network.src, paths)
    routes, route = _routes(topology, paths, rows.path)
    return TreeTransfers(units, routes, rows.depth, route, rows.root, rows.lo, rows.hi)


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


@compiled
def _send(
    roots: Ranks, weights: Integers, parent_arc: Matrix[np.int32], first: Integers, src: Ranks, paths: PathPieces
) -> _PathRows:
    """Return the rows of all trees, each node's in turn; arcs hand out their paths in order."""
    ranks = parent_arc.shape[1]
    most = len(roots) * (ranks - 1) + len(paths.amount)  # every row ends an arc of a tree or a piece
    rows = _PathRows(
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
    )
    cursor, left = paths.offsets[:-1].copy(), paths.amount.copy()
    depth, stack = np.empty(ranks, np.int32), np.empty(ranks, np.int32)
    count = 0
    for tree in range(len(roots)):
        find_depths(roots[tree], parent_arc[tree], src, depth, stack)
        for node in range(ranks):
            arc = parent_arc[tree, node]
            if arc < 0:
                continue
            unit, last = first[tree], first[tree] + weights[tree]
            while unit < last:
                while left[cursor[arc]] == 0:
                    cursor[arc] += 1
                piece = cursor[arc]
                amount = min(last - unit, left[piece])
                left[piece] -= amount
                rows.depth[count], rows.path[count], rows.root[count] = depth[node] - 1, piece, roots[tree]
                rows.lo[count], rows.hi[count] = unit, unit + amount
                unit += amount
                count += 1
    return _PathRows(rows.depth[:count], rows.path[:count], rows.root[:count], rows.lo[:count], rows.hi[:count])
