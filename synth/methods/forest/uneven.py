"""Allgather and reduce-scatter whose shards have sizes of their own: trees of each root in proportion to its size.

The bound is that of equal shards with weights: all that starts outside a set of nodes must get into it. Trees as fast
as the narrowest cut are packed as for equal shards, with supplies that differ from root to root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.cut_search import CutSearch
from chorale.synth.bounds.fewest_trees import fewest_trees
from chorale.synth.bounds.optimum import Bound, improving_cuts, node_set
from chorale.synth.collective import Collective, CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import forest_network, trees_on_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import tree_transfers
from chorale.synth.methods.method import Objective
from chorale.synth.schedule.schedule import ColumnBounds, Schedule
from chorale.synth.schedule.transforms import reverse_allgather
from chorale.synth.topology.topology import Topology, transpose_with_links

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
    """trees: of each unit of a shard;  bound: of the time per byte of all shards together, in ascending nodes."""

    collective: Collective
    trees: int
    trees_per_bandwidth: Fraction
    bound: Bound


def uneven_optimum(topology: Topology, name: CollectiveName, counts: Sequence[int]) -> UnevenOptimum:
    """Return the least time of an allgather or reduce-scatter whose shards have `counts` units, and what reaches it.

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
    trees = fewest_trees(search, time, cut).k
    bound = Bound("into" if is_gather else "out-of", node_set(cut), time / sum(counts))
    return UnevenOptimum(collective, trees, trees * time, bound)


def uneven_forest(
    topology: Topology, name: CollectiveName, counts: Sequence[int], objective: Objective = "height", seed: int = 0
) -> Schedule:
    """Return the pipelined schedule of trees that takes the optimum; not verified.

    The certificate is the cut that allows no less. Raises InvalidInput as `uneven_optimum` does, and where a switch
    with more bandwidth out than in stands in the way of trees as fast as that.
    """
    best = uneven_optimum(topology, name, counts)
    if name == CollectiveName.ALLGATHER:
        return _gather(topology, best, counts, objective, seed)
    transposed, original_link = transpose_with_links(topology)
    gather = _gather(transposed, uneven_optimum(transposed, CollectiveName.ALLGATHER, counts), counts, objective, seed)
    return reverse_allgather(gather, topology, original_link)


def _gather(
    topology: Topology, best: UnevenOptimum, counts: Sequence[int], objective: Objective, seed: int
) -> Schedule:
    scale = best.trees_per_bandwidth
    network = forest_network(topology, scale, np.array(counts, dtype=np.int64) * best.trees)
    split = remove_switches(network, names=topology.node_ids)
    rows = tree_transfers(topology, trees_on_links(topology, scale), split, pack_trees(split.network, objective, seed))
    chunks = max(counts) * best.trees
    collective = uneven_collective(CollectiveName.ALLGATHERV, [count * best.trees for count in counts])
    bounds = ColumnBounds(rows.height, len(rows.routes), topology.compute_count, chunks)
    no_sums = np.zeros(len(rows.route), dtype=np.uint8)
    transfers = bounds.pack((rows.depth, rows.route, rows.root, rows.lo, rows.hi, no_sums))
    return Schedule(
        topology, collective, "pipelined", rows.height, chunks, transfers, rows.routes, "forest",
        {"objective": objective, "seed": seed}, best.bound.to_json(topology),
    )  # fmt: skip
