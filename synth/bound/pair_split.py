"""How much of every link goes to out-trees and to in-trees, and how fast each root may go: counted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bound.cut_search import CutSearch
from chorale.synth.bound.optimum import improving_cuts
from chorale.synth.bound.pair_program import PairSolution
from chorale.synth.errors import InvalidInput
from chorale.synth.flow.graph import Integers
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class MergedArcs:
    """Links without self-loops, parallel ones joined. src, dst: int64 per arc;  width: bandwidth per arc."""

    src: Integers
    dst: Integers
    width: tuple[Fraction, ...]

    @property
    def transposed(self) -> MergedArcs:
        return MergedArcs(self.dst, self.src, self.width)


@dataclass(frozen=True, slots=True, eq=False)
class PairSplit:
    """A feasible split: trees rooted at rank v may carry `roots[v]`, in and out, all at once.

    gather, reduce: bandwidth per arc for out-trees and in-trees, together at most its width. Switches get as much as
    they pass on to out-trees, at least, and pass on as much as they get of in-trees, so that trees exist.
    """

    arcs: MergedArcs
    roots: tuple[Fraction, ...]
    gather: tuple[Fraction, ...]
    reduce: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction:
        """M / T_B of the allreduce."""
        return sum(self.roots, Fraction(0))


def merged_arcs(topology: Topology) -> MergedArcs:
    """Return the arcs of `topology` in the order of (src, dst). O(links log links)."""
    links = topology.links
    useful = np.flatnonzero(links.src != links.dst)
    keys = links.src[useful].astype(np.int64) * topology.node_count + links.dst[useful]
    pairs, place = np.unique(keys, return_inverse=True)
    width = [Fraction(0)] * len(pairs)
    for arc, bandwidth_class in zip(place.tolist(), links.bandwidth_class[useful].tolist(), strict=True):
        width[arc] += links.bandwidths[bandwidth_class]
    return MergedArcs(pairs // topology.node_count, pairs % topology.node_count, tuple(width))


def even_split(topology: Topology, arcs: MergedArcs) -> PairSplit | None:
    """Return reduce_scatter with allgather: equal roots, half of every link each; None on one-way networks."""
    if not topology.is_eulerian:
        return None
    _, scale = topology.links.integer_bandwidths()
    halves = np.array([int(width * scale) for width in arcs.width], dtype=np.int64)
    ones = np.ones(topology.compute_count, dtype=np.int64)
    return _counted(topology, arcs, (ones, halves, halves), Fraction(1, 2 * scale))


def rounded_split(topology: Topology, arcs: MergedArcs, point: PairSolution, unit: Fraction) -> PairSplit | None:
    """Return `point` rounded down to whole `unit`s and slowed down until all cuts hold; None if nothing is left."""
    room = np.array([int(width / unit) for width in arcs.width], dtype=np.int64)
    roots, gather, reduce = (_whole(values, unit) for values in (point.roots, point.gather, point.reduce))
    gather = np.minimum(gather, room)
    reduce = np.minimum(reduce, room - gather)
    trim_at_switches(topology, arcs.src, arcs.dst, gather)
    trim_at_switches(topology, arcs.dst, arcs.src, reduce)
    return _counted(topology, arcs, (roots, gather, reduce), unit)


def _whole(values: NDArray[np.float64], unit: Fraction) -> Integers:
    # A solver's 2.9999999 is a 3; what that adds too much is taken off again where it matters.
    return np.floor(values / float(unit) + 1e-4).astype(np.int64)


def trim_at_switches(topology: Topology, src: NDArray[np.integer], dst: NDArray[np.integer], amounts: Integers) -> None:
    """Take from the `amounts` of arcs out of switches what these do not get.

    What is taken from one switch may be missing at the next, around circles too; later rounds take twice as much as
    the one before, so that circles run dry.
    """
    switches = range(topology.compute_count, topology.node_count)
    rounds = 0
    short = True
    while short:
        short = False
        for switch in switches:
            outgoing = np.flatnonzero((src == switch) & (amounts > 0))
            excess = int(amounts[outgoing].sum() - amounts[dst == switch].sum())
            short |= excess > 0
            wanted = max(excess, 0) << max(0, rounds - len(switches))
            for arc in outgoing:
                taken = min(wanted, int(amounts[arc]))
                amounts[arc] -= taken
                wanted -= taken
        rounds += 1


def _counted(
    topology: Topology, arcs: MergedArcs, amounts: tuple[Integers, Integers, Integers], unit: Fraction
) -> PairSplit | None:
    """Return the split with the rates of roots scaled to what the narrowest cut allows."""
    roots, gather, reduce = amounts
    if not roots.any():
        return None
    try:
        slowest = max(_time(topology, arcs, roots, gather), _time(topology, arcs.transposed, roots, reduce))
    except InvalidInput:  # rounding has cut off a rank, or the numbers are too fine for 64 bits
        return None
    return PairSplit(
        arcs,
        tuple(int(root) * unit / slowest for root in roots),
        tuple(int(amount) * unit for amount in gather),
        tuple(int(amount) * unit for amount in reduce),
    )


def _time(topology: Topology, arcs: MergedArcs, roots: Integers, amounts: Integers) -> Fraction:
    """Return the largest (roots outside T) / (amounts into T)."""
    columns: Sequence[list[int]] = (arcs.src.tolist(), arcs.dst.tolist(), amounts.tolist())
    links = Links.build(Link(src, dst, Fraction(amount)) for src, dst, amount in zip(*columns, strict=True) if amount)
    part = Topology(topology.spec, topology.node_ids, topology.compute_count, links)
    *_, (time, _) = improving_cuts(CutSearch.of(part, roots))
    return time
