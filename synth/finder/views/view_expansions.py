"""Views at the nodes of line graphs, degree expansions and products from views at the nodes that they are made of.

Source of the expansions: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications".
"""

from __future__ import annotations

import numpy as np

from chorale.synth.finder.views.node_view import NodeView, Numbers, walks_from


def line_views(view: NodeView) -> list[NodeView]:
    """Return the views at the nodes (u, w) of the line graph, one for each link from u to w out of the node u seen.

    Link (a, v) is as far from (u, w) as v is from u, and one; it arrives over the links of u that v would use, and a
    link into u over itself, in step 1. So each position of u's view holds `degree` times as many, less (u, w) itself.
    The walks become one link shorter.
    """
    return [_line_view(view, link) for link in range(view.degree)]


def link_position(view: NodeView, node: int, link: int) -> int:
    """Return where the node (v, y) of the line graph lies, seen from another one (u, w): `link` leads from v to y."""
    head = int(view.walks.heads[node, link])
    if head == 0:
        return view.one_step | 1 << int(view.walks.arrivals[node, link])
    return int(view.walks.positions[head]) + view.one_step


def _line_view(view: NodeView, first: int) -> NodeView:
    walks, degree = view.walks, view.degree
    around = link_position(view, 0, first)
    adjacent = view.one_step | 1 << np.arange(degree)
    positions = np.concatenate([[0], adjacent, view.positions[1:] + view.one_step])
    counts = np.concatenate([[1], np.ones(degree, dtype=np.int64), view.counts[1:] * degree])
    counts[np.searchsorted(positions, around)] -= 1
    start = (0, first)
    line_walks = walks_from(
        start,
        walks.depth - 1,
        lambda pair: [(int(walks.heads[pair]), link) for link in range(degree)],
        lambda pair: 0 if pair == start else link_position(view, *pair),
        lambda pair, _index: int(walks.arrivals[pair]),
    )
    return NodeView(degree, positions[counts > 0], counts[counts > 0], around, line_walks)


def degree_view(view: NodeView, copies: int) -> NodeView:
    """Return the view at each of the `copies` of the node u seen, which must not have a link to itself.

    Copies of other nodes than u arrive over all copies of the links that the node would use, but of a neighbour only
    over the links from that copy; other copies of u as u itself would on its way around.
    """
    walks, degree = view.walks, view.degree
    spread = _spread_bits(degree, copies)

    def position_of(copy_of: tuple[int, int]) -> int:
        node, copy = copy_of
        position = int(walks.positions[node]) if node else view.around if copy else 0
        step, links = position >> degree, int(spread[position & (view.one_step - 1)])
        return step << degree * copies | (links << copy if step == 1 else links * ((1 << copies) - 1))

    step, links = view.positions >> degree, spread[view.positions & (view.one_step - 1)]
    near, far = step == 1, step > 1
    around = position_of((0, 1))
    positions = np.concatenate(
        [
            [0, around],
            (step[near] << degree * copies | links[near] << np.arange(copies)[:, None]).ravel(),
            step[far] << degree * copies | links[far] * ((1 << copies) - 1),
        ]
    )
    counts = np.concatenate([[1, copies - 1], np.tile(view.counts[near], copies), view.counts[far] * copies])
    copied_walks = walks_from(
        (0, 0),
        walks.depth,
        lambda one: [(head, copy) for head in walks.heads[one[0]].tolist() for copy in range(copies)],
        position_of,
        lambda one, index: int(walks.arrivals[one[0], index // copies]) * copies + one[1],
    )
    return NodeView(degree * copies, *_summed(positions, counts), around, copied_walks)


def _spread_bits(degree: int, copies: int) -> Numbers:
    """Return, for each set of links, the first copy of each of them: bit k becomes bit k * copies."""
    sets = np.arange(1 << degree)
    return sum((((sets >> link) & 1) << link * copies for link in range(degree)), np.zeros_like(sets))


def product_view(first: NodeView, second: NodeView) -> NodeView:
    """Return the view at the node (u, v) of the product from those at u and at v, whose in-links come last.

    Distances add up, and a shard arrives over the links that it would use in either. O(positions of both, multiplied).
    """
    degree = first.degree + second.degree

    def joined(of_first: Numbers, of_second: Numbers) -> Numbers:
        step = (of_first >> first.degree) + (of_second >> second.degree)
        links = (of_first & (first.one_step - 1)) << second.degree | of_second & (second.one_step - 1)
        return step << degree | links

    positions = joined(first.positions[:, None], second.positions).ravel()
    counts = (first.counts[:, None] * second.counts).ravel()
    ways_round = joined(np.array([first.around, 0]), np.array([0, second.around]))
    shortest = ways_round[ways_round >> degree == (ways_round >> degree).min()]
    around = int(np.bitwise_or.reduce(shortest))
    one, other = first.walks, second.walks
    walks = walks_from(
        (0, 0),
        min(one.depth, other.depth),
        lambda pair: (
            [(head, pair[1]) for head in one.heads[pair[0]].tolist()]
            + [(pair[0], head) for head in other.heads[pair[1]].tolist()]
        ),
        lambda pair: int(joined(one.positions[[pair[0]]], other.positions[[pair[1]]])[0]),
        lambda pair, index: (
            int(one.arrivals[pair[0], index]) + second.degree
            if index < first.degree
            else int(other.arrivals[pair[1], index - first.degree])
        ),
    )
    return NodeView(degree, *_summed(positions, counts), around, walks)


def _summed(positions: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the positions in ascending order, once each, and the sums of their counts, all positive."""
    distinct, index = np.unique(positions, return_inverse=True)
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, index, counts)
    return distinct[sums > 0], sums[sums > 0]
