"""Warm start: reuses trees of an older schedule that still fit into a changed network."""

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.network import ForestNetwork, Trees
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology


class _OldEdges(NamedTuple):
    """Edges of old trees, sorted by root and then by depth. Root r has edges offsets[r] to offsets[r + 1] - 1.

    parent, child: ranks in the new network, -1 for ranks that no longer exist
    lo, hi:        old units of the root that use this edge
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
    """Return those trees of `old`, repaired if necessary, that fit into `network` together.

    There may be too few of them, and they may leave too little capacity for the missing trees. Each of a root's units
    uses the tree of the old unit at the same position in the shard. If a node's incoming edge no longer exists, it is
    replaced by an edge from some node that the tree has reached. A tree that cannot be repaired is dropped. O(transfers
    of `old` + trees * nodes * degree).

    Args:
        old: pipelined allgather, reduce_scatter or two-phase allreduce on another network. Ranks are identified by
            their node ids in `topology`.
        network: the ranks of `topology`, without switches, with any number of trees per root.

    Raises:
        InvalidInput: for other schedules.
    """
    of_pairs = old.collective == ALLREDUCE and not old.barriers  # then roots own parts that differ from shards
    if old.kind != "pipelined" or old.collective.is_rooted or of_pairs:
        value = f"a {old.kind} {old.collective.name.value}" + (" of one phase" if of_pairs else "")
        rule = "a warm start needs trees for an allgather, a reduce_scatter or an allreduce of two phases, not {}"
        raise InvalidInput(rule, value, "use one that `chorale synth forest` made")
    ranks = network.compute_count
    number = np.full((ranks, ranks), -1, dtype=np.int32)
    number[network.src, network.dst] = np.arange(len(network.src))
    offsets = np.searchsorted(network.dst, np.arange(ranks + 1)).astype(np.int64)
    arcs = _ArcIndex(offsets, network.src, number)
    edges = _edges(old, topology)
    return Trees(*native.mend(edges, old.chunks_per_shard, arcs, network.supply, network.capacity.copy()))


def _edges(old: Schedule, topology: Topology) -> _OldEdges:
    """Return the edges of the trees that copy data or, if all trees reduce, the reversed edges of all trees."""
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
