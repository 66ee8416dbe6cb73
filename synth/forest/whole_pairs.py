"""Pairs of trees for allreduce in whole numbers: how many each rank roots, and how many every link carries each way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from chorale.synth.bound.pair_split import PairSplit, trim_at_switches
from chorale.synth.errors import InvalidInput
from chorale.synth.flow.graph import LARGEST_AMOUNT, Integers
from chorale.synth.forest.network import network_of_links, overflow_error
from chorale.synth.forest.split.cuts import find_violated_cuts
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose_with_links

MAX_PAIRS = 2**17
"""Rounding to that many pairs of trees costs little, and packing and replaying more takes long."""

_HALVINGS = 16


@dataclass(frozen=True, slots=True, eq=False)
class IntegralPairs:
    """A split of the network into whole trees.

    roots:          int64 per rank: pairs of trees rooted there
    gather, reduce: int64 per link: out-trees and in-trees that it may carry
    time_per_byte:  the slowest link carries all it may in this time per byte of the vector
    """

    roots: Integers
    gather: Integers
    reduce: Integers
    time_per_byte: Fraction


def integral_pairs(
    topology: Topology, split: PairSplit, k: int | None = None, most_pairs: int = MAX_PAIRS
) -> IntegralPairs:
    """Return `split` in the fewest trees that lose nothing, or in `k` pairs of trees per rank on average.

    Where losing nothing would take more than `most_pairs` pairs of trees, there are about that many. Roots get them
    in proportion to their rates; the time is the least one found in which they fit, by bisection. Raises
    InvalidInput for k outside 1 to `most_pairs` / ranks and where amounts would leave 64 bits.
    """
    ranks = topology.compute_count
    if k is not None and not 1 <= k * ranks <= most_pairs:
        rule = f"there must be at least one tree per root, and at most {most_pairs} in all"
        raise InvalidInput(rule, f"k = {k}", f"choose k from 1 to {most_pairs // ranks}")
    scale = _common_scale(topology, split)
    if k is None and scale * split.rate <= most_pairs:
        return _rounded_down(topology, split, _integers([root * scale for root in split.roots]), scale)
    pairs = (k or most_pairs // ranks) * ranks
    return _at_least_scale(topology, split, _apportioned(split.roots, pairs))


def _common_scale(topology: Topology, split: PairSplit) -> Fraction:
    """Return the smallest factor that makes trees of all rates whole, and of the bandwidths of parallel links."""
    links = topology.links
    second = links.parallel_index() > 0
    ends = links.dst.astype(np.int64) * topology.node_count + links.src
    parallel = np.unique(links.bandwidth_class[np.isin(ends, ends[second])])
    values = {*split.roots, *split.gather, *split.reduce, *(links.bandwidths[place] for place in parallel)}
    denominator = lcm(*(value.denominator for value in values))
    return Fraction(denominator, gcd(*(int(value * denominator) for value in values)))


def _apportioned(rates: Sequence[Fraction], pairs: int) -> Integers:
    """Return `pairs` shared out in proportion to `rates`; what is left over goes to the largest remainders."""
    total = sum(rates, Fraction(0))
    shares = [rate * pairs / total for rate in rates]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(rates)), key=lambda rank: whole[rank] - shares[rank])
    for rank in by_remainder[: pairs - sum(whole)]:
        whole[rank] += 1
    return np.array(whole, dtype=np.int64)


def _at_least_scale(topology: Topology, split: PairSplit, roots: Integers) -> IntegralPairs:
    """Return the trees at the least scale found at which they fit: doubled until they do, then bisected."""
    low = high = int(roots.sum()) / split.rate
    while not _fits(topology, found := _rounded_down(topology, split, roots, high)):
        low, high = high, 2 * high
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        if _fits(topology, tried := _rounded_down(topology, split, roots, middle)):
            high, found = middle, tried
        else:
            low = middle
    return found


def _rounded_down(topology: Topology, split: PairSplit, roots: Integers, scale: Fraction) -> IntegralPairs:
    """Return `split` times `scale` in whole trees per link, no switch passing on what it does not get."""
    arcs, links = split.arcs, topology.links
    ends = zip(arcs.src.tolist(), arcs.dst.tolist(), strict=True)
    amounts = zip(split.gather, split.reduce, strict=True)
    wanted = {pair: [int(scale * amount) for amount in both] for pair, both in zip(ends, amounts, strict=True)}
    carried: tuple[list[int], list[int]] = ([], [])
    for src, dst, place in zip(links.src.tolist(), links.dst.tolist(), links.bandwidth_class.tolist(), strict=True):
        room, left = int(scale * links.bandwidths[place]), wanted.get((src, dst), [0, 0])
        for way, of_way in enumerate(carried):
            of_way.append(min(room, left[way]))
            room -= of_way[-1]
            left[way] -= of_way[-1]
    gather, reduce = map(_integers, carried)
    trim_at_switches(topology, links.src, links.dst, gather)
    trim_at_switches(topology, links.dst, links.src, reduce)
    slowest = max(
        int(trees) / links.bandwidths[place]
        for trees, place in zip(gather + reduce, links.bandwidth_class, strict=True)
    )
    return IntegralPairs(roots, gather, reduce, slowest / int(roots.sum()))


def _integers(amounts: Sequence[int | Fraction]) -> Integers:
    if max(amounts) * len(amounts) >= LARGEST_AMOUNT:
        raise overflow_error(f"{int(max(amounts))} trees on a link")
    return np.array([int(amount) for amount in amounts], dtype=np.int64)


def _fits(topology: Topology, pairs: IntegralPairs) -> bool:
    """Whether all cuts carry the trees that must cross them, out-trees and in-trees."""
    turned, origin = transpose_with_links(topology)
    networks = (
        network_of_links(topology, pairs.gather, pairs.roots),
        network_of_links(turned, pairs.reduce[origin], pairs.roots),
    )
    return all(len(find_violated_cuts(network, 1)) == 0 for network in networks)
