"""Cartesian product: a grid of nodes, each line of which along one dimension is one of the factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.expansions.columns import ranked_topology, require_direct
from chorale.synth.topology.sorted_links import Column, Rates, sorted_links
from chorale.synth.topology.topology import Topology


def cartesian_product(factors: Sequence[Topology], spec: str, function: str = "product") -> Topology:
    """Return the product of `factors`: one coordinate changes along a link of its factor, the others stay.

    Ranks are mixed radix, the last factor fastest. Numbers of nodes multiply; degrees and diameters add up; links keep
    bandwidth and latency, self-loops stay self-loops. Symmetries of every factor carry over; where they act regularly
    on each, they do so on the product. Reverse-symmetric if all factors are. Raises InvalidInput for switches
    and unequal bandwidth units. O(links of the result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 3.
    """
    for factor in factors:
        require_direct(factor, function)
    units = {factor.bandwidth_unit for factor in factors}
    if len(units) > 1:
        rule = f"{function} must be given networks of one bandwidth unit"
        raise InvalidInput(rule, " and ".join(sorted(units)), "convert the bandwidths")
    sizes = [factor.node_count for factor in factors]
    rank = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
    src = [np.take(rank, factor.links.src, axis).ravel() for axis, factor in enumerate(factors)]
    dst = [np.take(rank, factor.links.dst, axis).ravel() for axis, factor in enumerate(factors)]
    links = sorted_links(np.concatenate(src), np.concatenate(dst), _rates(factors))
    symmetries: list[Column] = [
        np.take(rank, symmetry, axis).ravel()
        for axis, factor in enumerate(factors)
        for symmetry in factor.automorphisms
    ]
    return ranked_topology(spec, rank.size, links, factors[0], symmetries)


def _rates(factors: Sequence[Topology]) -> Rates:
    bandwidths = _merged([factor.links.bandwidths for factor in factors])
    latencies_s = _merged([factor.links.latencies_s for factor in factors])
    bandwidth_classes, latency_classes = [], []
    for axis, factor in enumerate(factors):
        links = factor.links
        bandwidth_class = _renamed(links.bandwidths, bandwidths)[links.bandwidth_class]
        latency_class = _renamed(links.latencies_s, latencies_s)[links.latency_class]
        bandwidth_classes.append(_spread(bandwidth_class, factors, axis))
        latency_classes.append(_spread(latency_class, factors, axis))
    return Rates(np.concatenate(bandwidth_classes), bandwidths, np.concatenate(latency_classes), latencies_s)


def _merged(tables: Sequence[tuple[Fraction, ...]]) -> tuple[Fraction, ...]:
    return tuple(sorted(set().union(*tables)))


def _renamed(table: tuple[Fraction, ...], merged: tuple[Fraction, ...]) -> Column:
    return np.array([merged.index(value) for value in table], dtype=np.int32)


def _spread(per_link: Column, factors: Sequence[Topology], axis: int) -> Column:
    """Return `per_link` of the factor at `axis` for its links in all places of the grid, in their order there."""
    before = math.prod(factor.node_count for factor in factors[:axis])
    after = math.prod(factor.node_count for factor in factors[axis + 1 :])
    return np.tile(np.repeat(per_link, after), before)
