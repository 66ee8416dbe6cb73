"""Bounds by trying every set of nodes, and every partition: slow, obvious, for small networks.

The best pairs of trees for allreduce come from a linear program with every cut, and splits are checked in rationals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from chorale.synth.collective import Collective
from chorale.synth.topology.topology import Topology, transpose


@dataclass(frozen=True)
class AllCuts:
    """Every set T of nodes that holds a rank, as bits of `masks`, for shards that start `weights[rank]` at a rank."""

    topology: Topology
    weights: tuple[int, ...]

    @cached_property
    def masks(self) -> NDArray[np.int64]:
        masks = np.arange(1, 1 << self.topology.node_count)
        return masks[masks & (1 << self.topology.compute_count) - 1 != 0]

    @cached_property
    def outside(self) -> NDArray[np.int64]:
        """Shards that start outside of each set."""
        return sum(weight * (1 - (self.masks >> rank & 1)) for rank, weight in enumerate(self.weights))  # type: ignore[return-value]

    def entering(self, per_link: list[int]) -> NDArray[np.int64]:
        """Sum of `per_link` over the links into each set."""
        total = np.zeros(len(self.masks), dtype=np.int64)
        for amount, src, dst in zip(
            per_link, self.topology.links.src.tolist(), self.topology.links.dst.tolist(), strict=True
        ):
            total += amount * (self.masks >> dst & 1) * (1 - (self.masks >> src & 1))
        return total

    def optimum(self) -> Fraction:
        """Return the largest (shards outside) / (bandwidth into T)."""
        units, scale = self.topology.links.integer_bandwidths()
        pairs = set(zip(self.outside.tolist(), self.entering(units.tolist()).tolist(), strict=True))
        return max(Fraction(outside * scale, bandwidth) for outside, bandwidth in pairs if outside)

    def carries(self, trees_per_bandwidth: Fraction, k: int) -> bool:
        """Whether links of floor(U * b) let k trees per shard into every set."""
        amounts = [int(trees_per_bandwidth * link.bandwidth) for link in self.topology.links]
        return bool(np.all(self.entering(amounts) >= k * self.outside))


def previous_breakpoint(topology: Topology, trees_per_bandwidth: Fraction) -> Fraction:
    """Return the largest m / b below U, m whole and b the bandwidth of a link: floor(U * b) changes nowhere between."""
    return max((-(-trees_per_bandwidth * value // 1) - 1) / value for value in topology.links.bandwidths)


def cuts_of(topology: Topology, collective: Collective) -> AllCuts:
    """Return the cuts that the shards of an operation of one phase cross."""
    ranks = range(topology.compute_count)
    weights = tuple(int(collective.root in (None, rank)) for rank in ranks)
    return AllCuts(transpose(topology) if collective.reduces else topology, weights)


def slowest_cut(topology: Topology, collective: Collective) -> Fraction:
    """Return the time per byte that the narrowest cut of all allows an operation of one phase."""
    return cuts_of(topology, collective).optimum() / (1 if collective.is_rooted else topology.compute_count)


CapacityArc = tuple[int, int, int]
"""(source, destination, capacity)"""


def violated_sink_sides(
    nodes: int, arcs: Sequence[CapacityArc], supply: Sequence[int], sinks: Sequence[int]
) -> Iterator[set[int]]:
    """Yield every node set with a sink inside that gets less capacity from outside than the supply out there."""
    for mask in range(1, 1 << nodes):
        inside = {node for node in range(nodes) if mask >> node & 1}
        if inside.isdisjoint(sinks):
            continue
        entering = sum(amount for src, dst, amount in arcs if dst in inside and src not in inside)
        if entering < sum(supply[node] for node in range(nodes) if node not in inside):
            yield inside


Arc = tuple[int, int]


def joined(topology: Topology) -> dict[Arc, Fraction]:
    width: dict[Arc, Fraction] = {}
    for link in topology.links:
        if link.src != link.dst:
            width[link.src, link.dst] = width.get((link.src, link.dst), Fraction(0)) + link.bandwidth
    return width


def best_rate(topology: Topology) -> float | None:
    """Return the largest sum of roots, of links at most 1 wide, times the widest; None where the solver gives up.

    Columns: a rate per rank, the part of each arc for out-trees, and for in-trees. Roots outside of a set of nodes with
    a rank in it get in over out-trees and out over in-trees. Switches pass on no more of out-trees than they get, of
    in-trees no less.
    """
    width = joined(topology)
    arcs, ranks = list(width), topology.compute_count
    widest = max(width.values())
    rows, limits = [], []
    for index, arc in enumerate(arcs):
        row = np.zeros(ranks + 2 * len(arcs))
        row[[ranks + index, ranks + len(arcs) + index]] = 1.0
        rows.append(row)
        limits.append(float(width[arc] / widest))
    for outside, inward, outward in _cuts(topology, arcs):
        for crossing, start in ((inward, ranks), (outward, ranks + len(arcs))):
            row = np.zeros(ranks + 2 * len(arcs))
            row[outside] = 1.0
            row[[start + arc for arc in crossing]] = -1.0
            rows.append(row)
            limits.append(0.0)
    for switch in range(ranks, topology.node_count):
        row, other = np.zeros((2, ranks + 2 * len(arcs)))
        for index, (src, dst) in enumerate(arcs):
            row[ranks + index] = float(src == switch) - float(dst == switch)
            other[ranks + len(arcs) + index] = float(dst == switch) - float(src == switch)
        rows += [row, other]
        limits += [0.0, 0.0]
    gain = np.zeros(ranks + 2 * len(arcs))
    gain[:ranks] = -1.0
    result = linprog(gain, A_ub=np.array(rows), b_ub=np.array(limits), method="highs-ds")
    return None if result.x is None or result.fun is None else -float(result.fun) * float(widest)


def faults_of_split(
    topology: Topology,
    arcs: Sequence[Arc],
    roots: Sequence[Fraction],
    gather: Sequence[Fraction],
    reduce: Sequence[Fraction],
) -> list[str]:
    """Return what a split breaks, counted in rationals; nothing if trees of these rates exist."""
    width, faults = joined(topology), []
    if min(*roots, *gather, *reduce) < 0:
        faults.append("a rate is negative")
    for arc, out_trees, in_trees in zip(arcs, gather, reduce, strict=True):
        if out_trees + in_trees > width[arc]:
            faults.append(f"arc {arc} carries too much")
    for outside, inward, outward in _cuts(topology, arcs):
        need = sum(roots[rank] for rank in outside)
        if sum(gather[arc] for arc in inward) < need or sum(reduce[arc] for arc in outward) < need:
            faults.append(f"a cut without {outside} is too narrow")
    for switch in range(topology.compute_count, topology.node_count):
        for amounts, gain, loss in ((gather, 1, 0), (reduce, 0, 1)):
            net = sum(
                amounts[index] * ((arc[gain] == switch) - (arc[loss] == switch)) for index, arc in enumerate(arcs)
            )
            if net < 0:
                faults.append(f"switch {switch} makes up data")
    return faults


def _cuts(topology: Topology, arcs: Sequence[Arc]) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Yield, for each set of nodes with a rank in it and one outside: ranks outside, arcs into it, arcs out of it."""
    ranks = range(topology.compute_count)
    for mask in range(1, 1 << topology.node_count):
        outside = [rank for rank in ranks if not mask >> rank & 1]
        if 0 < len(outside) < len(ranks):
            inward = [i for i, (src, dst) in enumerate(arcs) if mask >> dst & 1 and not mask >> src & 1]
            outward = [i for i, (src, dst) in enumerate(arcs) if mask >> src & 1 and not mask >> dst & 1]
            yield outside, inward, outward


Capacities = dict[tuple[int, int], Fraction]


def best_rate_by_groups(topology: Topology) -> Fraction:
    """Return the smallest rate that a cut or a partition proves; every able switch adds and multicasts unlimited."""
    capacity = joined(topology)
    arcs, widths = list(capacity), list(capacity.values())
    cuts = (sum((widths[arc] for arc in inward), Fraction(0)) for _, inward, _ in _cuts(topology, arcs))
    return min(*cuts, *_partition_rates(topology, capacity))


def _partition_rates(topology: Topology, capacity: Capacities) -> Iterator[Fraction]:
    ranks = topology.compute_count
    passing = [node for node in range(ranks, topology.node_count) if node not in topology.abilities]
    with_passing = [set(chosen) for size in range(len(passing) + 1) for chosen in combinations(passing, size)]
    least: dict[frozenset[int], Fraction] = {}
    for groups in _partitions([*range(ranks), *sorted(topology.abilities)]):
        if len(groups) < 2 or not all(min(group) < ranks for group in groups):
            continue
        for group in map(frozenset, groups):
            if group not in least:
                least[group] = min(_into(capacity, group | more) for more in with_passing)
        total = sum((least[frozenset(group)] for group in groups), Fraction(0))
        yield total / (2 * (len(groups) - 1))


def _partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for groups in _partitions(items[1:]):
        for index in range(len(groups)):
            yield [*groups[:index], [*groups[index], items[0]], *groups[index + 1 :]]
        yield [*groups, [items[0]]]


def _into(capacity: Capacities, inside: set[int] | frozenset[int]) -> Fraction:
    return sum((width for (src, dst), width in capacity.items() if dst in inside and src not in inside), Fraction(0))
