"""Views that differ only in how links and nodes are numbered, kept once.

Links and nodes get colours that do not depend on their numbers, and are renumbered by colour. Views that look the same
then are the same; some that are may go unnoticed, which costs time only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from chorale.synth.finder.views.node_view import NodeView, Numbers, walks_from

Colours = NDArray[np.uint64]

_ROUNDS = 2


def distinct_views(views: Iterable[NodeView]) -> list[NodeView]:
    """Return the views, renumbered, without those that look like an earlier one."""
    kept: dict[tuple[int | bytes, ...], NodeView] = {}
    for view in views:
        renumbered = _renumbered(view)
        kept.setdefault(_content(renumbered), renumbered)
    return list(kept.values())


def _content(view: NodeView) -> tuple[int | bytes, ...]:
    walks = view.walks
    arrays = (view.positions, view.counts, walks.positions, walks.heads, walks.arrivals)
    return view.degree, view.around, walks.depth, *(array.tobytes() for array in arrays)


def _renumbered(view: NodeView) -> NodeView:
    links, nodes = _colours(view)
    order = np.argsort(links, kind="stable")
    number = np.argsort(order)
    moved_sets: Numbers = _sums_over_sets(view.degree, 1 << number).astype(np.int64)
    last = view.one_step - 1

    def moved(position: int) -> int:
        return position & ~last | int(moved_sets[position & last])

    positions = view.positions & ~last | moved_sets[view.positions & last]
    ascending = np.argsort(positions)
    walks = view.walks
    by_colour = [
        np.lexsort((row, number[arrivals], nodes[row]))
        for row, arrivals in zip(walks.heads, walks.arrivals, strict=True)
    ]
    renumbered_walks = walks_from(
        0,
        walks.depth,
        lambda node: walks.heads[node, by_colour[node]].tolist(),
        lambda node: moved(int(walks.positions[node])),
        lambda node, index: int(number[walks.arrivals[node, by_colour[node][index]]]),
    )
    around = moved(view.around)
    return NodeView(view.degree, positions[ascending], view.counts[ascending], around, renumbered_walks)


def _colours(view: NodeView) -> tuple[Colours, Colours]:
    """Return the colours of the in-links and of the nodes of the walks."""
    walks, degree = view.walks, view.degree
    links, nodes = np.zeros(degree, dtype=np.uint64), np.zeros(len(walks.positions), dtype=np.uint64)
    inner = len(walks.heads)
    ways_back = np.nonzero(walks.arrivals >= 0)
    arriving = walks.arrivals[ways_back]
    for _ in range(_ROUNDS):
        sets = _mixed(_sums_over_sets(degree, links).astype(np.uint64))
        everywhere = _placed(view.positions, sets, degree) * view.counts.astype(np.uint64)
        around = _placed(np.array([view.around]), sets, degree) * np.uint64(3)
        new_links = links.copy()
        for link in range(degree):
            new_links[link : link + 1] += everywhere[(view.positions >> link) & 1 == 1].sum()
            new_links[link : link + 1] += around * np.uint64(view.around >> link & 1)
        np.add.at(new_links, arriving, _mixed(nodes[ways_back[0]]))
        new_nodes = _placed(walks.positions, sets, degree) + nodes
        if inner:
            new_nodes[:inner] += _mixed(nodes[walks.heads]).sum(axis=1)
            np.add.at(new_nodes, ways_back[0], _mixed(links[arriving]))
        links, nodes = _mixed(new_links), _mixed(new_nodes)
    return links, nodes


def _placed(positions: Numbers, sets: Colours, degree: int) -> Colours:
    """Return colours of positions, from those of sets of links."""
    return _mixed(sets[positions & ((1 << degree) - 1)] + _mixed((positions >> degree).astype(np.uint64)))


def _sums_over_sets(degree: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the sum of the values of the links of each set."""
    sums = np.zeros(1 << degree, dtype=values.dtype)
    for link in range(degree):
        sums[1 << link : 2 << link] = sums[: 1 << link] + values[link]
    return sums


def _mixed(numbers: Colours) -> Colours:
    """Return numbers whose bits all depend on all bits of each of `numbers` (the finalizer of SplitMix64)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
