"""The BFB load of every step from the views at all nodes of a network, or of the one that it is the line graph of."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import lcm

import numpy as np

from chorale.synth.finder.views.node_view import NodeView, Numbers
from chorale.synth.finder.views.view_expansions import link_position

_BLOCK = 2**20
"""Entries of a table of all sets of links that is kept at a time."""


def loads_of_views(views: Iterable[NodeView], degree: int) -> list[Fraction]:
    """Return the largest load of every step, in shards per link of capacity 1.

    In each step some set of in-links takes longest with the shards that can use no others: the largest n(S) / |S| (full
    paper, theorem 19). O(views * steps * degree * 2^degree).
    """
    largest = np.zeros(0, dtype=np.int64)
    for view in views:
        largest = _larger(largest, _view_loads(view))
    unit = lcm(*range(1, degree + 1))
    return [Fraction(load, unit) for load in largest.tolist()]


def loads_of_line_graph(views: Iterable[NodeView], degree: int, copies: int = 1) -> list[Fraction]:
    """Return the same for `copies` of each node of the line graph. Walks of one link at least, a degree of 2 or more.

    A set of links is busiest at that node (u, w) which does not lie in it itself, if u has such a w; so no view has
    to be made for each w. Each other node comes copies times over as many copies of its links, and one time less the
    node itself, from its copies: together as much as in the line graph, but for the part of one copy that is missing.
    """
    largest = np.zeros(0, dtype=np.int64)
    unit = lcm(*range(1, degree + 1)) * copies
    for view in views:
        # Step 1 brings a shard over every in-link, but the one of a link from u to itself.
        loads = np.concatenate([[unit], _view_loads(view, scale=degree * copies, own=_common_position(view))])
        largest = _larger(largest, loads)
    return [Fraction(load, unit) for load in largest.tolist()]


def _common_position(view: NodeView) -> int | None:
    """Return the step of all heads of the node's links, and the links that some of them use; None if steps differ."""
    heads = [link_position(view, 0, link) for link in range(view.degree)]
    steps = {head >> view.degree for head in heads}
    return int(np.bitwise_or.reduce(heads)) - view.one_step if len(steps) == 1 else None


def _view_loads(view: NodeView, scale: int = 1, own: int | None = None) -> Numbers:
    """Return the largest scale * n(S) / |S| of steps 1, 2, …, in parts of lcm(1, …, degree).

    own: a position, whose step has one less for the sets that hold its links
    """
    degree, sets = view.degree, np.arange(view.one_step)
    unit = lcm(*range(1, degree + 1))
    weights = unit // np.bitwise_count(sets[1:]).astype(np.int64)
    steps = int(view.positions[-1] >> degree)
    loads = np.zeros(steps, dtype=np.int64)
    at_once = max(1, _BLOCK >> degree)
    for first in range(1, steps + 1, at_once):
        last = min(first + at_once, steps + 1)
        begin, end = np.searchsorted(view.positions, [first << degree, last << degree])
        table = np.zeros((last - first) << degree, dtype=np.int64)
        table[view.positions[begin:end] - (first << degree)] = view.counts[begin:end] * scale
        for bit in range(degree):
            halves = table.reshape(-1, 2, 1 << bit)
            halves[:, 1] += halves[:, 0]
        by_step = table.reshape(-1, view.one_step)
        if own is not None and first <= own >> degree < last:
            links = own & (view.one_step - 1)
            by_step[(own >> degree) - first, (sets & links) == links] -= 1
        loads[first - 1 : last - 1] = (by_step[:, 1:] * weights).max(axis=1)
    return loads


def _larger(one: Numbers, other: Numbers) -> Numbers:
    """Return the larger of each pair; what one of them lacks counts as 0."""
    short, long = sorted((one, other), key=len)
    result = long.copy()
    result[: len(short)] = np.maximum(result[: len(short)], short)
    return result
