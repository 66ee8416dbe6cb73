"""Bandwidth-optimal schedules of trees on any fabric, switches included (the method `forest`).

Data streams down k trees per root; the slowest link sets the time. The optimum is known from cuts; links get the whole
numbers of trees that it allows, switches are removed without loss, trees are packed into what is left and mapped back
to physical links. Sources: bandwidth-optimal pipeline; ForestColl.

Shards with their own sizes: The bound is that of equal shards with weights: all that starts outside a set of nodes
must get into it. Trees as fast as the narrowest cut are packed as for equal shards, with supplies that differ from
root to root.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import (
    FEW_TREES,
    Bound,
    CutSearch,
    Optimum,
    close_rates,
    fewest_trees,
    fixed_k_optimum,
    improving_cuts,
    node_set,
    optima,
    optimum,
)
from chorale.synth.bounds.switch_limits import within_switches
from chorale.synth.collective import Collective, CollectiveName, uneven_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.forest.network import Trees, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import best_trees, pack_trees
from chorale.synth.methods.forest.split.splitting_off import SplitNetwork
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import split_over_shards, tree_transfers
from chorale.synth.methods.forest.warm_start import reused_trees
from chorale.synth.methods.method import DEFAULT_GAP, Objective, SynthesisTask
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Schedule
from chorale.synth.schedule.transforms import reverse_allgather
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.topology.translations import Transversal


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
    """Return the pipelined allgather, or broadcast, that sends along `trees`.

    carried: trees on each link, where that is less than its bandwidth allows
    split: `forest_network(topology, trees_per_bandwidth, ...)` without its switches; `trees` are trees of
    `split.network`. With k trees per root (weights added up), a shard is cut into k parts, one for each; the trees
    of one root take them in their order. An arc hands out its paths in their order, so that a transfer of
    several parts may become several transfers. Not verified. O(trees * ranks + hops of all paths).
    """
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST, CollectiveName.ALLGATHERV):
        possible = "allgather or broadcast"
        raise InvalidInput(f"trees spread data: they make {possible}", collective.name.value, f"choose {possible}")
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
    """Return the allgather or broadcast down trees whose time is the optimum, or the least for k trees per root.

    task:    of its options k, gap, objective, seed, seeds and warm_start are used. The seed sets the order in which
             roots get trees; of several seeds the packing that suits the objective best is taken. Trees of the warm
             start, a schedule for another fabric, are kept as far as they hold; without k, its k is used where no
             other is faster.
    method:  the name that the schedule carries
    The certificate is the cut that allows no less. Where a switch with more bandwidth out than in, which cannot copy,
    stands in the way of trees as fast as that, they are as fast as it lets them. Raises InvalidInput where amounts
    would leave 64 bits.
    """
    topology, collective, options = task.topology, task.collective, task.options
    warm_start, k = options.warm_start, options.k
    best, split, carried = _optimum_without_switches(task)
    first = None if warm_start is None else reused_trees(warm_start, topology, split.network)
    trees = best_trees(task, split.network, _symmetries(topology), first)
    parameters: dict[str, Parameter] = {
        "k": k, "objective": options.objective, "seed": options.seed, "seeds": options.seeds,
    }  # fmt: skip
    if best.least_time is not None:
        parameters["gap"] = str(options.gap)
    if warm_start is not None:
        parameters["warm_start"] = warm_start.id
    certificate = best.bound.to_json(topology)
    return tree_schedule(
        topology, collective, best.trees_per_bandwidth, split, trees,
        method=method, parameters=parameters, certificate=certificate, carried=carried,
    )  # fmt: skip


def _optimum_without_switches(task: SynthesisTask) -> tuple[Optimum, SplitNetwork, NDArray[np.int64]]:
    """Return the optimum for k trees per root, its network without switches for the first k where that succeeds, and
    the trees on each link.

    If it succeeds for none, a switch sends more than it receives: then its links are used less (`within_switches`).
    """
    topology, collective = task.topology, task.collective
    weights = np.zeros(topology.compute_count, dtype=np.int64)
    weights[slice(None) if collective.root is None else collective.root] = 1
    found, refusal = _removed(task, topology, np.arange(len(topology.links)), weights)
    if found is None and topology.switch_count:
        exact = optimum(topology, collective)
        use = within_switches(topology, weights)
        found, refusal = _removed(task, use.network, use.kept, weights)
        if found is not None:
            bound = replace(found[0], cut=exact.cut, least_time=exact.time_per_shard, is_fewest=False)
            return bound, *found[1:]
    if found is None:
        raise refusal or CheckFailed("some number of trees must be as fast as asked", str(task.options.gap), "raise it")
    return found


def _removed(
    task: SynthesisTask, network: Topology, kept: NDArray[np.int64], weights: NDArray[np.int64]
) -> tuple[tuple[Optimum, SplitNetwork, NDArray[np.int64]] | None, InvalidInput | None]:
    """Return an optimum of `network` without its switches, or why not; `kept` are its links in the topology."""
    refusal: InvalidInput | None = None
    least_k = 1
    for best in _optima(replace(task, topology=network)):
        if best.k < least_k and best.least_time is not None:
            continue
        carried = np.zeros(len(task.topology.links), dtype=np.int64)
        carried[kept] = trees_on_links(network, best.trees_per_bandwidth)
        try:
            split = remove_switches(
                network_of_links(task.topology, carried, best.k * weights), names=task.topology.node_ids
            )
        except InvalidInput as error:
            refusal, least_k = refusal or error, 2 * best.k  # rounding down weighs less, also at switches
        else:
            return (best, split, carried), None
    return None, refusal


def _optima(task: SynthesisTask) -> Iterator[Optimum]:
    """Yield the optimum for the k that was asked for; else what is close enough, with the k of the warm start first
    where no other number of trees is faster."""
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


def _symmetries(topology: Topology) -> Transversal | None:
    """Return known symmetries that take rank 0 to every rank, of networks without switches; packing checks them."""
    if topology.switch_count or not automorphisms_are_transitive(topology):
        return None
    return Transversal.of(topology)


MAX_UNITS = 4096
_NAMES = {
    CollectiveName.ALLGATHER: CollectiveName.ALLGATHERV,
    CollectiveName.REDUCE_SCATTER: CollectiveName.REDUCE_SCATTERV,
}


@dataclass(frozen=True, slots=True)
class ShardUnits:
    """counts: whole units of each shard;  unit: of what was asked for; more of it than that is padding."""

    counts: tuple[int, ...]
    unit: Fraction


def shard_units(sizes: Sequence[int]) -> ShardUnits:
    """Return `sizes` in units, exactly where that takes at most 4096 for the largest, else in as many, rounded up.

    >>> shard_units([6000, 0, 9000])
    ShardUnits(counts=(2, 0, 3), unit=Fraction(3000, 1))
    """
    common, most = int(np.gcd.reduce(np.array(sizes, dtype=object))), max(sizes)
    if most // common <= MAX_UNITS:
        return ShardUnits(tuple(size // common for size in sizes), Fraction(common))
    return ShardUnits(tuple(-(-size * MAX_UNITS // most) for size in sizes), Fraction(most, MAX_UNITS))


@dataclass(frozen=True, slots=True)
class UnevenOptimum:
    """trees: of each unit of a shard;  bound: of the time per byte of all shards together, in ascending nodes.

    The trees take at most as much longer than the bound as was accepted.
    """

    collective: Collective
    trees: int
    trees_per_bandwidth: Fraction
    bound: Bound


def uneven_optimum(
    topology: Topology, name: CollectiveName, counts: Sequence[int], gap: Fraction = Fraction(0)
) -> UnevenOptimum:
    """Return the least time of an allgather or reduce-scatter whose shards have `counts` units, and what reaches it.

    gap: of time that may be lost, where that would take more than `FEW_TREES` trees of each unit

    Raises InvalidInput for another collective, for sizes that are not one for each rank, and where amounts would leave
    64 bits.
    """
    if name not in _NAMES:
        choice = " or ".join(each.value for each in _NAMES)
        raise InvalidInput("sizes of shards are for allgather and reduce_scatter", name.value, f"choose {choice}")
    ranks = topology.compute_count
    if len(counts) != ranks:
        raise InvalidInput(f"there must be a size for each of {ranks} ranks", len(counts), "give one for each")
    collective = uneven_collective(_NAMES[name], counts)
    is_gather = name == CollectiveName.ALLGATHER
    network = topology if is_gather else transpose_with_links(topology)[0]
    search = CutSearch.of(network, np.array(counts, dtype=np.int64))
    *_, (time, cut) = improving_cuts(search)
    bound = Bound("into" if is_gather else "out-of", node_set(cut), time / sum(counts))
    trees = fewest_trees(search, time, cut).k
    if trees <= FEW_TREES or gap == 0:
        return UnevenOptimum(collective, trees, trees * time, bound)
    rate, trees = next(close_rates(search, time, cut, gap), (trees * time, trees))
    return UnevenOptimum(collective, trees, rate, bound)


def uneven_forest(
    topology: Topology,
    name: CollectiveName,
    counts: Sequence[int],
    objective: Objective = "height",
    seed: int = 0,
    gap: Fraction = DEFAULT_GAP,
) -> Schedule:
    """Return the pipelined schedule of trees that takes the optimum, or at most `gap` longer; not verified.

    The certificate is the cut that allows no less; switches that send more than they receive may, too, as in `forest`.
    Raises InvalidInput as `uneven_optimum` does.
    """
    best = uneven_optimum(topology, name, counts, gap)
    if name == CollectiveName.ALLGATHER:
        return _gather(topology, best, counts, objective, seed, gap)
    transposed, original_link = transpose_with_links(topology)
    turned = uneven_optimum(transposed, CollectiveName.ALLGATHER, counts, gap)
    gather = _gather(transposed, turned, counts, objective, seed, gap)
    return reverse_allgather(gather, topology, original_link)


def _gather(
    topology: Topology, best: UnevenOptimum, counts: Sequence[int], objective: Objective, seed: int, gap: Fraction
) -> Schedule:
    certificate = best.bound.to_json(topology)
    carried = trees_on_links(topology, best.trees_per_bandwidth)
    try:
        sizes = [count * best.trees for count in counts]
        split = remove_switches(network_of_links(topology, carried, np.array(sizes)), names=topology.node_ids)
    except InvalidInput:
        if not topology.switch_count:
            raise
        use = within_switches(topology, np.array(counts))
        best = uneven_optimum(use.network, CollectiveName.ALLGATHER, counts, gap)
        sizes, carried = [count * best.trees for count in counts], np.zeros_like(carried)
        carried[use.kept] = trees_on_links(use.network, best.trees_per_bandwidth)
        split = remove_switches(network_of_links(topology, carried, np.array(sizes)), names=topology.node_ids)
    return tree_schedule(
        topology, uneven_collective(CollectiveName.ALLGATHERV, sizes), best.trees_per_bandwidth, split,
        pack_trees(split.network, objective, seed), method="forest", parameters={"objective": objective, "seed": seed},
        certificate=certificate, carried=carried,
    )  # fmt: skip
