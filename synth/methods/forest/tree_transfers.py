"""Converts packed trees to transfers: every tree streams a part of its root's data over links.

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

    units:  number of units of the root with the most units, which is the sum of its trees' weights
    depth:  the sender's depth in its tree
    route:  index into `routes`
    root:   rank whose data are sent
    lo, hi: units `lo` to `hi - 1` of the root are sent
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

    A root's units are assigned to its trees in order. If an arc stands for several paths, they are used in order, and a
    transfer of several units may be divided. No link carries more trees than `carried` allows.

    split: `network_of_links(topology, carried, ...)` after removing its switches; `trees` are trees of `split.network`
    """
    # Compute the first unit that each tree sends.
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
    # Turn the pieces of the arcs into paths over links. If two nodes have parallel links, a piece may be divided.
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
    """Cut intervals of the vector (units `lo` to `hi` - 1) where shards end; return (chunks per shard, parts).

    The parts are columns (row, shard, lo, hi): index of the interval from which the part comes, shard, and first chunk
    and last chunk + 1 in the shard. The vector has `units` units, and `ranks` shards of c chunks each, where c is the
    smallest number for which a unit consists of whole chunks.
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
    """Return (routes for the paths in use, route of each row). Row i uses the piece `used[i]` of `paths`."""
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
