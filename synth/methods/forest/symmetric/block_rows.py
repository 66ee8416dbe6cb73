"""Trees that reach every block over one of its ranks, which spreads the data inside: for boxes, groups and fat trees.

In a fabric whose boxes are joined by their network ports, the ports decide: every box must receive what starts in the
others, once. So the data of a rank go once to every other box, and there down the trees of one box, which is as small
as a problem as the box is. Where a block is a single rank, every rank sends to all others directly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.methods.forest.symmetric.base_rows import BaseRows
from chorale.synth.methods.forest.symmetric.blocks import BlockNetwork, block_owners, block_trees, first_block
from chorale.synth.methods.forest.symmetric.entries import Entries, enter_blocks
from chorale.synth.methods.forest.tree_transfers import TreeTransfers
from chorale.synth.schedule.schedule import Routes
from chorale.synth.schedule.transforms import joined_routes
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks, Translations


class _Arrivals(NamedTuple):
    """What the ranks of a block spread inside it, in the order of the ranks: first their own data.

    offsets: int64[ranks + 1];  root: int32, whose data;  block: int32, the element that takes the first block to it
    """

    offsets: Integers
    root: Ranks
    block: Ranks


def block_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return the rows of the first block's roots, k trees each, within `carried` trees per link; None if none fit.

    Every block takes the data of each root in at one rank (`enter_blocks`), which sends them down trees of its block.
    """
    translations = moves.translations
    owner = block_owners(topology, translations)
    result = enter_blocks(topology, moves, owner, carried, k)
    if result is None:
        return None
    entries, capacities = result
    direct = _entry_rows(entries, k)
    if translations.rank_orbits == 1:
        return direct
    block, arrivals = first_block(topology, owner), _arrivals(entries, translations)
    room = capacities.room[moves.orbit[block.links]]
    inside = block_trees(block, room, k * np.diff(arrivals.offsets))
    if inside is None:
        return None
    return _joined(direct, _inside_rows(block, inside, arrivals, moves, k))


def _entry_rows(entries: Entries, k: int) -> BaseRows:
    count = len(entries.root)
    nothing = np.zeros(count, dtype=np.int64)
    routes = Routes(entries.offsets, entries.links)
    return BaseRows(nothing, np.arange(count), entries.root.astype(np.int64), nothing, nothing + k, routes)


def _arrivals(entries: Entries, translations: Translations) -> _Arrivals:
    roots = translations.first_ranks
    position = np.concatenate([np.arange(len(roots)), translations.orbit[entries.gateway]])
    order = np.argsort(position, kind="stable")
    offsets = np.searchsorted(position[order], np.arange(len(roots) + 1)).astype(np.int64)
    root = np.concatenate([roots, entries.root])[order]
    block = np.concatenate([np.zeros(len(roots), dtype=np.int32), entries.block])[order]
    return _Arrivals(offsets, root, block)


def _inside_rows(
    block: BlockNetwork, inside: TreeTransfers, arrivals: _Arrivals, moves: TranslatedLinks, k: int
) -> BaseRows:
    """Return the rows of the trees inside the blocks: arrival i of a rank has its units i * k to (i + 1) * k - 1."""
    lo, hi = inside.lo.astype(np.int64), inside.hi.astype(np.int64)
    first = lo // k
    count = (hi - 1) // k - first + 1
    row = np.repeat(np.arange(len(lo)), count)
    turn = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    arrival = arrivals.offsets[inside.root[row]] + turn
    element = arrivals.block[arrival].astype(np.int64)
    step = inside.depth[row] + (turn > 0)
    pairs, route = np.unique(
        inside.route[row].astype(np.int64) * len(moves.translations) + element, return_inverse=True
    )
    routes = _moved(inside.routes, *np.divmod(pairs, len(moves.translations)), moves)
    begin, end = np.maximum(lo[row] - turn * k, 0), np.minimum(hi[row] - turn * k, k)
    return BaseRows(step, route.astype(np.int64), arrivals.root[arrival].astype(np.int64), begin, end, routes)


def _moved(routes: Routes, route: Integers, element: Integers, moves: TranslatedLinks) -> Routes:
    """Return the image of each of `route` under the element beside it."""
    lengths = np.diff(routes.offsets)[route]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    hop = np.arange(offsets[-1]) + np.repeat(routes.offsets[route] - offsets[:-1], lengths)
    return Routes(offsets, moves.images(routes.link_ids[hop], np.repeat(element, lengths)))


def _joined(direct: BaseRows, inside: BaseRows) -> BaseRows:
    """Return both, by root; rows of a root keep their order, entries first."""
    routes = joined_routes(direct.routes, inside.routes)
    shard = np.concatenate([direct.shard, inside.shard])
    order = np.argsort(shard, kind="stable")
    route = np.concatenate([direct.route, inside.route + len(direct.routes)])[order]
    step, lo, hi = (
        np.concatenate(pair)[order]
        for pair in ((direct.step, inside.step), (direct.lo, inside.lo), (direct.hi, inside.hi))
    )
    return BaseRows(step, route, shard[order], lo, hi, routes)
