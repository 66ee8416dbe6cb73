"""Converts packed trees to transfers: every tree streams a part of its root's data over the links of its arcs.

Trees are packed into a network without switches, whose arcs stand for paths. No link carries more trees than allowed.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import Trees
from chorale.synth.methods.forest.switch_removal import PathPieces, SplitNetwork
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology

MAX_TREES_PER_ROOT = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class TreeTransfers:
    """Transfers along trees, as int32 columns with one row per transfer.

    units:  number of units of the root with the most trees, which is the sum of these trees' weights
    depth:  the sender's depth in its tree
    route:  index into `routes`
    root:   rank whose data are sent
    lo, hi: interval of the root's units
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
    """Return the transfers of `trees` over the links of `topology`. O(links + trees * ranks + hops of all paths).

    A root's units are assigned to its trees in order. If an arc represents several paths, they are used in order, and a
    transfer of several units may be divided. No link carries more trees than `carried`.

    split: `network_of_links(topology, carried, ...)` after removing its switches; `trees` are trees of `split.network`
    """
    # The first unit that each tree sends.
    order = np.argsort(trees.root, kind="stable")
    before = np.cumsum(trees.weight[order]) - trees.weight[order]
    starts = np.flatnonzero(np.diff(trees.root[order], prepend=-1))
    of_root = np.diff(starts, append=len(trees))
    first = np.empty(len(trees), dtype=np.int64)
    first[order] = before - np.repeat(before[starts], of_root)
    units = int((first + trees.weight).max(initial=0))
    if units > MAX_TREES_PER_ROOT:
        rule = f"a schedule has at most {MAX_TREES_PER_ROOT} trees per root"
        raise InvalidInput(rule, units, "round the bandwidths to fewer digits, or choose a fixed k")
    # The pieces of the arcs as paths over links. A piece is divided if several links lead from one node to another.
    table, original = topology.links, split.original
    links = np.flatnonzero((table.src != table.dst) & (carried > 0)).astype(np.int32)
    keys = table.dst[links].astype(np.int64) * original.nodes + table.src[links]
    arcs = original.dst.astype(np.int64) * original.nodes + original.src
    offsets = np.append(np.searchsorted(keys, arcs), len(links)).astype(np.int64)
    paths = PathPieces(*native.pieces_over_links(split.pieces, offsets, links, carried[links]))
    columns = (trees.root, trees.weight, trees.parent_arc)
    network = split.network
    depth, path, *rows = native.send_trees(*columns, first, network.src, paths.offsets, paths.amount)
    routes, route = _routes(topology, paths, path)
    return TreeTransfers(units, routes, depth, route, *rows)


def split_over_shards(
    lo: NDArray[np.integer], hi: NDArray[np.integer], ranks: int, units: int
) -> tuple[int, tuple[Integers, ...]]:
    """Cut the vector's intervals `lo` to `hi` where shards end; return (chunks per shard, (row, shard, lo, hi)).

    The vector has `units` units, and `ranks` shards of c chunks each, where c is the smallest number for which a unit
    consists of whole chunks. row: index of the interval from which each part comes.
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


def _routes(topology: Topology, paths: PathPieces, used: Ranks) -> tuple[Routes, Ranks]:
    """Return (routes for the paths in use, route of each row). used: the piece of `paths` that each row uses"""
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
