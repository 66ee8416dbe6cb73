"""The smallest number of trees per shard that reaches a given optimum.

With k trees per shard and U = k * time, a link of bandwidth b carries floor(U * b) trees. Cuts that take the whole time
have no room for rounding: U * b must be whole on each of their links, so that k is a multiple of some k0. All other
cuts have room that grows with k: multiples of k0 are tried in turn, and every cut that refuses one of them is asked
first about the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from chorale.synth.bounds.cut_search import CutSearch, Nodes
from chorale.synth.topology.topology import Topology

MAX_MULTIPLES = 4096
MAX_ORACLE_CALLS = 128


@dataclass(frozen=True, slots=True)
class FewestTrees:
    """k trees per shard reach the time. is_proven: no smaller k does, by trees that are sure to exist."""

    k: int
    is_proven: bool


@dataclass(frozen=True, slots=True)
class _CutRoom:
    """A cut by what it needs: shards outside, and (bandwidth, links) into it."""

    outside: int
    entering: tuple[tuple[Fraction, int], ...]

    def carries(self, trees_per_bandwidth: Fraction, k: int) -> bool:
        room = sum(count * floor(trees_per_bandwidth * width) for width, count in self.entering)
        return room >= k * self.outside


def integral_trees(topology: Topology, time_per_shard: Fraction) -> tuple[Fraction, int]:
    """Return (U, k) with U / k = `time_per_shard` and the smallest k such that U * b is whole for every link.

    Bandwidth-optimal pipeline, proposition 3, for rational bandwidths.
    """
    bandwidths = topology.links.bandwidths
    scale = math.lcm(*(bandwidth.denominator for bandwidth in bandwidths))
    time = time_per_shard / scale
    units = [int(bandwidth * scale) for bandwidth in bandwidths]
    per_unit = Fraction(time.numerator, math.gcd(time.denominator, *units))
    return per_unit * scale, int(per_unit / time)


def fewest_trees(search: CutSearch, time_per_shard: Fraction, cut: Nodes) -> FewestTrees:
    """Return the smallest k that reaches `time_per_shard`, the optimum, which `cut` proves.

    Where switches get as much as they pass on with U * b whole everywhere, they must do so with k too, so that trees
    are sure to exist. After `MAX_MULTIPLES` multiples, or `MAX_ORACLE_CALLS` that only the oracle refused, the
    next doubling that holds is taken and not called the smallest. Mostly no oracle call: k0 makes all links whole.
    """
    _, enough = integral_trees(search.topology, time_per_shard)
    step = _needed(search, time_per_shard, cut)
    is_balanced = _switches_pass_on(search.topology, enough * time_per_shard)
    known = [_known(search, cut)]
    k, calls = step, 0
    while k < enough and k < step * MAX_MULTIPLES and calls < MAX_ORACLE_CALLS:
        rate = k * time_per_shard
        if all(other.carries(rate, k) for other in known) and (
            not is_balanced or _switches_pass_on(search.topology, rate)
        ):
            calls += 1
            refusing = _refusing(search, rate, k)
            if refusing is None:
                return FewestTrees(k, True)
            known.append(_known(search, refusing))
            if search.time_per_shard(refusing) == time_per_shard:
                step = math.lcm(step, _needed(search, time_per_shard, refusing))
        k = (k // step + 1) * step
    return FewestTrees(enough, True) if k >= enough else _by_doubling(search, time_per_shard, k, enough, is_balanced)


def _by_doubling(search: CutSearch, time: Fraction, k: int, enough: int, is_balanced: bool) -> FewestTrees:
    while k < enough:
        rate = k * time
        if (not is_balanced or _switches_pass_on(search.topology, rate)) and _refusing(search, rate, k) is None:
            return FewestTrees(k, False)
        k *= 2
    return FewestTrees(enough, False)


def _refusing(search: CutSearch, rate: Fraction, k: int) -> Nodes | None:
    """Return a cut that does not carry k trees per shard, asking about the ranks of all orbits anew."""
    search.settled[:] = False
    return search.violated_cut(rate, k, search.typical)


def _needed(search: CutSearch, time: Fraction, cut: Nodes) -> int:
    """Return the smallest k with k * time * b whole on every link into `cut`."""
    return math.lcm(*((time * width).denominator for width, _ in search.entering(cut)))


def _known(search: CutSearch, cut: Nodes) -> _CutRoom:
    return _CutRoom(search.outside_weight(cut), tuple(search.entering(cut)))


def _switches_pass_on(topology: Topology, trees_per_bandwidth: Fraction) -> bool:
    """Whether every switch gets as many trees as it may pass on, so that it can be replaced by direct links."""
    if not topology.switch_count:
        return True
    links = topology.links
    trees = np.array([floor(trees_per_bandwidth * width) for width in links.bandwidths], dtype=object)
    left = np.zeros(topology.node_count, dtype=object)
    np.add.at(left, links.dst, trees[links.bandwidth_class])
    np.subtract.at(left, links.src, trees[links.bandwidth_class])
    return bool(np.all(left[topology.compute_count :] >= 0))
