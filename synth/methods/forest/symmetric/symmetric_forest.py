"""Optimal trees of large symmetric fabrics: made for one block, or one rank, and moved to all others by translations.

Tree packing treats every root by itself; where boxes are alike that repeats one box's work. Here it is done once, and
the result is held and verified in that form (`chorale.synth.schedule.symmetric`). Nothing is assumed about optimality:
what does not fit into the trees per link that the optimum allows is refused, and the general way remains.

In a fabric whose boxes are joined by their network ports, the ports decide: every box must receive what starts in the
others, once. So the data of a rank go once to every other box, and there down the trees of one box, which is as small
as a problem as the box is. Where a block is a single rank, every rank sends to all others directly.

Where the data of the ranks of one block enter the other blocks: one rank of each, over a shortest way from the root.

A block is a box of GPUs, a group of routers or a single rank; translations take any block to any other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.optimum import optima
from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.forest.layered import in_arc_shares
from chorale.synth.methods.forest.network import ForestNetwork, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.splitting_off import find_violated_cuts
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.symmetric.two_switches import BaseRows, two_switch_rows
from chorale.synth.methods.forest.tree_transfers import TreeTransfers, tree_transfers
from chorale.synth.methods.method import DEFAULT_GAP
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes
from chorale.synth.schedule.symmetric import SymmetricSchedule, SymmetricTrees, symmetric_parts
from chorale.synth.schedule.transforms import joined_routes
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.topology.translations import TranslatedLinks, Translations


class Capacities(NamedTuple):
    """What the links of each orbit can still carry.

    room:   int64 per orbit: trees that each of its links can still carry
    shared: int64 per orbit: how many images of a use of one of its links use that link
    orbit:  int32 per link
    """

    room: Integers
    shared: Integers
    orbit: Ranks


class Entries(NamedTuple):
    """Entries into all blocks but the first, in the order of roots, then of blocks.

    root:    int32 per entry: rank of the first block whose data enter
    block:   int32 per entry: element that takes the first block to the one entered
    gateway: int32 per entry: rank of that block over which they enter
    offsets, links: the way from root to gateway is `links[offsets[i]:offsets[i + 1]]`
    """

    root: Ranks
    block: Ranks
    gateway: Ranks
    offsets: Integers
    links: Ranks


def enter_blocks(
    topology: Topology,
    moves: TranslatedLinks,
    owner: Integers,
    carried: Integers,
    k: int,
) -> tuple[Entries, Capacities] | None:
    """Return entries of k trees for all roots of the first block, and what they leave of `carried` (int64 per link).

    owner: int64 per node, as `chorale.synth.methods.forest.symmetric.symmetric_forest.block_owners` has it
    A link from block to block counts twice as far as a link inside one. Of the nearest ranks of a block, that at the
    root's own position is taken, unless it already has its part of all entries, else the one with the fewest. None
    where links on the ways chosen cannot carry them.
    O(roots * diameter * links + entries * (ranks of a block + links into the nodes of a way)).
    """
    translations, links = moves.translations, topology.links
    first = np.unique(moves.orbit, return_index=True)[1]
    shared = (len(translations) // moves.sizes).astype(np.int64)
    capacities = Capacities(carried[first].astype(np.int64), shared, moves.orbit)
    inside = (owner[links.src] == owner[links.dst]) & (owner[links.src] >= 0)
    network = _LinkLengths(
        links.incoming_offsets(topology.node_count), links.src, np.where(inside, 1, 2).astype(np.int32),
        topology.compute_count,
    )  # fmt: skip
    roots = translations.first_ranks
    ranks = np.ascontiguousarray(translations.table[: len(roots)])
    blocks = ranks.shape[1]
    entered = np.zeros(len(roots), dtype=np.int64)
    hops = np.empty(topology.node_count, dtype=np.int32)
    gateways, lengths, ways = [], [], []
    for position, root in enumerate(roots.tolist()):
        native.hops_through_switches(network, root, hops)
        gateway, length = np.zeros(blocks, dtype=np.int32), np.zeros(blocks, dtype=np.int32)
        way = np.empty((blocks, max(1, int(hops.max()))), dtype=np.int32)
        if not native.enter_from(position, k, network, hops, ranks, capacities, entered, gateway, way, length):
            return None
        ways.append(way[np.arange(way.shape[1]) >= way.shape[1] - length[:, None]])
        lengths.append(length[1:])
        gateways.append(gateway[1:])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    block = np.tile(np.arange(1, blocks, dtype=np.int32), len(roots))
    entries = Entries(np.repeat(roots, blocks - 1), block, np.concatenate(gateways), offsets, np.concatenate(ways))
    return entries, capacities


class _LinkLengths(NamedTuple):
    """Links by the node they lead into, with their lengths.

    offsets: int64[nodes + 1];  src, length: int32 per link
    """

    offsets: Integers
    src: Ranks
    length: Ranks
    compute_count: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockNetwork:
    """The first block as a network by itself.

    topology: its ranks, in order, and the switches that belong to it
    links:    int32 per link of it: the link of the whole network
    """

    topology: Topology
    links: Ranks


def first_block(topology: Topology, owner: Integers) -> BlockNetwork:
    """Return the block of the first rank of every orbit; `owner` is that of `block_owners`. O(links)."""
    nodes = np.flatnonzero(owner == 0)
    links = topology.links
    inside = np.flatnonzero((owner[links.src] == 0) & (owner[links.dst] == 0) & (links.src != links.dst))
    number = np.full(topology.node_count, -1, dtype=np.int32)
    number[nodes] = np.arange(len(nodes), dtype=np.int32)
    block_links = Links(
        number[links.src[inside]], number[links.dst[inside]], links.bandwidth_class[inside], links.bandwidths,
        links.latency_class[inside], links.latencies_s,
    )  # fmt: skip
    ranks = int(np.count_nonzero(nodes < topology.compute_count))
    names = tuple(topology.node_ids[node] for node in nodes.tolist())
    block = Topology(f"block of {topology.spec}", names, ranks, block_links, topology.bandwidth_unit)
    return BlockNetwork(block, inside.astype(np.int32))


def block_owners(topology: Topology, translations: Translations) -> Integers:
    """Return int64 per node: the element that takes the first block to the node's, -1 for nodes of no block.

    The first block holds the first rank of every orbit. A switch belongs to the block of the ranks nearest to it, if
    that is one block and no translation keeps the switch in its place: an NVSwitch, a router of a group, but no switch
    in which blocks meet. O(rounds * links).
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
        reached = high >= 0
        undecided &= ~reached
        single = reached & (low == high)
        owner[single] = low[single]
    return owner


def block_trees(block: BlockNetwork, room: Integers, supply: Integers) -> TreeTransfers | None:
    """Return what low trees send inside the block, over links of the whole network; None where there are none.

    room:   int64 per link of the block: trees that it can carry
    supply: int64 per rank of the block: trees from there
    """
    network = network_of_links(block.topology, room, supply)
    if len(find_violated_cuts(network, 1)):
        return None
    try:
        split = remove_switches(network, names=block.topology.node_ids)
        trees = pack_trees(split.network)
    except (InvalidInput, CheckFailed):  # a switch stands in the way of trees
        return None
    rows = tree_transfers(block.topology, room, split, trees)
    routes = replace(rows.routes, link_ids=block.links[rows.routes.link_ids])
    return replace(rows, routes=routes)


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
    count = len(entries.root)
    nothing = np.zeros(count, dtype=np.int64)
    routes = Routes(entries.offsets, entries.links)
    direct = BaseRows(nothing, np.arange(count), entries.root.astype(np.int64), nothing, nothing + k, routes)
    if translations.rank_orbits == 1:
        return direct
    block, arrivals = first_block(topology, owner), _arrivals(entries, translations)
    room = capacities.room[moves.orbit[block.links]]
    inside = block_trees(block, room, k * np.diff(arrivals.offsets))
    if inside is None:
        return None
    return _joined(direct, _inside_rows(block, inside, arrivals, moves, k))


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


def shortest_path_rows(topology: Topology, network: ForestNetwork, moves: TranslatedLinks) -> BaseRows | None:
    """Return rows in which every node takes each tree from a neighbour one hop nearer to its root: the least height.

    The tree of root 0 reaches node v as root -v reaches node 0, so the choices of node 0 decide. None where there are
    switches, parallel links or several orbits of ranks, and where nearer neighbours cannot carry everything.
    O(degree * (links + nodes)).
    """
    links, translations = topology.links, moves.translations
    if topology.switch_count or translations.rank_orbits > 1 or len(network.src) != len(links):
        return None
    offsets = links.incoming_offsets(topology.node_count)
    tails = links.src[offsets[0] : offsets[1]]
    hops = distances_to(topology, np.append(tails, np.int32(0)))
    if hops.max() >= np.iinfo(np.uint16).max:
        return None
    shares = in_arc_shares(network, offsets, hops.astype(np.uint16), 0, beside=False)
    if shares.arc.min() < 0:
        return None
    back = translations.negative(translations.element[shares.root])
    route = moves.images(shares.arc, back)
    step = hops[-1][shares.root].astype(np.int64) - 1
    return BaseRows(step, route.astype(np.int64), np.zeros_like(step), shares.lo, shares.hi, Routes.direct(len(links)))


MAX_GENERATORS = 4
"""So many symmetries are tried together and one by one, more only together."""


def symmetric_forest(
    topology: Topology, collective: Collective, method: str, parameters: Mapping[str, Parameter]
) -> SymmetricSchedule | None:
    """Return the schedule of `collective` (allgather, reduce_scatter, allreduce) whose trees reach the optimum.

    None where `topology` carries no translations, or none under which such trees are found in the ways known here.
    Cost: that of the optimum, then O(roots of a block * links + base rows * log links). Raises InvalidInput as
    `optimum` does. Not verified.
    """
    has_scatter, has_gather = symmetric_parts(collective)
    scatter = gather = None
    if has_scatter:
        turned = transpose_with_links(topology)[0]
        scatter = symmetric_trees(turned)
        if scatter is None:
            return None
    if has_gather:
        gather = symmetric_trees(topology)
        if gather is None:
            return None
    return SymmetricSchedule(topology, collective, scatter, gather, method, parameters)


def symmetric_trees(topology: Topology) -> SymmetricTrees | None:
    """Return trees of an allgather that take the optimum's time, None where these ways find none."""
    candidates = list(_groups(topology))
    if not candidates:
        return None
    best = next(optima(topology, ALLGATHER, DEFAULT_GAP))
    carried = trees_on_links(topology, best.trees_per_bandwidth)
    moved = [(generators, TranslatedLinks.of(topology, generators, group)) for generators, group in candidates]
    for make, (generators, moves) in product((_rows, two_switch_rows), moved):
        rows = make(topology, moves, carried, best.k)
        if rows is not None and np.all(moves.totals(rows.loads(topology)) <= carried):
            bounds = ColumnBounds(rows.steps, len(rows.routes), topology.compute_count, best.k)
            base = bounds.pack((*rows[:5], np.zeros(len(rows.step), dtype=np.uint8)))
            certificate = best.bound.to_json(topology)
            return SymmetricTrees(
                topology, generators, rows.steps, best.k, base, rows.routes, certificate, trees_per_root=best.k
            )
    return None


def _groups(topology: Topology) -> Iterator[tuple[tuple[int, ...], Translations]]:
    """Yield sets of known symmetries that generate translations, large ones first."""
    known = [index for index, move in enumerate(topology.automorphisms) if is_automorphism(topology, move)]
    sets = [tuple(known)] if known else []
    if 1 < len(known) <= MAX_GENERATORS:
        sets += [(index,) for index in known]
    for generators in sets:
        try:
            yield generators, Translations.of(topology, generators)
        except InvalidInput:  # these do not commute, or keep a rank in its place
            continue


def _rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    supply = np.full(topology.compute_count, k, dtype=np.int64)
    if topology.switch_count == 0:
        network = network_of_links(topology, carried, supply)
        rows = shortest_path_rows(topology, network, moves)
        if rows is not None:
            return rows
    return block_rows(topology, moves, carried, k)
