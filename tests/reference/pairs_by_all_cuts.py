"""The best pairs of trees for allreduce by a linear program with every cut, and splits checked in rationals."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

from chorale.synth.topology.topology import Topology

Arc = tuple[int, int]


def joined(topology: Topology) -> dict[Arc, Fraction]:
    """Return the bandwidth between each pair of nodes with a link."""
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
