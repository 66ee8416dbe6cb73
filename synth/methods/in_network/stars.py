"""A star in each box, joined by trees between the boxes: every box acts as one rank with the links of all its ranks.

A box is made of ranks that wide links join with switches that add and multicast. In it a tree is a star: one of these
switches, linked with every rank of the box. Between boxes trees are packed as between ranks.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.in_network.paired_trees import ReversibleTrees
from chorale.synth.methods.in_network.splits import UndirectedSplit, best_split, packed_trees, whole_units
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.relabelling import Relabelled, contracted
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Ranks, and the centres of their stars with the rate of each: what its narrowest link and its adder allow."""

    ranks: tuple[int, ...]
    centres: tuple[int, ...]
    rates: tuple[Fraction, ...]

    @property
    def rate(self) -> Fraction | None:
        """What all stars carry together; None for a single rank, which needs none."""
        return sum(self.rates, Fraction(0)) if len(self.ranks) > 1 else None


def boxes_of(topology: Topology) -> list[Box] | None:
    """Return the boxes, single ranks too, in rank order; None where no box has a star, or a rank is in two boxes."""
    width = _widths(topology)
    stars: dict[tuple[int, ...], list[int]] = {}
    for switch, ability in sorted(topology.abilities.items()):
        if ability.multicast and ability.reduce:
            around = tuple(sorted({dst for src, dst in width if src == switch and dst < topology.compute_count}))
            if len(around) > 1:
                stars.setdefault(around, []).append(switch)
    members = [rank for ranks in stars for rank in ranks]
    if not stars or len(members) != len(set(members)):
        return None
    boxes = [_box(topology, ranks, centres, width) for ranks, centres in stars.items()]
    boxes += [Box((rank,), (), ()) for rank in range(topology.compute_count) if rank not in set(members)]
    return sorted(boxes, key=lambda box: box.ranks[0])


def _box(
    topology: Topology, ranks: tuple[int, ...], centres: list[int], width: dict[tuple[int, int], tuple[Fraction, int]]
) -> Box:
    rates = []
    for centre in centres:
        limit = topology.abilities[centre].reduce_bandwidth
        narrowest = min(min(width[rank, centre][0], width[centre, rank][0]) for rank in ranks)
        rates.append(narrowest if limit is None else min(narrowest, limit))
    return Box(ranks, tuple(centres), tuple(rates))


def _widths(topology: Topology) -> dict[tuple[int, int], tuple[Fraction, int]]:
    """Return the widest link of each pair of nodes, with its number."""
    width: dict[tuple[int, int], tuple[Fraction, int]] = {}
    for index, link in enumerate(topology.links):
        if link.src != link.dst and link.bandwidth > width.get((link.src, link.dst), (Fraction(0), 0))[0]:
            width[link.src, link.dst] = link.bandwidth, index
    return width


@dataclass(frozen=True, slots=True, eq=False)
class StarPlan:
    """Boxes, and the split of the links between them; None for a single box."""

    boxes: list[Box]
    relabelled: Relabelled | None
    split: UndirectedSplit | None

    @property
    def rate(self) -> Fraction:
        """What stars and trees between boxes carry."""
        rates = [box.rate for box in self.boxes if box.rate is not None]
        return min(rates) if self.split is None else min(*rates, self.split.rate)

    def trees(self, topology: Topology, options: Options, units: int | None) -> ReversibleTrees:
        """Return trees in about `units` units; None for as many as lose nothing. Raises as `packed_trees` does."""
        if self.split is None or self.relabelled is None:
            return _joined(topology, self.boxes, _turning_roots(self.boxes[0], units))
        between = packed_trees(topology, self.relabelled, whole_units(self.relabelled, self.split, units), options)
        return _joined(topology, self.boxes, _uniform(self.boxes, between))


def star_plan(topology: Topology, boxes: list[Box]) -> StarPlan | None:
    """Return the plan for `boxes_of` the network; None where nothing joins them within the limits."""
    if len(boxes) == 1:
        return StarPlan(boxes, None, None)
    relabelled = contracted(topology, [(*box.ranks, *box.centres) for box in boxes])
    split = best_split(relabelled)
    return StarPlan(boxes, relabelled, split) if split is not None and split.rate > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class _Uniform:
    """Trees between boxes, each with one route per edge. root: a box per tree; others as in `ReversibleTrees`."""

    root: Integers
    weight: Integers
    tree: Integers
    src: Integers
    dst: Integers
    route: Integers
    routes: Routes


def _turning_roots(box: Box, units: int | None) -> _Uniform:
    """Return the trees of a single box: nothing between boxes, each rank the root of as many units."""
    count = len(box.ranks) * max(1, (units or len(box.ranks)) // len(box.ranks))
    nothing = np.zeros(0, dtype=np.int64)
    weight = np.full(len(box.ranks), count // len(box.ranks), dtype=np.int64)
    routes = Routes(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    return _Uniform(np.zeros(len(weight), dtype=np.int64), weight, nothing, nothing, nothing, nothing, routes)


def _uniform(boxes: list[Box], trees: ReversibleTrees) -> _Uniform:
    """Cut `trees` where an edge changes its route, and where the stars of a box change."""
    total = trees.units
    borders = [np.zeros(1, dtype=np.int64), np.cumsum(trees.weight), trees.lo, trees.hi]
    borders += [_star_borders(box, total) for box in boxes]
    cuts = np.unique(np.concatenate(borders))
    start, end = np.searchsorted(cuts, trees.lo), np.searchsorted(cuts, trees.hi)
    edge = np.repeat(np.arange(len(trees.lo)), end - start)
    piece = np.arange(len(edge)) - np.repeat(np.cumsum(end - start) - (end - start), end - start) + start[edge]
    old = np.searchsorted(np.cumsum(trees.weight), cuts[:-1], side="right")
    return _Uniform(
        trees.root[old], np.diff(cuts), piece, trees.src[edge], trees.dst[edge], trees.route[edge], trees.routes
    )


def _star_borders(box: Box, total: int) -> Integers:
    """Return where the units of each star of `box` end, of `total` units, in proportion to their rates."""
    ends = [sum(box.rates[: index + 1], Fraction(0)) for index in range(len(box.rates))]
    return np.array([int(end / ends[-1] * total) for end in ends], dtype=np.int64)


def _joined(topology: Topology, boxes: list[Box], trees: _Uniform) -> ReversibleTrees:
    """Return `trees` with the stars of all boxes, rooted at the rank where the box of the root sends most."""
    count = len(trees.weight)
    box_of = np.zeros(topology.node_count, dtype=np.int64)
    for index, box in enumerate(boxes):
        box_of[[*box.ranks, *box.centres]] = index
    gate = np.full((count, len(boxes)), -1, dtype=np.int64)
    gate[trees.tree, box_of[trees.dst]] = trees.dst
    at_root = box_of[trees.src] == trees.root[trees.tree]
    gate[trees.tree[at_root], trees.root[trees.tree[at_root]]] = trees.src[at_root]
    _require_centres(boxes, box_of, trees)
    at_gate = gate[np.arange(count), trees.root]
    for lonely in np.flatnonzero((at_gate < 0) | (at_gate >= topology.compute_count)).tolist():
        ranks = boxes[int(trees.root[lonely])].ranks  # no rank of the box sends to others: roots take turns
        gate[lonely, trees.root[lonely]] = ranks[lonely % len(ranks)]
    before = np.cumsum(trees.weight) - trees.weight
    parts = [(trees.tree, trees.src, trees.dst, trees.route)]
    links, paths = _widths(topology), [trees.routes.link_ids]
    for index, box in enumerate(boxes):
        if len(box.ranks) > 1:
            parts.append(_star_edges(box, gate[:, index], before, int(trees.weight.sum()), links, paths))
    lengths = np.concatenate([np.diff(trees.routes.offsets), np.ones(sum(map(len, paths[1:])), dtype=np.int64)])
    routes = Routes(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), np.concatenate(paths))
    offset = len(trees.routes)
    shifted = [parts[0]]
    for part, path in zip(parts[1:], paths[1:], strict=True):
        shifted.append((*part[:3], part[3] + offset))
        offset += len(path)
    tree, src, dst, route = (np.concatenate(columns) for columns in zip(*shifted, strict=True))
    root = gate[np.arange(count), trees.root]
    lo = before[tree]
    return ReversibleTrees(root, trees.weight, tree, src, dst, route, lo, lo + trees.weight[tree], routes)


def _require_centres(boxes: list[Box], box_of: Integers, trees: _Uniform) -> None:
    """Refuse trees that leave or enter a box of several stars at a switch: it may be the centre of another one."""
    ranks = sum(len(box.ranks) for box in boxes)
    for box in boxes:
        inside = np.isin(box_of[np.concatenate([trees.src, trees.dst])], box_of[box.ranks[0]])
        ends = np.concatenate([trees.src, trees.dst])[inside]
        if len(box.centres) > 1 and (ends >= ranks).any():
            rule = "boxes of several stars must be joined at their ranks"
            raise InvalidInput(rule, f"{len(box.centres)} switches", "leave the other switches as they are")


def _star_edges(
    box: Box,
    gate: Integers,
    before: Integers,
    total: int,
    links: dict[tuple[int, int], tuple[Fraction, int]],
    paths: list[NDArray[np.int32]],
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the edges of the star of `box` in every tree: from the gate to a centre, from there to other ranks.

    Adds to `paths` the links that are complete routes: to each centre, then from it, for each rank.
    """
    ranks, centres = np.array(box.ranks), np.array(box.centres)
    which = np.searchsorted(_star_borders(box, total)[:-1], before, side="right")
    table = [
        [links[rank, centre][1] for rank in box.ranks] + [links[centre, rank][1] for rank in box.ranks]
        for centre in box.centres
    ]
    paths.append(np.array(table, dtype=np.int32).ravel())
    size, count = len(ranks), len(gate)
    at = np.where(np.isin(gate, ranks), np.searchsorted(ranks, gate), -1)
    entering = np.flatnonzero(at >= 0)  # elsewhere the tree comes to the centre from outside
    tree = np.repeat(np.arange(count), size)
    leaf = np.tile(np.arange(size), count)
    keep = leaf != np.repeat(at, size)
    tree, leaf = tree[keep], leaf[keep]
    return (
        np.concatenate([entering, tree]),
        np.concatenate([gate[entering], centres[which][tree]]),
        np.concatenate([centres[which][entering], ranks[leaf]]),
        np.concatenate([which[entering] * 2 * size + at[entering], which[tree] * 2 * size + size + leaf]),
    )
