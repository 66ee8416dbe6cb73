"""Makes bandwidth-optimal tree schedules on any network, with or without switches (the method `forest`).

Data stream down k trees per root, and the slowest link determines the time. The narrowest cut determines the optimal
time, and this time determines how many trees each link carries. Switches are removed without loss; then trees are
packed into the resulting network and mapped back to physical links. A warm start keeps those trees of an older schedule
that still fit after the network has changed. Sources: "Bandwidth Optimal Pipeline Schedule for Collective
Communication"; "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics".

If shards have different sizes, roots have different numbers of trees. The bound then follows from the sizes: all shards
that start outside a set of nodes must enter the set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, optima, optimum, shards_of_ranks
from chorale.synth.bounds.switch_limits import within_switches
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName, uneven_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork, Trees, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.switch_removal import SplitNetwork, remove_switches
from chorale.synth.methods.forest.tree_transfers import split_over_shards, tree_transfers
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Schedule, reverse_allgather
from chorale.synth.topology.topology import Topology, automorphisms_are_transitive, transpose_with_links
from chorale.synth.topology.translations import Transversal


def reused_trees(old: Schedule, topology: Topology, network: ForestNetwork) -> Trees:
    """Return the trees of `old`, repaired if necessary, that fit into `network` together.

    These may be fewer trees than needed, and the remaining capacity may not be enough for the others. Each unit of a
    root's shard uses the tree of the old unit at the same position in the shard. If the edge over which a tree reaches
    a node no longer exists, it is replaced by an edge from another node that the tree has reached. A tree that cannot
    be repaired is dropped. O(transfers of `old` + trees * nodes * degree).

    Args:
        old: pipelined allgather, reduce_scatter or two-phase allreduce on another network. Ranks of both networks with
            the same node id are the same rank.
        topology: the network for which trees are needed.
        network: `topology` after its switches have been removed; roots may have any number of trees.

    Raises:
        InvalidInput: if `old` is any other kind of schedule.
    """
    of_pairs = old.collective == ALLREDUCE and not old.barriers  # roots do not own shards
    if old.kind != "pipelined" or old.collective.is_rooted or of_pairs:
        value = f"a {old.kind} {old.collective.name.value}" + (" of one phase" if of_pairs else "")
        rule = "a warm start needs trees for an allgather, a reduce_scatter or an allreduce of two phases, not {}"
        raise InvalidInput(rule, value, "use one that `chorale synth forest` made")
    ranks = network.compute_count
    number = np.full((ranks, ranks), -1, dtype=np.int32)
    number[network.src, network.dst] = np.arange(len(network.src))
    offsets = np.searchsorted(network.dst, np.arange(ranks + 1)).astype(np.int64)
    arcs = (offsets, network.src, number)
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
    # Edges of each root, from the root outwards, with the old units that use them. A missing parent or child is -1.
    edges = (offsets.astype(np.int64), new_rank[parent[kept]], new_rank[child[kept]], lo, hi)
    return Trees(*native.mend(edges, old.chunks_per_shard, arcs, network.supply, network.capacity.copy()))


def tree_schedule(
    topology: Topology,
    collective: Collective,
    trees_per_bandwidth: Fraction,
    split: SplitNetwork,
    trees: Trees,
    *,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
    carried: NDArray[np.int64] | None = None,
) -> Schedule:
    """Return the unverified pipelined allgather or broadcast along `trees`.

    With k trees per root (a tree of weight m counts as m trees), a shard is cut into k parts, which are assigned to its
    root's trees in order. An arc of the network without switches represents one or more paths in `topology`, which are
    used in order, so a transfer of several parts may become several transfers. O(trees * ranks + hops of all paths).

    Args:
        trees_per_bandwidth: U, so that a link of bandwidth b carries floor(U * b) trees.
        split: the network without its switches; `trees` are trees of `split.network`.
        carried: int64 per link, number of trees on the link; None for as many as its bandwidth allows.
    """
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST, CollectiveName.ALLGATHERV):
        raise InvalidInput("trees make an allgather or broadcast", collective.name.value, "choose one of these")
    carried = trees_on_links(topology, trees_per_bandwidth) if carried is None else carried
    rows = tree_transfers(topology, carried, split, trees)
    k = rows.units
    columns: tuple[NDArray[np.integer], ...]
    if not collective.is_rooted:
        chunks, columns = k, (rows.depth, rows.route, rows.root, rows.lo, rows.hi)
    else:
        chunks, (row, *intervals) = split_over_shards(rows.lo, rows.hi, topology.compute_count, k)
        columns = (rows.depth[row], rows.route[row], *intervals)
    bounds = ColumnBounds(rows.height, len(rows.routes), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    return Schedule(
        topology, collective, "pipelined", rows.height, chunks, transfers, rows.routes, method, parameters,
        certificate, None if collective.name.is_uneven else k,
    )  # fmt: skip


def forest(task: SynthesisTask, method: str = "forest") -> Schedule:
    """Return the allgather or broadcast along trees with the optimal time or, given k, the least time for this k.

    The certificate is the cut that proves the optimum. If such trees do not exist because a switch that cannot copy has
    more bandwidth out than in, the result is as fast as this switch allows.

    Args:
        task: the request, with the options k, gap, objective, seed and warm_start. The seed determines the order in
            which roots get trees. `warm_start` is a schedule for another network; its trees are kept if possible. If
            the option k is not set, the k of the warm start is used unless another k is faster.
        method: name of the method that the schedule contains.

    Raises:
        InvalidInput: if numbers would exceed 64 bits.
    """
    topology, collective, options = task.topology, task.collective, task.options
    warm_start, k = options.warm_start, options.k
    best, split, carried = _optimum_without_switches(task)
    first = None if warm_start is None else reused_trees(warm_start, topology, split.network)
    can_move = not topology.switch_count and automorphisms_are_transitive(topology)
    moves = Transversal.of(topology) if can_move else None
    trees = pack_trees(split.network, options.objective, options.seed, transversal=moves, first=first)
    parameters: dict[str, Parameter] = {"k": k, "objective": options.objective, "seed": options.seed}
    if best.least_time is not None:
        parameters["gap"] = str(options.gap)
    if warm_start is not None:
        parameters["warm_start"] = warm_start.id
    certificate = best.bound.to_json(topology)
    if collective.sizes is not None:
        collective = uneven_collective(collective.name, [size * best.k for size in collective.sizes])
    return tree_schedule(
        topology, collective, best.trees_per_bandwidth, split, trees,
        method=method, parameters=parameters, certificate=certificate, carried=carried,
    )  # fmt: skip


def _optimum_without_switches(task: SynthesisTask) -> tuple[Optimum, SplitNetwork, NDArray[np.int64]]:
    """Remove all switches; return (optimum for the first k for which this works, resulting network, trees per link).

    If no k works, a switch has more bandwidth out than in. Then only the bandwidths from `within_switches` are used.
    """
    topology, collective = task.topology, task.collective
    weights = shards_of_ranks(topology, collective)
    refusal: InvalidInput | None = None
    for uses_less in (False, True) if topology.switch_count else (False,):
        network, kept = topology, np.arange(len(topology.links))  # ids of the links that are used
        if uses_less:
            use = within_switches(topology, weights)
            network, kept = use.network, use.kept
        least_k = 1
        for best in _optima(replace(task, topology=network)):
            if best.k < least_k and best.least_time is not None:
                continue
            carried = np.zeros(len(topology.links), dtype=np.int64)
            carried[kept] = trees_on_links(network, best.trees_per_bandwidth)
            try:
                split = remove_switches(network_of_links(topology, carried, best.k * weights), names=topology.node_ids)
            except InvalidInput as error:
                refusal, least_k = refusal or error, 2 * best.k  # with a larger k, rounding down loses less
                continue
            if uses_less:
                exact = optimum(topology, collective)
                best = replace(best, cut=exact.cut, least_time=exact.time_per_shard, is_fewest=False)  # noqa: PLW2901
            return best, split, carried
    raise refusal or CheckFailed(
        "no number of trees is within --gap of the optimum", str(task.options.gap), "raise --gap"
    )


def _optima(task: SynthesisTask) -> Iterator[Optimum]:
    """Yield the optimum for the requested number of trees k or, without k, the solutions of `optima`.

    With a warm start, only the optimum for its k is yielded if no other number of trees is faster.
    """
    topology, collective, options = task.topology, task.collective, task.options
    if options.k is not None:
        yield fixed_k_optimum(topology, collective, options.k)
        return
    old_k = task.preferred_k if options.warm_start is None else options.warm_start.trees_per_root
    choices = optima(topology, collective, options.gap, old_k)
    best = next(choices)
    if options.warm_start is not None and old_k not in (None, best.k):
        with_old_k = fixed_k_optimum(topology, collective, old_k)
        if with_old_k.time_per_byte == best.time_per_byte:
            yield with_old_k
            return
    yield best
    yield from choices


MAX_UNITS = 4096
_NAMES = {
    CollectiveName.ALLGATHER: CollectiveName.ALLGATHERV,
    CollectiveName.REDUCE_SCATTER: CollectiveName.REDUCE_SCATTERV,
}


@dataclass(frozen=True, slots=True)
class ShardUnits:
    """Shard sizes in whole units. If a shard is not a whole number of units, it is padded.

    counts: number of units of each shard, including padding
    unit:   size of a unit in bytes
    """

    counts: tuple[int, ...]
    unit: Fraction


def shard_units(sizes: Sequence[int]) -> ShardUnits:
    """Return `sizes` in whole units: exact if the largest has up to 4096 units, else in units of 1/4096 of the largest.

    >>> shard_units([6000, 0, 9000])
    ShardUnits(counts=(2, 0, 3), unit=Fraction(3000, 1))
    """
    common, most = int(np.gcd.reduce(np.array(sizes, dtype=object))), max(sizes)
    if most // common <= MAX_UNITS:
        return ShardUnits(tuple(size // common for size in sizes), Fraction(common))
    return ShardUnits(tuple(-(-size * MAX_UNITS // most) for size in sizes), Fraction(most, MAX_UNITS))


def with_shards(topology: Topology, name: CollectiveName, counts: Sequence[int]) -> Collective:
    """Return the allgatherv or reduce_scatterv in which rank r's shard has `counts[r]` units.

    Raises InvalidInput if `name` is not allgather or reduce_scatter, or if there is not one size per rank.
    """
    if name not in _NAMES:
        choice = " or ".join(each.value for each in _NAMES)
        raise InvalidInput("only allgather and reduce_scatter take sizes of shards", name.value, f"choose {choice}")
    ranks = topology.compute_count
    if len(counts) != ranks:
        raise InvalidInput(
            f"sizes of shards must be {ranks}, one per rank", f"{len(counts)} sizes", "give one per rank"
        )
    return uneven_collective(_NAMES[name], counts)


def uneven_forest(topology: Topology, collective: Collective, options: Options | None = None) -> Schedule:
    """Return the unverified pipelined tree schedule for a collective made by `with_shards`; see `forest`."""
    task = SynthesisTask(topology, collective, options or Options(), SerialExecutor())
    if not collective.reduces:
        return forest(task)
    transposed, original_link = transpose_with_links(topology)
    gather = uneven_collective(CollectiveName.ALLGATHERV, collective.sizes or ())
    return reverse_allgather(forest(replace(task, topology=transposed, collective=gather)), topology, original_link)
