"""Makes allreduces along pairs of trees: in-trees carry sums up to many roots while out-trees carry results down.

Every root owns a part of the vector in proportion to the total rate of its trees. A fraction of every link's bandwidth
is used to reduce the vector to the roots, and the rest to spread the results (ForestColl, appendix E).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from chorale.synth.bounds.lower_bound import lower_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.optimum import COARSE_K, FEW_TREES, fixed_k_optimum, optima
from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Integers
from chorale.synth.bounds.tree_pairs import (
    PairSplit,
    is_within_limits,
    pairs_if_countable,
    split_of_values,
    trim_at_switches,
)
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import (
    apportioned,
    at_least_scale,
    carries_all_trees,
    network_of_links,
    overflow_error,
)
from chorale.synth.methods.forest.reversible_trees import (
    PairedTrees,
    ReversibleTrees,
    packed_trees,
    schedule_of_pairs,
    there_and_back,
)
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.schedule.schedule import Parameter, Schedule
from chorale.synth.topology.expansions import Relabelled
from chorale.synth.topology.topology import Topology, transpose_with_links

MAX_PAIRS = 2**17
"""Maximum number of tree pairs. Rounding to this number loses little speed, and more pairs take long to pack."""

_FEW_LINKS = 256
"""With up to this number of links, every small number of pairs per rank is tried."""
_CLOSE = Fraction(1001, 1000)
_TRACES = (Fraction(1, 10**6), Fraction(1, 10**4), Fraction(1, 1000), Fraction(1, 100))
_SMALL_K = (1, 2, 3, 4, 6, 8, 12, 16, 64, 256)


@dataclass(frozen=True, slots=True, eq=False)
class IntegralPairs:
    """Numbers of trees: how many pairs have their root at each rank, and how many trees each link may carry.

    roots:          int64 per rank: number of tree pairs with this root
    gather, reduce: int64 per link: maximum number of out-trees and in-trees on the link
    time_per_byte:  time that the slowest link needs for all these trees, per byte of the vector
    """

    roots: Integers
    gather: Integers
    reduce: Integers
    time_per_byte: Fraction


def integral_pairs(
    topology: Topology, split: PairSplit, k: int | None = None, most_pairs: int = MAX_PAIRS
) -> IntegralPairs:
    """Round `split` to the fewest whole trees that lose no speed or, given `k`, to an average of k pairs per rank.

    If more than `most_pairs` pairs would be needed, about `most_pairs` are used. In this case and if k is given, roots
    get pairs in proportion to their rates, and the least time in which these pairs fit is found by bisection.

    Raises:
        InvalidInput: for k outside 1 to `most_pairs` / ranks, and if numbers would exceed 64 bits.
    """
    ranks = topology.compute_count
    if k is not None and not 1 <= k * ranks <= most_pairs:
        rule = f"--k must give at least one tree per root, and at most {most_pairs} in all"
        raise InvalidInput(rule, f"k = {k}", f"choose k from 1 to {most_pairs // ranks}")
    # The smallest factor that turns all rates and the bandwidths of parallel links into whole numbers of trees:
    links = topology.links
    second = links.parallel_index() > 0
    ends = links.dst.astype(np.int64) * topology.node_count + links.src
    parallel = np.unique(links.bandwidth_class[np.isin(ends, ends[second])])
    values = {
        *split.roots,
        *split.gather,
        *split.reduce,
        *(links.bandwidths[bandwidth_class] for bandwidth_class in parallel),
    }
    denominator = lcm(*(value.denominator for value in values))
    scale = Fraction(denominator, gcd(*(int(value * denominator) for value in values)))
    if k is None and scale * split.rate <= most_pairs:
        return _rounded_down(topology, split, _integers([root * scale for root in split.roots]), scale)
    pairs = (k or most_pairs // ranks) * ranks
    return at_least_scale(pairs / split.rate, *_apportioned_pairs(topology, split, pairs))


def _apportioned_pairs(
    topology: Topology, split: PairSplit, pairs: int
) -> tuple[Callable[[Fraction], IntegralPairs], Callable[[IntegralPairs], bool]]:
    """Return two functions: one rounds `split` to `pairs` pairs at a given scale, the other tests whether these fit."""
    roots = np.array(apportioned(split.roots, pairs), dtype=np.int64)
    turned, origin = transpose_with_links(topology)

    def fits(whole: IntegralPairs) -> bool:
        outward = network_of_links(topology, whole.gather, roots)
        return carries_all_trees(outward) and carries_all_trees(network_of_links(turned, whole.reduce[origin], roots))

    return lambda scale: _rounded_down(topology, split, roots, scale), fits


def best_integral_pairs(topology: Topology, split: PairSplit, gap: Fraction = Fraction(0)) -> IntegralPairs:
    """Round `split` to whole trees like `integral_pairs` without k. If this loses more than 0.1 %, seek faster trees.

    Links that are too narrow for one tree may cause such a loss, so splits without tiny flows, and small numbers of
    pairs per rank, are tried as well.

    gap: accepted time above the optimum (relative), if the optimum needs more than `FEW_TREES` pairs per rank
    """
    best = integral_pairs(topology, split)
    least, ranks = 1 / split.rate, topology.compute_count
    if gap > 0 and best.roots.sum() > FEW_TREES * ranks:
        few = range(1, FEW_TREES) if len(topology.links) <= _FEW_LINKS else COARSE_K
        for k in (*few, *(k for k in COARSE_K if k > few[-1])):
            if k * ranks >= best.roots.sum():
                break
            rounded_down, fits = _apportioned_pairs(topology, split, k * ranks)
            low, high = k * ranks * least, k * ranks * least * (1 + gap)
            if fits(rounded_down(high)):
                return at_least_scale(low, rounded_down, fits, high)
    for candidate in _alternatives(topology, split) if best.time_per_byte > least * _CLOSE else ():
        if candidate.time_per_byte < best.time_per_byte:
            best = candidate
        if best.time_per_byte <= least * _CLOSE:
            break
    return best


def _alternatives(topology: Topology, split: PairSplit) -> Iterator[IntegralPairs]:
    tries: list[tuple[PairSplit | None, int | None]] = []
    for least in _TRACES:  # leave out roots and flows smaller than `least` times the largest one
        root, width = max(split.roots) * least, max(split.arcs.width) * least
        roots = [value if value >= root else Fraction(0) for value in split.roots]
        amounts = [value if value >= width else Fraction(0) for value in (*split.gather, *split.reduce)]
        tries.append((split_of_values(topology, split.arcs, [*roots, *amounts]), None))
    tries += [(split, k) for k in _SMALL_K if k * topology.compute_count <= MAX_PAIRS]
    for other, k in tries:
        if other is None:
            continue
        try:
            yield integral_pairs(topology, other, k)
        except InvalidInput:  # amounts exceed 64 bits; the next attempt has smaller amounts
            continue


def _rounded_down(topology: Topology, split: PairSplit, roots: Integers, scale: Fraction) -> IntegralPairs:
    """Return `split` times `scale`, rounded down to whole trees. No switch sends more than it receives."""
    arcs, links = split.arcs, topology.links
    ends = zip(arcs.src.tolist(), arcs.dst.tolist(), strict=True)
    amounts = zip(split.gather, split.reduce, strict=True)
    demand = {pair: [int(scale * amount) for amount in both] for pair, both in zip(ends, amounts, strict=True)}
    carried: tuple[list[int], list[int]] = ([], [])
    for src, dst, bandwidth_class in zip(
        links.src.tolist(), links.dst.tolist(), links.bandwidth_class.tolist(), strict=True
    ):
        room, left = int(scale * links.bandwidths[bandwidth_class]), demand.get((src, dst), [0, 0])
        for direction, of_direction in enumerate(carried):
            of_direction.append(min(room, left[direction]))
            room -= of_direction[-1]
            left[direction] -= of_direction[-1]
    gather, reduce = map(_integers, carried)
    trim_at_switches(topology, links.src, links.dst, gather)
    trim_at_switches(topology, links.dst, links.src, reduce)
    slowest = max(
        int(trees) / links.bandwidths[bandwidth_class]
        for trees, bandwidth_class in zip(gather + reduce, links.bandwidth_class, strict=True)
    )
    return IntegralPairs(roots, gather, reduce, slowest / int(roots.sum()))


def _integers(amounts: Sequence[int | Fraction]) -> Integers:
    if max(amounts) * len(amounts) >= LARGEST_AMOUNT:
        raise overflow_error(f"{int(max(amounts))} trees on a link")
    return np.array([int(amount) for amount in amounts], dtype=np.int64)


def pair_schedule(
    topology: Topology,
    pairs: IntegralPairs,
    options: Options,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the unverified pipelined allreduce along in-trees and out-trees, without a barrier between the two halves.

    In-trees are out-trees of the transpose, run backwards in time. The vector is cut into one unit per pair of trees.
    Roots own intervals of units in rank order, independently of shards. An out-tree starts when its sums are complete.
    So that the highest out-trees can start early, the lowest in-trees of the same root sum their units.

    Raises:
        InvalidInput: if a switch cannot be removed (see `remove_switches`).
    """
    turned, origin = transpose_with_links(topology)

    def packed(network: Topology, carried: Integers, highest_first: bool) -> ReversibleTrees:
        itself = Relabelled(network, np.arange(len(network.links), dtype=np.int32), network.compute_count)
        return packed_trees(network, itself, (carried, pairs.roots), options, highest_first=highest_first)

    inward = there_and_back(packed(turned, pairs.reduce[origin], highest_first=False), origin).inward
    both = PairedTrees(inward, packed(topology, pairs.gather, highest_first=True))
    return schedule_of_pairs(topology, ALLREDUCE, both, method="forest", parameters=parameters, certificate=certificate)


def faster_pairs(task: SynthesisTask) -> Schedule | None:
    """Return the allreduce along pairs of trees, or None if a reduce_scatter followed by an allgather is as fast.

    The certificate proves a bound for all pairs of trees (`check_pair_certificate`). Also returns None if the network
    exceeds the limits of `tree_pairs`. The linear program is skipped if these two phases reach a lower bound.

    Args:
        task: the request. Its options gap, objective and seed are used for each half as in `forest`. With the option k,
            k pairs of trees per rank on average are compared with two phases of k trees per root.

    Raises:
        InvalidInput: in the same cases as `integral_pairs` and `pair_schedule`.
    """
    topology, options = task.topology, task.options
    two_phases = reduce_scatter_allgather_time(topology)
    if not is_within_limits(topology) or lower_bound(topology, ALLREDUCE, two_phases).value >= two_phases:
        return None
    k = options.k
    pairs = pairs_if_countable(topology, even=k is not None)
    if pairs is None:
        return None
    if k is not None:
        whole = integral_pairs(topology, pairs.split, k)
    else:
        whole = best_integral_pairs(topology, pairs.split, options.gap)
    phases = (
        next(optima(topology, phase, options.gap)) if k is None else fixed_k_optimum(topology, phase, k)
        for phase in (REDUCE_SCATTER, ALLGATHER)
    )
    if whole.time_per_byte >= sum((phase.time_per_byte for phase in phases), Fraction(0)):
        return None
    parameters: dict[str, Parameter] = {"k": k, "objective": options.objective, "seed": options.seed}
    if k is None and options.gap and whole.time_per_byte * pairs.split.rate > 1:
        parameters["gap"] = str(options.gap)
    return pair_schedule(topology, whole, options, parameters, pairs.certificate)
