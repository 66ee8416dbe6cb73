"""Plans paths for tokens that go to several ranks (mixture of experts) and whose results are summed on the way back.

On boxes with rails, a token is sent only once to each other box that needs it, then copied within that box to every
rank that needs it. NICs are balanced as in `chorale.synth.methods.traffic.two_level`. On other networks, ranks copy
tokens along trees of cheap paths.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.linear_program import commodities_of
from chorale.synth.methods.alltoall.schedule import FlowPaths
from chorale.synth.methods.traffic.cuts import Cut, cuts_of_tokens
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
from chorale.synth.methods.traffic.planner import plan_amounts
from chorale.synth.methods.traffic.tokens import TokenRouting
from chorale.synth.methods.traffic.two_level import Pieces, balanced, paths_of, relieved
from chorale.synth.schedule.schedule import MAX_CHUNKS, ColumnBounds, Parameter, Routes, Schedule, reversed_routes
from chorale.synth.topology.topology import Topology

Numbers = NDArray[np.int64]

MAX_SHARDS = 2**18
_TOKEN_PARTS = 16
_CLOSE = Fraction(1, 100)
_TREES, _LIMITS, _ROUNDS = 1024, 4, 20


class Edges(NamedTuple):
    """Edges of trees, one per row: chunks `lo` to `hi - 1` of `shard` go from rank `sender` to rank `receiver`.

    depth: number of edges on the path from the shard's source to the sender
    """

    shard: Numbers
    lo: Numbers
    hi: Numbers
    sender: Numbers
    receiver: Numbers
    depth: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class DispatchPlan:
    """A plan for tokens: trees along which they spread. Every rank receives each chunk of a token at most once.

    edges:  the trees' edges; a chunk is 1 / `parts` of a unit of `routing.amount`
    routes: paths that the edges use
    pair:   for each edge, the index of its path in `routes`
    bound:  cut that gives the lower bound on the time of any plan
    method: how the plan was found: `two level`, `trees` or `no copies`
    uncopied_time: time of the plan in which each source sends a separate copy to each target
    time:   time that the busiest link needs, in units of data / bandwidth, as are all times
    """

    topology: Topology
    routing: TokenRouting
    edges: Edges
    routes: Routes
    pair: Numbers
    bound: Cut
    method: str
    parts: int = 1
    uncopied_time: Fraction = Fraction(0)
    time: Fraction = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", self._time(self.routes))

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound: 0 is optimal."""
        return self.time / self.bound.time - 1 if self.time else Fraction(0)

    @property
    def can_return(self) -> bool:
        """Whether all links of `routes` have a reverse link, so that a combine can use the reversed routes."""
        with suppress(InvalidInput):
            return bool(reverse_routes(self.topology, self.routes))
        return False

    @property
    def combine_time(self) -> Fraction:
        """Time of the combine, which sends sums over the reverse links, in units of data / bandwidth."""
        return self._time(reverse_routes(self.topology, self.routes))

    def _time(self, routes: Routes) -> Fraction:
        amounts = np.zeros(len(routes), dtype=np.int64)
        np.add.at(amounts, self.pair, self.edges.hi - self.edges.lo)
        loads = np.zeros(len(self.topology.links), dtype=np.int64)
        np.add.at(loads, routes.link_ids, np.repeat(amounts, np.diff(routes.offsets)))
        return self.topology.links.longest_time(loads) / self.parts

    def schedule(self, combine: bool = False) -> Schedule:
        """Return the unverified schedule of the dispatch, or of the combine, which runs the dispatch backwards.

        Raises:
            InvalidInput: if there are no shards or more than `MAX_SHARDS`, or if a combine lacks reverse links.
        """
        routing = self.routing
        if not len(routing.source):
            raise InvalidInput("no token goes to another rank: {}", routing.name, "check the placement")
        if len(routing.source) > MAX_SHARDS:
            rule = f"a schedule must have at most {MAX_SHARDS} groups of tokens with the same ranks"
            raise InvalidInput(rule, len(routing.source), "route fewer tokens at a time")
        amount = routing.amount * self.parts
        chunk = int(np.gcd.reduce(np.concatenate([amount, self.edges.lo, self.edges.hi])))
        sizes = amount // chunk
        if int(sizes.max()) > MAX_CHUNKS:
            raise InvalidInput(f"a shard must have at most {MAX_CHUNKS} chunks", int(sizes.max()), "use a larger unit")
        name = CollectiveName.COMBINE if combine else CollectiveName.DISPATCH
        collective = uneven_collective(name, sizes.tolist(), routing.members())
        steps, most = int(self.edges.depth.max()) + 1, int(sizes.max())
        routes = reverse_routes(self.topology, self.routes) if combine else self.routes
        bounds = ColumnBounds(steps, len(routes), len(sizes), most)
        depth = steps - 1 - self.edges.depth if combine else self.edges.depth
        adds = np.full(len(depth), combine, dtype=np.uint8)
        columns = depth, self.pair, self.edges.shard, self.edges.lo // chunk, self.edges.hi // chunk, adds
        order = np.lexsort((self.edges.lo, self.edges.shard, depth))
        transfers = bounds.pack([column[order] for column in columns])
        parameters: dict[str, Parameter] = {"solver": self.method, "traffic": routing.name}
        certificate = self.certificate(Fraction(chunk, self.parts), combine)
        return Schedule(
            self.topology, collective, "pipelined", steps, most, transfers, routes, "alltoall", parameters, certificate
        )

    def certificate(self, chunk: Fraction = Fraction(1), combine: bool = False) -> Mapping[str, Any]:
        """Return the certificate that no plan is faster than `bound`. Its times are in units of `chunk` / bandwidth."""
        inside, time, region = self.bound.inside, self.bound.time / chunk, self.bound.region
        if combine:
            ratio = region.out / region.into
            inside, time = ~inside, time * (ratio if self.bound.is_out else 1 / ratio)
        return {"kind": "copies-cut", "inside": np.flatnonzero(inside).tolist(), "time_lower": str(time)}


def reverse_routes(topology: Topology, routes: Routes) -> Routes:
    """Return the routes in the opposite direction. Raises InvalidInput if a link of a route has no reverse link."""
    reverse = reversed_routes(routes, topology.links.opposites())
    if (reverse.link_ids < 0).any():
        rule = "sums travel back over reversed links, but {}"
        raise InvalidInput(rule, f"{topology.spec} has links without a reverse", "plan the dispatch alone")
    return reverse


def plan_dispatch(topology: Topology, routing: TokenRouting) -> DispatchPlan:
    """Return a plan for `routing` on `topology`, with a bound from cuts around ranks and boxes. Deterministic.

    If there are no tokens, the plan takes no time and cannot be turned into a schedule.
    """
    if routing.ranks != topology.compute_count:
        rule = f"a routing must be for the {topology.compute_count} ranks of {topology.spec}"
        raise InvalidInput(rule, f"{routing.ranks} ranks in {routing.name}", "choose a routing or a network that fits")
    bound = max(cuts_of_tokens(topology, routing), key=lambda cut: cut.time)
    if not len(routing.source):
        none = np.zeros(0, dtype=np.int64)
        return DispatchPlan(topology, routing, Edges(*[none] * 6), Routes.of_paths([]), none, bound, "no copies")
    fabric = rail_fabric(topology)
    # a separate copy for each target, as in an alltoallv
    plan = plan_amounts(topology, routing.without_copies())
    shard, source = routing.shard, routing.source
    away = routing.targets != source[shard]
    edges = _edges(shard[away], routing.amount, source[shard[away]], routing.targets[away])
    chunk, parts = plan.chunks.chunk.numerator, plan.chunks.chunk.denominator
    edges = edges._replace(hi=edges.hi * parts)
    paths = plan.paths()
    paths = replace(paths, amount=paths.amount * chunk)
    plans = [_over_paths(topology, routing, edges, paths, 1, bound, "no copies", parts)]
    if fabric is None:
        plans += _tree_plans(topology, routing, bound)
    else:
        # Try undivided tokens and, if their plan is not close to the bound, divided tokens.
        unit = int(np.gcd.reduce(routing.amount))
        for parts in (1, _TOKEN_PARTS):
            least, fine = bound.time / unit * parts, replace(routing, amount=routing.amount // unit * parts)
            homes = _homes(fabric, fine, least)
            edges = _over_rails(fabric, fine, homes, least, np.zeros_like(homes.origin))
            pairs, pair = np.unique(edges.sender * routing.ranks + edges.receiver, return_inverse=True)
            amounts = np.zeros(len(pairs), dtype=np.int64)
            np.add.at(amounts, pair, edges.hi - edges.lo)
            sender, receiver = (ends.astype(np.int32) for ends in np.divmod(pairs, routing.ranks))
            far = fabric.box[sender] != fabric.box[receiver]
            sends, receives = (np.where(far, end, np.int32(-1)) for end in (sender, receiver))
            pieces = relieved(fabric, Pieces(sender, receiver, sends, receives, amounts), least)[1]
            plans.append(
                _over_paths(fabric.topology, routing, edges, paths_of(fabric, pieces), unit, bound, "two level", parts)
            )
            if plans[-1].gap < _CLOSE:
                break
    return replace(min(plans, key=lambda plan: plan.time), uncopied_time=plans[0].time)


def _over_paths(
    topology: Topology,
    routing: TokenRouting,
    edges: Edges,
    paths: FlowPaths,
    unit: int,
    bound: Cut,
    method: str,
    parts: int,
) -> DispatchPlan:
    """Return the plan that sends `edges` over `paths`. All amounts are in units of `unit` chunks.

    For each pair of ranks, the amounts of the edges and of the paths must have the same sum.
    """
    order = np.lexsort((paths.lo, paths.target, paths.source))
    of_paths = paths.source[order] * routing.ranks + paths.target[order]
    key = edges.sender * routing.ranks + edges.receiver
    edge, piece, lo, hi = _matched(key, edges.hi - edges.lo, of_paths, paths.amount[order])
    split = Edges._make(column[edge] for column in edges)
    split = split._replace(lo=(split.lo + lo) * unit, hi=(split.lo + hi) * unit)
    routes = Routes(paths.offsets.astype(np.int64), paths.links.astype(np.int32))
    return DispatchPlan(topology, routing, split, routes, order[piece], bound, method, parts)


class _Homes(NamedTuple):
    """A routing in which other ranks may make copies on behalf of busy sources.

    A row is a part of a shard. Its home is the rank that sends its tokens to the targets: the source or a helper.

    routing:   the rows, with their homes as sources
    origin:    int64[rows], the rank that has the tokens at the start
    shard, lo: int64[rows], the row's shard, and the row's first chunk in the shard
    via:       int64[rows], the box that forwards the tokens to all other boxes; -1 if the home sends to each box itself
    """

    routing: TokenRouting
    origin: Numbers
    shard: Numbers
    lo: Numbers
    via: Numbers


def _homes(fabric: RailFabric, routing: TokenRouting, least: Fraction) -> _Homes:
    """Choose the ranks that copy tokens. Boxes and ranks that would send for longer than the time `least` get helpers.

    Loads are estimated as if a source sent each token to all targets in its own box, and once to each other box.
    """
    boxes, places = fabric.members.shape
    box, source = fabric.box.astype(np.int64), routing.source

    def counts_of(routing: TokenRouting) -> tuple[Numbers, Numbers]:
        """Count each row's targets; return (int64[rows]: in the source's box, int64[rows, boxes]: in other boxes)."""
        shard, size = routing.shard, len(routing.source)
        away = routing.targets != routing.source[shard]
        key = shard[away] * boxes + box[routing.targets[away]]
        counts = np.bincount(key, minlength=size * boxes).reshape(-1, boxes)
        home = np.arange(size), box[routing.source]
        near = counts[home]
        counts[home] = 0
        return near, counts

    counts = counts_of(routing)[1]
    copies = (counts > 0).sum(axis=1).astype(np.float64)
    load = np.bincount(box[source], routing.amount * copies, minlength=boxes)
    level = np.maximum(load.mean(), float(least / fabric.scale) * fabric.nics[0][fabric.members].sum(axis=1))

    def boxes_of(row: int, _: int) -> list[tuple[int, int]]:
        return [(0, one) for one in np.flatnonzero(counts[row]).tolist()]

    number, lo, amount, via = _shared(routing.amount, copies, load, level, box[source], boxes_of)
    row_of, reached = _gathered(routing, number)
    there, own = via[row_of], box[source[number]][row_of]
    stays = (there < 0) | (box[reached] == there) | (box[reached] == own)
    first = _routing_of(routing, source[number], row_of[stays], reached[stays], amount)
    near, counts = counts_of(first)
    copies = near + (counts > 0).sum(axis=1) * (1 - 1 / places)
    load = np.bincount(first.source, first.amount * copies, minlength=routing.ranks)
    load += ((counts - (counts > 0)) * first.amount[:, None]).sum(axis=0)[box] / places
    lanes = fabric.lanes[0] if fabric.has_switch else fabric.lanes.sum(axis=1)
    level = np.maximum(load[fabric.members].mean(axis=1)[box], 0.9 * float(least / fabric.scale) * lanes)

    def helpers(row: int, rank: int) -> list[tuple[int, int]]:
        goes = set(first.targets[first.offsets[row] : first.offsets[row + 1]].tolist())
        return [(other not in goes, other) for other in fabric.members[box[rank]].tolist() if other != rank]

    part, begin, amount, helper = _shared(first.amount, copies, load, level, first.source, helpers)
    row_of, reached = _gathered(first, part)
    back = (helper[row_of] >= 0) & (reached == first.source[part][row_of])  # helpers need not send data back
    home = np.where(helper < 0, first.source[part], helper)
    homed = _routing_of(routing, home, row_of[~back], reached[~back], amount)
    return _Homes(homed, first.source[part], number[part], lo[part] + begin, via[part])


def _shared(
    amount: Numbers,
    copies: NDArray[np.float64],
    load: NDArray[np.number],
    level: NDArray[np.float64],
    unit: Numbers,
    helpers: Callable[[int, int], list[tuple[int, int]]],
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Let other units (ranks or boxes) make copies for busy units, so that no load exceeds `level` if possible.

    amount, copies: chunks of each row, and how often its unit `unit[row]` would send each chunk
    load, level:    for each unit, its load and the limit on its load, in chunks
    helpers:        function of a row and its unit that returns the units that could make the copies instead, as
                    pairs (extra, unit); `extra` is 1 if the row must be sent to the unit only for this, else 0

    Returns:
        Columns of parts of rows: row, first chunk, number of chunks, unit that copies the part (-1: the row's own).
    """
    parts: list[tuple[int, int, int, int]] = []
    stays, load = amount.copy(), load.astype(np.float64)
    for busy in np.flatnonzero(load > level).tolist():
        mine = np.flatnonzero((unit == busy) & (copies > 1))
        for row in mine[np.argsort(-copies[mine], kind="stable")].tolist():
            if load[busy] <= level[busy]:
                break
            saves = copies[row] - 1
            left = min(int((load[busy] - level[busy]) / saves) + 1, int(amount[row]))
            for is_new, helper in sorted(helpers(row, busy), key=lambda pair: (pair[0], load[pair[1]])):
                cost = saves + is_new
                part = max(min(left, int((level[helper] - load[helper]) / cost)), 0)
                if part:
                    stays[row] -= part
                    parts.append((row, int(stays[row]), part, helper))
                    load[helper] += part * cost
                    load[busy] -= part * saves
                    left -= part
    kept = np.flatnonzero(stays)
    zeros = np.zeros_like(kept)
    columns = zip((kept, zeros, stays[kept], zeros - 1), np.array(parts, dtype=np.int64).reshape(-1, 4).T, strict=True)
    rows, begins, counts, units = (np.concatenate(pair, dtype=np.int64) for pair in columns)
    return rows, begins, counts, units


def _gathered(routing: TokenRouting, number: Numbers) -> tuple[Numbers, Numbers]:
    """Return all targets of the shards in `number` as two columns: (position of the shard in `number`, target)."""
    sizes = np.diff(routing.offsets)[number]
    before = np.cumsum(sizes) - sizes
    entry = np.arange(sizes.sum()) + np.repeat(routing.offsets[number] - before, sizes)
    return np.repeat(np.arange(len(number)), sizes), routing.targets[entry]


def _routing_of(like: TokenRouting, source: Numbers, row: Numbers, targets: Numbers, amount: Numbers) -> TokenRouting:
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(source)))])
    return TokenRouting(like.name, like.ranks, source, offsets, targets, amount)


def _over_rails(
    fabric: RailFabric, whole: TokenRouting, homes: _Homes, least: Fraction, start: Numbers, known: Edges | None = None
) -> Edges:
    """Return the edges of paths that lead from origins over homes, relays in the same box and NICs to the targets.

    Args:
        fabric: the network.
        whole: the routing of all tokens to all targets.
        homes: the same routing, divided into rows with homes.
        least: time within which NICs should finish.
        start: int64[rows], depth of the edges out of each row's origin.
        known: existing edges from the origins, which are not added again; their `shard` is the index of the row.
    """
    routing, origin, box, ranks = homes.routing, homes.origin, fabric.box.astype(np.int64), whole.ranks
    is_moved = origin != routing.source
    later = start + is_moved
    shard, source, targets = routing.shard, routing.source, routing.targets
    near = (box[targets] == box[source[shard]]) & (targets != source[shard])
    star = _edges(shard[near], routing.amount, source[shard[near]], targets[near])
    star = star._replace(depth=later[star.shard])
    keeps = is_moved.copy()
    keeps[np.setdiff1d(np.flatnonzero(keeps), np.concatenate([star.shard, shard[targets == source[shard]]]))] = False
    moved = np.flatnonzero(keeps)
    prefix = _edges(moved, routing.amount, origin[moved], source[moved])
    star = _joined(prefix._replace(depth=start[moved]), star)
    there = star if known is None else _joined(star, known)
    far = np.flatnonzero(box[targets] != box[source[shard]])
    if not len(far):
        return _of_shards(homes, star)
    # A crossing is a message to another box. Each row has one for each box, to one of the row's targets there.
    # Consecutive crossings use different targets.
    order = far[np.lexsort((targets[far], box[targets[far]], shard[far]))]
    first = np.flatnonzero(np.diff(shard[order] * len(fabric.members) + box[targets[order]], prepend=-1))
    count = np.diff(np.append(first, len(order)))
    agent = targets[order[first + np.arange(len(first)) % count]]
    row = shard[order[first]]
    amounts = np.zeros((ranks, ranks), dtype=np.int64)
    np.add.at(amounts, (source[row], agent), routing.amount[row])
    copied = order[np.repeat(agent, count) != targets[order]]
    places = fabric.members.shape[1]
    of_places = np.zeros(fabric.members.shape, dtype=np.int64)
    np.add.at(of_places, (box[targets[copied]], fabric.place[targets[copied]]), routing.amount[shard[copied]])
    inside = (of_places // places)[box]  # lane loads if a box's NICs receive equal parts of the data to copy
    np.add.at(inside, (star.sender, fabric.place[star.receiver]), star.hi)
    pieces = balanced(fabric, amounts, least, inside)[1]
    of_pieces = pieces.source.astype(np.int64) * ranks + pieces.target
    crossing, piece, lo, hi = _matched(source[row] * ranks + agent, routing.amount[row], of_pieces, pieces.amount)
    sender, receiver = pieces.sender[piece].astype(np.int64), pieces.receiver[piece].astype(np.int64)
    own = is_moved[row[crossing]] & (sender == origin[row[crossing]])
    via = (sender != source[row[crossing]]) & ~own
    relayed = _to_relays(row[crossing[via]], lo[via], hi[via], sender[via], there, routing)
    relayed = relayed._replace(depth=later[relayed.shard])
    depth = np.where(own, start[row[crossing]], later[row[crossing]] + via)
    across = Edges(row[crossing], lo, hi, sender, receiver, depth)
    # Homes that are not targets themselves receive only the chunks that they forward.
    passed = np.flatnonzero(is_moved[across.shard] & ~keeps[across.shard] & ~own)
    shards, begins, ends = (column[passed] for column in (across.shard, lo, hi))
    to_homes = _to_relays(shards, begins, ends, source[shards], there, routing)
    to_homes = to_homes._replace(sender=origin[to_homes.shard], depth=start[to_homes.shard])
    copies = np.repeat(np.arange(len(crossing)), count[crossing])
    place = np.arange(len(copies)) - np.repeat(np.cumsum(count[crossing]) - count[crossing], count[crossing])
    target = targets[order[first[crossing[copies]] + place]]
    is_other = target != receiver[copies]
    copies, target = copies[is_other], target[is_other]
    shards, begins, ends = (column[copies] for column in (across.shard, lo, hi))
    spread = Edges(shards, begins, ends, receiver[copies], target, across.depth[copies] + 1)
    edges = _joined(star, to_homes, relayed, across, spread)
    if (homes.via >= 0).any():
        of_spread = spread._replace(shard=copies)
        edges = _joined(edges, _onward(fabric, whole, homes, least, across, of_spread))
    return _of_shards(homes, edges)


def _onward(
    fabric: RailFabric, whole: TokenRouting, homes: _Homes, least: Fraction, across: Edges, spread: Edges
) -> Edges:
    """Return the edges from forwarding boxes (`homes.via`) to other boxes.

    across: edges of all rows to other boxes
    spread: edges inside the boxes that `across` reaches; their `shard` is the index of an edge in `across`
    """
    box, onward = fabric.box, np.flatnonzero(homes.via[across.shard] >= 0)
    of_row, receiver = across.shard[onward], across.receiver[onward]
    row_of, reached = _gathered(whole, homes.shard[of_row])
    gone = (box[reached] == homes.via[of_row][row_of]) | (box[reached] == box[homes.origin[of_row]][row_of])
    lo, amount = across.lo[onward], (across.hi - across.lo)[onward]
    routing = _routing_of(whole, receiver, row_of[~gone], reached[~gone], amount)
    index = np.full(len(across.shard), -1)
    index[onward] = np.arange(len(onward))
    of_onward = index[spread.shard]
    known = Edges._make(column[of_onward >= 0] for column in spread._replace(shard=of_onward))
    further = _Homes(routing, receiver, of_row, lo, np.full(len(onward), -1))
    return _over_rails(fabric, whole, further, least, across.depth[onward] + 1, known)


def _of_shards(homes: _Homes, edges: Edges) -> Edges:
    lo = homes.lo[edges.shard]
    return edges._replace(shard=homes.shard[edges.shard], lo=edges.lo + lo, hi=edges.hi + lo)


def _joined(*parts: Edges) -> Edges:
    return Edges(*map(np.concatenate, zip(*parts, strict=True)))


def _edges(shard: Numbers, amount: Numbers, sender: Numbers, receiver: Numbers) -> Edges:
    zero = np.zeros(len(shard), dtype=np.int64)
    return Edges(shard, zero, amount[shard], sender, receiver, zero)


def _matched(
    key: Numbers, amount: Numbers, piece_key: Numbers, piece_amount: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Match crossings (messages between boxes) with pieces (amounts of data with a path); divide both if necessary.

    A key stands for a pair of ranks. For each key, crossings and pieces must have equal total amounts.

    Returns:
        Columns with one row per part: its crossing, its piece, and its first chunk and last chunk + 1 in the crossing.
    """
    by_key = np.argsort(key, kind="stable")
    of_piece = np.argsort(piece_key, kind="stable")
    ends, piece_ends = np.cumsum(amount[by_key]), np.cumsum(piece_amount[of_piece])
    end = np.unique(np.concatenate([ends, piece_ends]))
    begin = np.concatenate([[0], end[:-1]])
    crossing = np.searchsorted(ends, begin, side="right")
    piece = of_piece[np.searchsorted(piece_ends, begin, side="right")]
    start = ends[crossing] - amount[by_key[crossing]]
    return by_key[crossing], piece, begin - start, end - start


def _to_relays(row: Numbers, lo: Numbers, hi: Numbers, relay: Numbers, star: Edges, routing: TokenRouting) -> Edges:
    """Return the edges to relays that `star` lacks for each row. One edge may carry data for several boxes."""
    key = row * routing.ranks + relay
    extra = np.flatnonzero(~np.isin(key, star.shard * routing.ranks + star.receiver))
    order = extra[np.lexsort((lo[extra], key[extra]))]
    if not len(order):
        return Edges(*(order for _ in Edges._fields))
    key, lo, hi = key[order], lo[order], hi[order]
    begin = np.cumsum(np.diff(key, prepend=key[0]) != 0) * (int(routing.amount.max()) + 1)  # separates keys
    reached = np.maximum.accumulate(begin + hi)
    first = np.flatnonzero(np.append(True, begin[1:] + lo[1:] > reached[:-1]))
    last = np.append(first[1:], len(key)) - 1
    shard, receiver = np.divmod(key[first], routing.ranks)
    depth = np.zeros(len(first), dtype=np.int64)
    return Edges(shard, lo[first], reached[last] - begin[last], routing.source[shard], receiver, depth)


def _tree_plans(topology: Topology, routing: TokenRouting, bound: Cut) -> list[DispatchPlan]:
    """Return plans in which ranks copy the data along trees of cheap paths, one plan for each limit on link times."""
    problem, unit = commodities_of(topology, symmetric=False), int(np.gcd.reduce(routing.amount))
    units = routing.amount // unit
    # Shards are divided into parts of whole units, and each part can use a different tree.
    most = max(int(units.sum()) // _TREES, 1)
    parts = -(-units // most)
    shard = np.repeat(np.arange(len(units)), parts)
    place = np.arange(len(shard)) - np.repeat(np.cumsum(parts) - parts, parts)
    lo, hi = (units[shard] * (place + last) // parts[shard] * unit for last in (0, 1))
    row_of, targets = _gathered(routing, shard)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(shard)))])
    network = problem.outgoing, problem.outgoing_links, problem.src, problem.dst, routing.ranks
    width = problem.class_capacity[problem.link_class] / problem.scale
    plans: list[DispatchPlan] = []
    limit = bound.time
    for _ in range(_LIMITS):
        rows = routing.source[shard], offsets, targets, hi - lo
        grown = native.copy_trees(*network, *rows, float(limit) * width, _ROUNDS)
        row, sender, receiver, depth, ends, links = grown
        edges = Edges(shard[row], lo[row], hi[row], sender, receiver, depth)
        routes = Routes(ends, problem.link_ids[links])
        plans.append(DispatchPlan(topology, routing, edges, routes, np.arange(len(row)), bound, "trees"))
        best = min(plan.time for plan in plans)
        if best <= bound.time * (1 + _CLOSE):
            break
        limit = (limit + best) / 2
    return plans
