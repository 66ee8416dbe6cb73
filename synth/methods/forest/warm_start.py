"""Warm start: trees of an older schedule, reused as far as they fit a fabric that has changed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import FIRST
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.forest.trees import Trees
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology


class _OldEdges(NamedTuple):
    """Edges of old trees, by root and then from the root outwards: row i of root r in offsets[r] to offsets[r + 1] - 1.

    parent, child: ranks of the new network, -1 where the old one is gone
    lo, hi:        the old units of the root that take this edge
    """

    offsets: Integers
    parent: Ranks
    child: Ranks
    lo: Integers
    hi: Integers


class _ArcIndex(NamedTuple):
    """Arcs into node v are offsets[v] to offsets[v + 1] - 1; `number[u, v]` is the arc from u to v or -1."""

    offsets: Integers
    src: Ranks
    number: Matrix[np.int32]


def reused_trees(old: Schedule, topology: Topology, network: ForestNetwork) -> Trees:
    """Return trees of `old`, repaired, that fit into `network` side by side; they need not be all, nor leave enough.

    old:     pipelined allgather, reduce_scatter or allreduce in two phases, of another fabric; ranks are the same
             that have the same node id in `topology`
    network: of the ranks of `topology`, without switches, with any number of trees per root

    A unit of a root takes the tree that the unit at the same part of the shard had. Nodes whose way in is gone get
    another one from what the tree has reached; a tree that cannot be mended is left out.
    O(transfers of `old` + trees * nodes * degree). Raises InvalidInput for other schedules.
    """
    of_pairs = old.collective == ALLREDUCE and not old.barriers  # their roots own other parts than shards
    if old.kind != "pipelined" or old.collective.is_rooted or of_pairs:
        value = f"a {old.kind} {old.collective.name.value}" + (" of one phase" if of_pairs else "")
        rule = "a warm start must be a schedule of trees for allgather, reduce_scatter or allreduce in two phases"
        raise InvalidInput(rule, value, "give one that `chorale synth forest` made")
    ranks = network.compute_count
    number = np.full((ranks, ranks), -1, dtype=np.int32)
    number[network.src, network.dst] = np.arange(len(network.src))
    offsets = np.searchsorted(network.dst, np.arange(ranks + 1)).astype(np.int64)
    arcs = _ArcIndex(offsets, network.src, number)
    edges = _edges(old, topology)
    return Trees(*_mend(edges, old.chunks_per_shard, arcs, network.supply, network.capacity.copy()))


def _edges(old: Schedule, topology: Topology) -> _OldEdges:
    """Return the edges of the trees that copy, or where all reduce, of the same trees turned around."""
    rank_of = {name: rank for rank, name in enumerate(topology.node_ids[: topology.compute_count])}
    names = old.topology.node_ids[: old.topology.compute_count]
    new_rank = np.array([rank_of.get(name, -1) for name in names], dtype=np.int32)
    rows = old.transfers
    copies = rows.reduce == 0
    spreads = bool(copies.any())
    chosen = np.flatnonzero(copies if spreads else ~copies)
    parent, child = (old.src, old.dst) if spreads else (old.dst, old.src)
    step = rows.step[chosen].astype(np.int64)
    root = new_rank[rows.shard[chosen].astype(np.int64)]
    order = np.lexsort((step if spreads else -step, root))
    kept = chosen[order][root[order] >= 0]
    offsets = np.searchsorted(np.sort(root), np.arange(len(rank_of) + 1)) - np.count_nonzero(root < 0)
    lo, hi = rows.lo[kept].astype(np.int64), rows.hi[kept].astype(np.int64)
    return _OldEdges(offsets.astype(np.int64), new_rank[parent[kept]], new_rank[child[kept]], lo, hi)


@compiled
def _mend(
    old: _OldEdges, old_units: int, arcs: _ArcIndex, supply: Integers, left: Integers
) -> tuple[Ranks, Integers, Matrix[np.int32]]:
    """Return (root, weight, parent_arc) of the trees that could be made; `left` is what they leave of the capacity."""
    nodes = len(supply)
    most = 0
    for root in range(nodes):
        most += _starts(old, root, old_units).sum()
    roots, weights = np.empty(most, np.int32), np.empty(most, np.int64)
    parent_arc = np.empty((most, nodes), np.int32)
    count = 0
    for root in range(nodes):
        starts = _starts(old, root, old_units)
        unit = 0
        while unit < old_units:
            following = unit + 1
            while following < old_units and not starts[following]:
                following += 1
            # new units u with unit <= u * old_units // supply < following
            weight = -(-following * supply[root] // old_units) - -(-unit * supply[root] // old_units)
            if weight > 0 and _mend_tree(old, root, unit, weight, arcs, left, parent_arc[count]):
                roots[count], weights[count] = root, weight
                count += 1
            unit = following
    return roots[:count], weights[:count], parent_arc[:count]


@inlined
def _starts(old: _OldEdges, root: int, old_units: int) -> NDArray[np.bool_]:
    """Return flags of the units of `root` at which its tree is another than that of the unit before.

    Trees are told apart by sums over their edges; two with the same sum would be taken for one, which does no harm.
    """
    sums = np.zeros(old_units, np.uint64)
    for edge in range(old.offsets[root], old.offsets[root + 1]):
        ends = np.uint64(old.parent[edge] + 1) << np.uint64(32) | np.uint64(old.child[edge] + 1)
        mixed = (ends ^ (ends >> np.uint64(29))) * FIRST
        for unit in range(old.lo[edge], old.hi[edge]):
            sums[unit] += mixed ^ (mixed >> np.uint64(32))
    starts = np.ones(old_units, np.bool_)
    starts[1:] = sums[1:] != sums[:-1]
    return starts


@inlined
def _mend_tree(
    old: _OldEdges, root: int, unit: int, weight: int, arcs: _ArcIndex, left: Integers, parent_arc: Ranks
) -> bool:
    """Write a tree that follows the old one where arcs have room for `weight`, and take that room if it spans."""
    nodes = len(parent_arc)
    reached = np.zeros(nodes, np.bool_)
    reached[root] = True
    parent_arc[:] = -1
    count = 1
    for edge in range(old.offsets[root], old.offsets[root + 1]):
        parent, child = old.parent[edge], old.child[edge]
        if old.lo[edge] <= unit < old.hi[edge] and parent >= 0 and child >= 0:
            arc = arcs.number[parent, child]
            if arc >= 0 and reached[parent] and not reached[child] and left[arc] >= weight:
                parent_arc[child], reached[child] = arc, True
                count += 1
    progress = True
    while progress and count < nodes:
        progress = False
        for node in range(nodes):
            arc = -1 if reached[node] else _arc_of_most_capacity(node, weight, arcs, left, reached)
            if arc >= 0:
                parent_arc[node], reached[node] = arc, True
                count += 1
                progress = True
    if count < nodes:
        return False
    for node in range(nodes):
        if parent_arc[node] >= 0:
            left[parent_arc[node]] -= weight
    return True


@inlined
def _arc_of_most_capacity(node: int, weight: int, arcs: _ArcIndex, left: Integers, reached: NDArray[np.bool_]) -> int:
    best = -1
    for arc in range(arcs.offsets[node], arcs.offsets[node + 1]):
        if reached[arcs.src[arc]] and left[arc] >= weight and (best < 0 or left[arc] > left[best]):
            best = arc
    return best
