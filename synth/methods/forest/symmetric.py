"""Makes optimal trees for large symmetric networks: computes trees for one block or rank and maps them to all others.

General tree packing treats every root separately, which repeats the same work in all identical boxes. Here, the work is
done once, and the schedule is stored and verified in symmetric form (`chorale.synth.schedule.symmetric`). The trees are
not assumed to be optimal: if a link would carry more trees than in the optimum, the general method is used instead.

A block is a box of GPUs, a group of routers or a single rank. Symmetries called translations map any block to any
other. If blocks are joined by network ports, the ports are the bottleneck: every block must receive the data of all
other blocks once. So a rank's data enter every other block once, over a shortest path from the root to one rank in the
block, and spread from there along trees inside the block. Finding these trees is a problem of the size of one block. If
blocks are single ranks, every rank sends to all others directly.

In racks such as NVL72, ranks have links to two switches (`two_switch_rows`), and the bottleneck is the rank, not the
box. To keep a rank's links to both switches busy, a root's data enter each box over several of the box's ranks.
Translations map any rank to any other, so all links of one kind carry the same load, and only the number of messages
through each switch matters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import optima
from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import carries_all_trees, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import in_arc_shares, pack_trees
from chorale.synth.methods.forest.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import TreeTransfers, tree_transfers
from chorale.synth.methods.method import DEFAULT_GAP
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, joined_routes
from chorale.synth.schedule.symmetric import SymmetricSchedule, SymmetricTrees, symmetric_parts
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Links, Topology, is_automorphism, transpose_with_links
from chorale.synth.topology.translations import TranslatedLinks, Translations

Table = NDArray[np.int64]
MAX_GENERATORS = 4
"""Up to this number of symmetries, they are tried together and each on its own. More are only tried together."""


class BaseRows(NamedTuple):
    """Transfers of the first block's data, in int64 columns as in `Transfers`; symmetries map them to other blocks."""

    step: Integers
    route: Integers
    shard: Integers
    lo: Integers
    hi: Integers
    routes: Routes

    @property
    def steps(self) -> int:
        """Number of steps: the height of the trees."""
        return int(self.step.max(initial=-1)) + 1

    def loads(self, topology: Topology) -> Integers:
        """Return int64 per link: units of data that all rows send over the link. O(hops of all rows)."""
        of_route = np.zeros(len(self.routes), dtype=np.int64)
        np.add.at(of_route, self.route, self.hi - self.lo)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        np.add.at(loads, self.routes.link_ids, np.repeat(of_route, np.diff(self.routes.offsets)))
        return loads


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """For each rank, the path to one of its two switches, possibly through a NIC, and the path back.

    up, down: int64[ranks, hops]: links from the rank to the switch, and back
    switch:   int64 per rank: the switch at the end of its path
    room:     number of messages with rank 0's data that these links can carry if every other rank sends as many
    """

    up: Integers
    down: Integers
    switch: Integers
    room: int

    def routes(self, source: Integers, target: Integers) -> Table:
        """Return int64[messages, links]: for each message, the links from the source over the switch to the target."""
        return np.asarray(np.concatenate([self.up[source], self.down[target]], axis=1))


def two_switch_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return the transfers of rank 0's k trees, or None if links would have to carry more trees than `carried`.

    Also returns None if translations do not map rank 0 to all ranks, or if ranks do not have two switches (`_places`).
    Rank 0 sends its data to all ranks of its box. From there, each tree enters every other box at least once, and more
    often if the links inside that box cannot bring it to all ranks. It always enters a box at the rank with the
    sender's index. Ranks that receive all trees from outside their box take turns in sending the missing trees to the
    other ranks of the box. O(links log links + ranks).
    """
    if moves.translations.rank_orbits > 1:
        return None
    sides = _sides(topology, moves, carried)
    for inner, outer in (sides, sides[::-1]) if len(sides) == 2 else ():
        places = _places(inner, outer)
        if places is not None and len(places) > 1:
            boxes, width = places.shape
            entries = max(k * (boxes * width - 1) - inner.room, k * (boxes - 1))
            if entries <= min(outer.room, k * (boxes - 1) * width):
                return _trees(places, inner, outer, k, entries)
    return None


def _sides(topology: Topology, moves: TranslatedLinks, carried: Integers) -> list[_Side]:
    """Return each rank's paths to its switches, as images of rank 0's paths; empty if these are not suitable."""
    links, element = topology.links, moves.translations.element[: topology.compute_count, None]
    times = len(moves.translations) // moves.sizes[moves.orbit]
    sides = []
    for link in np.flatnonzero((links.src == 0) & (links.dst != 0)).tolist():
        # The path from `link` to the first node with more than two links, which is the switch. If there is no such
        # node, the path ends at another rank, and the node in its middle is the switch.
        path: list[int] = [link]
        while (node := int(links.dst[path[-1]])) >= topology.compute_count:
            onward = np.flatnonzero(links.src == node)
            ahead = onward[links.dst[onward] != links.src[path[-1]]]
            if len(onward) > 2 or len(ahead) != 1:
                path = path if len(onward) > 2 else []
                break
            path.append(int(ahead[0]))
        else:
            path = path[: len(path) // 2] if len(path) % 2 == 0 else []
        back = [np.flatnonzero((links.src == links.dst[each]) & (links.dst == links.src[each])) for each in path]
        if not path or any(len(each) != 1 for each in back):
            return []
        paths = np.array(path), np.concatenate(back)[::-1]
        up, down = (moves.images(each[None, :], element).astype(np.int64) for each in paths)
        room = min(int((carried[each] // times[each]).min()) for each in paths)
        sides.append(_Side(up, down, links.dst[up[:, -1]].astype(np.int64), room))
    return sides


def _places(inner: _Side, outer: _Side) -> Table | None:
    """Return int64[boxes, ranks of a box]: ranks in a row share an inner switch, ranks in a column an outer switch.

    Rank 0 comes first. Returns None if the ranks cannot be arranged in this way.
    """
    order = np.lexsort((outer.switch, inner.switch))
    boxes = len(set(inner.switch.tolist()))
    if len(order) % boxes:
        return None
    table = order.reshape(boxes, -1)
    inners, outers = inner.switch[table], outer.switch[table]
    if not ((inners == inners[:, :1]).all() and (outers == outers[:1]).all()):
        return None
    box, place = np.argwhere(table == 0)[0].tolist()
    return np.roll(table, (-box, -place), axis=(0, 1))


def _trees(places: Table, inner: _Side, outer: _Side, k: int, entries: int) -> BaseRows:
    """Return the transfers of rank 0's data. Its k trees enter other boxes `entries` times in total."""
    boxes, width = places.shape
    # entered[box, place]: number of trees that enter the box at its rank with index `place`. All trees enter at the
    # first places, and the first few trees at the next place.
    share, rest = divmod(entries, boxes - 1)
    of_box = share + (np.arange(boxes) <= rest)
    entered: Table = np.clip(of_box[:, None] - k * np.arange(width), 0, k)
    entered[0] = 0
    # Ranks at rank 0's outer switch receive the data from rank 0 in step 0. All others receive them in step 1, from the
    # rank at the same place in rank 0's box.
    later = np.where(outer.switch[places[0]] == outer.switch[0], 0, 1).astype(np.int64)
    others = places[0, 1:]
    nothing = np.zeros_like(others)
    parts = [(nothing, inner.routes(nothing, others), nothing, nothing + k)]  # (step, links, first tree, last tree + 1)
    box, place = np.nonzero(entered)
    source = np.where(later[place] == 0, 0, places[0, place])
    links = outer.routes(source, places[box, place])
    parts.append((later[place], links, np.zeros_like(box), entered[box, place]))
    # In other boxes, the ranks that receive all trees from outside take turns in sending the others what they lack.
    box, place = np.nonzero(entered < k)
    box, place = box[box > 0], place[box > 0]
    server = place % (entered == k).sum(axis=1)[box]
    links = inner.routes(places[box, server], places[box, place])
    parts.append((later[server] + 1, links, entered[box, place], np.full_like(box, k)))
    step, low, high = (np.concatenate([part[column] for part in parts]) for column in (0, 2, 3))
    lengths = np.concatenate([np.full(len(part[0]), part[1].shape[1]) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    routes = Routes(offsets, np.concatenate([part[1].ravel() for part in parts]).astype(np.int32))
    return BaseRows(step, np.arange(len(step)), np.zeros_like(step), low, high, routes)


def symmetric_forest(
    topology: Topology, collective: Collective, method: str, parameters: Mapping[str, Parameter]
) -> SymmetricSchedule | None:
    """Return the unverified allgather, reduce_scatter or allreduce along optimal trees, in symmetric form.

    Returns None if `topology` has no translations or if no construction in this module finds such trees. Takes as long
    as `optimum`, then O(roots of a block * links + base rows * log links).

    Raises:
        InvalidInput: in the same cases as `optimum`.
    """
    has_scatter, has_gather = symmetric_parts(collective)
    scatter = symmetric_trees(transpose_with_links(topology)[0]) if has_scatter else None
    if has_scatter and scatter is None:
        return None
    gather = symmetric_trees(topology) if has_gather else None
    if has_gather and gather is None:
        return None
    return SymmetricSchedule(topology, collective, scatter, gather, method, parameters)


def symmetric_trees(topology: Topology) -> SymmetricTrees | None:
    """Return allgather trees with the optimal time, or None if no construction in this module finds such trees."""
    candidates = list(_groups(topology))
    if not candidates:
        return None
    best = next(optima(topology, ALLGATHER, DEFAULT_GAP))
    carried = trees_on_links(topology, best.trees_per_bandwidth)
    moved = [(generators, TranslatedLinks.of(topology, generators, group)) for generators, group in candidates]
    for is_racks, (generators, moves) in product((False, True), moved):
        if is_racks:
            rows = two_switch_rows(topology, moves, carried, best.k)
        else:
            rows = shortest_path_rows(topology, moves, carried, best.k) or block_rows(topology, moves, carried, best.k)
        if rows is not None and np.all(moves.totals(rows.loads(topology)) <= carried):
            bounds = ColumnBounds(rows.steps, len(rows.routes), topology.compute_count, best.k)
            base = bounds.pack((*rows[:5], np.zeros(len(rows.step), dtype=np.uint8)))
            certificate = best.bound.to_json(topology)
            return SymmetricTrees(
                topology, generators, rows.steps, best.k, base, rows.routes, certificate, trees_per_root=best.k
            )
    return None


def _groups(topology: Topology) -> Iterator[tuple[tuple[int, ...], Translations]]:
    """Yield (indices of known symmetries, the translations that they generate): first all symmetries, then each one."""
    known = [index for index, move in enumerate(topology.automorphisms) if is_automorphism(topology, move)]
    sets = [tuple(known)] if known else []
    if 1 < len(known) <= MAX_GENERATORS:
        sets += [(index,) for index in known]
    for generators in sets:
        try:
            yield generators, Translations.of(topology, generators)
        except InvalidInput:  # these symmetries do not commute, or map a rank to itself
            continue


def shortest_path_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return transfers on trees of least height: nodes receive each tree from a neighbour one hop nearer to the root.

    Let -v be the node that the translation from 0 to v maps to 0. The tree of root 0 reaches v in the same way as the
    tree of root -v reaches 0, so it is enough to choose from which neighbours node 0 receives trees. Returns None if
    there are switches, parallel links or several orbits of ranks, or if nearer neighbours cannot send all trees.
    O(degree * (links + nodes)).
    """
    links, translations = topology.links, moves.translations
    if topology.switch_count or translations.rank_orbits > 1:
        return None
    network = network_of_links(topology, carried, np.full(topology.compute_count, k, dtype=np.int64))
    if len(network.src) != len(links):
        return None
    offsets = links.incoming_offsets(topology.node_count)
    tails = links.src[offsets[0] : offsets[1]]
    hops = distances_to(topology, np.append(tails, np.int32(0)))
    if hops.max() >= np.iinfo(np.uint16).max:
        return None
    shares = in_arc_shares(network, offsets, hops.astype(np.uint16), 0, beside=False)
    if shares.arc.min() < 0:
        return None
    route = moves.images(shares.arc, translations.negative(translations.element[shares.root]))
    step = hops[-1][shares.root].astype(np.int64) - 1
    return BaseRows(step, route.astype(np.int64), np.zeros_like(step), shares.lo, shares.hi, Routes.direct(len(links)))


def block_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return transfers of k trees for each root in the first block, or None if a link would carry more than `carried`.

    Each root's data enter every other block at one rank (`enter_blocks`), which sends them along trees in its block.
    """
    translations = moves.translations
    owner = block_owners(topology, translations)
    entered = enter_blocks(topology, moves, owner, carried, k)
    if entered is None:
        return None
    root, block, gateway, routes, room = entered
    count = len(root)
    nothing = np.zeros(count, dtype=np.int64)
    direct = BaseRows(nothing, np.arange(count), root.astype(np.int64), nothing, nothing + k, routes)
    if translations.rank_orbits == 1:
        return direct
    # The data that each rank spreads in its block, in rank order: first its own data, then the data that enter at it.
    roots = translations.first_ranks
    position = np.concatenate([np.arange(len(roots)), translations.orbit[gateway]])
    order = np.argsort(position, kind="stable")
    offsets = np.searchsorted(position[order], np.arange(len(roots) + 1)).astype(np.int64)
    arrived_root = np.concatenate([roots, root])[order].astype(np.int64)
    arrived_block = np.concatenate([np.zeros(len(roots), dtype=np.int32), block])[order].astype(np.int64)
    inside = _block_trees(topology, owner, room[moves.orbit], k * np.diff(offsets))
    if inside is None:
        return None
    # A rank spreads k units for each root whose data arrived at it: units i * k to (i + 1) * k - 1 belong to arrival i.
    first = inside.lo.astype(np.int64) // k
    times = (inside.hi.astype(np.int64) - 1) // k - first + 1
    row = np.repeat(np.arange(len(first)), times)
    turn = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    arrival = offsets[inside.root[row]] + turn
    pairs, route = np.unique(
        inside.route[row].astype(np.int64) * len(translations) + arrived_block[arrival], return_inverse=True
    )
    base_route, element = np.divmod(pairs, len(translations))
    lengths = np.diff(inside.routes.offsets)[base_route]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    hop = np.arange(ends[-1]) + np.repeat(inside.routes.offsets[base_route] - ends[:-1], lengths)
    routes = Routes(ends, moves.images(inside.routes.link_ids[hop], np.repeat(element, lengths)))
    within = (
        inside.depth[row].astype(np.int64) + (turn > 0),
        route.astype(np.int64) + len(direct.routes),
        arrived_root[arrival],
        np.maximum(inside.lo[row] - turn * k, 0),
        np.minimum(inside.hi[row] - turn * k, k),
    )
    columns = [np.concatenate(pair) for pair in zip(direct[:5], within, strict=True)]
    by_root = np.argsort(columns[2], kind="stable")
    step, use, shard, begin, end = (column[by_root] for column in columns)
    return BaseRows(step, use, shard, begin, end, joined_routes(direct.routes, routes))


def block_owners(topology: Topology, translations: Translations) -> Integers:
    """Return int64 per node: index of the translation from the first block to the node's block; -1 outside blocks.

    The first block contains the first rank of every orbit. A switch belongs to the block of its nearest ranks if all of
    these ranks are in one block and no translation leaves the switch in place. So an NVSwitch or a router in a group
    belongs to a block, but a switch that joins blocks does not. O(rounds * links).
    """
    links, ranks = topology.links, topology.compute_count
    moved = np.bincount(translations.orbit, minlength=len(translations.table)) == len(translations)
    owner = np.full(topology.node_count, -1, dtype=np.int64)
    owner[:ranks] = translations.element[:ranks]
    undecided = moved[translations.orbit] & (owner < 0)
    most = len(translations)
    while undecided.any():
        reaches = undecided[links.dst] & (owner[links.src] >= 0)
        if not reaches.any():
            break
        low, high = np.full(topology.node_count, most), np.full(topology.node_count, -1)
        np.minimum.at(low, links.dst[reaches], owner[links.src[reaches]])
        np.maximum.at(high, links.dst[reaches], owner[links.src[reaches]])
        undecided &= high < 0
        single = (high >= 0) & (low == high)
        owner[single] = low[single]
    return owner


def enter_blocks(
    topology: Topology, moves: TranslatedLinks, owner: Integers, carried: Integers, k: int
) -> tuple[Ranks, Ranks, Ranks, Routes, Integers] | None:
    """Return the paths on which the data of the first block's roots enter all other blocks, with k trees per root.

    A link between blocks counts as twice as long as a link inside a block. Among the ranks of a block that are nearest
    to the root, the rank at the root's position is chosen. If it already has its share of all entries, the rank with
    the fewest is chosen. O(roots * diameter * links + entries * (ranks of a block + links into a path's nodes)).

    Args:
        owner: int64 per node, from `block_owners`.
        carried: int64 per link, number of trees that it carries.

    Returns:
        Columns with one row per entry, sorted by root, then by block: the root; the translation that maps the first
        block to the entered block; the rank at which the data enter the block; and the path to this rank. Then, for
        each orbit of links, the number of trees that its links can still carry. None if the links on the chosen paths
        cannot carry all entries.
    """
    translations, links = moves.translations, topology.links
    room = carried[np.unique(moves.orbit, return_index=True)[1]].astype(np.int64)
    times = (len(translations) // moves.sizes).astype(np.int64)  # how often a message's images use a link
    inside = (owner[links.src] == owner[links.dst]) & (owner[links.src] >= 0)
    length = np.where(inside, 1, 2).astype(np.int32)
    network = (links.incoming_offsets(topology.node_count), links.src, length, topology.compute_count)
    roots = translations.first_ranks
    ranks = np.ascontiguousarray(translations.table[: len(roots)])
    gateway, offsets, ways = native.enter_blocks(k, network, roots.astype(np.int32), ranks, (room, times, moves.orbit))
    blocks = ranks.shape[1]
    if len(gateway) < len(roots) * (blocks - 1):
        return None
    block = np.tile(np.arange(1, blocks, dtype=np.int32), len(roots))
    return np.repeat(roots, blocks - 1), block, gateway, Routes(offsets, ways), room


def _block_trees(topology: Topology, owner: Integers, room: Integers, supply: Integers) -> TreeTransfers | None:
    """Return transfers along shallow trees within the first block, over links of `topology`; None if no trees fit.

    Args:
        owner: int64 per node, index of the node's block, from `block_owners`.
        room: int64 per link, number of trees that the link can carry.
        supply: int64 per rank in the block, number of trees rooted there.
    """
    nodes, links = np.flatnonzero(owner == 0), topology.links
    inside = np.flatnonzero((owner[links.src] == 0) & (owner[links.dst] == 0) & (links.src != links.dst))
    number = np.full(topology.node_count, -1, dtype=np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    block_links = Links(
        number[links.src[inside]], number[links.dst[inside]], links.bandwidth_class[inside], links.bandwidths,
        links.latency_class[inside], links.latencies_s,
    )  # fmt: skip
    names = tuple(topology.node_ids[node] for node in nodes.tolist())
    ranks = int(np.count_nonzero(nodes < topology.compute_count))
    block = Topology(f"block of {topology.spec}", names, ranks, block_links, topology.bandwidth_unit)
    network = network_of_links(block, room[inside], supply)
    if not carries_all_trees(network):
        return None
    try:
        split = remove_switches(network, names=names)
        trees = pack_trees(split.network)
    except (InvalidInput, CheckFailed):  # a switch cannot be removed
        return None
    rows = tree_transfers(block, room[inside], split, trees)
    return replace(rows, routes=replace(rows.routes, link_ids=inside.astype(np.int32)[rows.routes.link_ids]))
