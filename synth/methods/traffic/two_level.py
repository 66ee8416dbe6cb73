"""Plans traffic over boxes with rails in closed form: NICs are balanced between any two boxes, then lanes inside them.

If NICs are the bottleneck, filling all NICs of a box to the same level reaches the bound of the cut around the box.
Ranks send as much as they can over their own NICs, so that little data crosses the box twice. If a rank's lane is the
bottleneck, a larger part of its data uses its own NIC, up to the amount that the bound allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.schedule import FlowPaths
from chorale.synth.methods.traffic.fabric import RailFabric, RailLoads, Ranks
from chorale.synth.methods.traffic.matrix import Amounts, ChunkCounts, TrafficMatrix
from chorale.synth.methods.traffic.plan import PriceBound, TrafficPlan

_ROUNDS = 8
_LEVELS, _RISE, _MOVES = 40, 1.015, 3
"""Number of limits that are tried for lanes between ranks, their ratio, and how often data move at each limit."""
_CLOSE = Fraction(1, 1000)


class Pieces(NamedTuple):
    """Pieces of traffic: piece i sends `amount` from source to target over the sender's and the receiver's NIC.

    sender, receiver: within a box, both are -1 or the rank that relays
    """

    source: Ranks
    target: Ranks
    sender: Ranks
    receiver: Ranks
    amount: Amounts


@dataclass(frozen=True, slots=True, eq=False)
class RailPlan(TrafficPlan):
    """A plan over boxes with rails.

    pieces: chunks and the NICs that they use, in any order
    """

    fabric: RailFabric
    pieces: Pieces

    def ordered(self) -> tuple[Pieces, Amounts]:
        """Return the pieces sorted by pair, and the index of each piece's first chunk among the chunks of its pair."""
        order = np.lexsort((self.pieces.target, self.pieces.source))
        columns: list[Any] = [column[order] for column in self.pieces]
        pieces = Pieces(*columns)
        pair = pieces.source.astype(np.int64) * len(self.fabric.place) + pieces.target
        before = np.cumsum(pieces.amount) - pieces.amount
        first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))
        return pieces, before - np.repeat(before[first], np.diff(np.append(first, len(pair))))

    def paths(self) -> FlowPaths:
        pieces, lo = self.ordered()
        rows = zip(*(column.tolist() for column in pieces[:4]), strict=True)
        paths = [self.fabric.path(*row) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(path) for path in paths])])
        links = np.array([link for path in paths for link in path], dtype=np.int32)
        ends = pieces.source.astype(np.int64), pieces.target.astype(np.int64)
        return FlowPaths(*ends, lo, pieces.amount, offsets, links)


def rails_along(plan: RailPlan, matrix: TrafficMatrix) -> RailPlan:
    """Return a plan that splits `matrix` in the same ratios as `plan`; new pairs take the direct path. O(ranks^2)."""
    fabric, counts = plan.fabric, ChunkCounts(matrix.amounts, Fraction(1))
    pieces, lo = plan.ordered()
    before, now = (amounts[pieces.source, pieces.target] for amounts in (plan.chunks.counts, matrix.amounts))
    first, last = (np.rint(part / before * now).astype(np.int64) for part in (lo, lo + pieces.amount))
    new = np.where(plan.chunks.counts == 0, matrix.amounts, 0)
    some = last > first
    parts, direct = pieces._replace(amount=last - first), _pieces_over(new, *fabric.usual["direct"])
    columns: Any = zip((column[some] for column in parts), direct, strict=True)
    split = Pieces(*map(np.concatenate, columns))
    time = fabric.time(_loads_of(fabric, split))
    return RailPlan(fabric.topology, matrix, counts, time, time, cut_bound(fabric, matrix), plan.method, fabric, split)


def cut_bound(fabric: RailFabric, matrix: TrafficMatrix) -> PriceBound:
    """Return the bound from cuts around ranks and boxes. O(ranks^2)."""
    time, links = fabric.cuts(matrix.sent)
    prices = np.zeros(len(fabric.topology.links), dtype=np.int64)
    prices[links] = 1
    return PriceBound(time, prices)


def plan_rails(fabric: RailFabric, matrix: TrafficMatrix, counts: ChunkCounts) -> RailPlan:
    """Return a plan that is at least as fast as libraries, with the bound from cuts around ranks and boxes.

    Deterministic. At most 8 rounds of O(ranks^2).
    """
    bound, sent = cut_bound(fabric, matrix), counts.counts
    best, method = None, ""
    for name, relays in fabric.usual.items():
        loads = fabric.no_loads()
        native.add_relayed_loads(sent, *relays, loads)
        time = fabric.time(loads)
        if best is None or time < best:
            best, method = time, name
    assert best is not None
    least, pieces = bound.time / counts.chunk, None
    if best > least:
        reached, split = _balanced(fabric, sent, least)
        # Overloaded lanes may be relieved in the box, so also try to balance NICs without regard to lanes
        for rounds in (0, 1) if not fabric.has_switch else ():
            if reached > least * (1 + _CLOSE):
                other = _balanced(fabric, sent, least, rounds=rounds)[1] if rounds else split
                other = _relayed_inside(fabric, other, float(least))
                time = fabric.time(_loads_of(fabric, other))
                reached, split = (time, other) if time < reached else (reached, split)
        if reached < best:
            best, pieces, method = reached, split, "two level"
    if pieces is None:
        pieces = _pieces_over(sent, *fabric.usual[method])
    took = best * counts.chunk
    return RailPlan(fabric.topology, matrix, counts, took, took, bound, method.replace("_", " "), fabric, pieces)


def _pieces_over(sent: Amounts, sender: Ranks, receiver: Ranks) -> Pieces:
    away = sent > 0
    np.fill_diagonal(away, False)
    source, target = np.nonzero(away)
    return Pieces(source.astype(np.int32), target.astype(np.int32), sender[away], receiver[away], sent[away])


def _loads_of(fabric: RailFabric, pieces: Pieces) -> RailLoads:
    loads, relayed = fabric.no_loads(), (pieces.sender >= 0) & (pieces.sender == pieces.receiver)
    others: list[Any] = [column[~relayed] for column in pieces]
    native.add_piece_loads(*Pieces(*others), loads)
    source, target, relay, _, amount = (column[relayed] for column in pieces)
    np.add.at(loads.inside, (source, fabric.place[relay]), amount)
    np.add.at(loads.inside, (relay, fabric.place[target]), amount)
    return loads


def _relayed_inside(fabric: RailFabric, pieces: Pieces, least: float) -> Pieces:
    """Return `pieces`, with parts that stay in a box relayed over other ranks if their lanes are too busy.

    For an increasing limit on lane times, the excess moves to pairs of lanes that are below the limit. O(rounds * ranks
    * places^2).
    """
    members, place = fabric.members, fabric.place
    boxes, places = members.shape
    near = pieces.sender < 0
    source, target = pieces.source[near], pieces.target[near]
    direct = np.zeros((boxes, places, places))
    direct[fabric.box[source], place[source], place[target]] = pieces.amount[near]
    load = _loads_of(fabric, pieces).inside[members].astype(np.float64)
    width = fabric.lanes[members] / fabric.scale
    relayed = np.zeros((boxes, places, places, places))  # axes: box, from, over, to
    other = ~np.eye(places, dtype=np.bool_)
    may = (other[:, :, None] & other[None, :, :] & other[:, None, :]).astype(np.float64)
    for step in range(_LEVELS):
        limit = least * _RISE**step * width
        for _ in range(_MOVES):
            excess = np.minimum(np.maximum(load - limit, 0), direct)
            if not excess.any():
                break
            slack = np.maximum(limit - load, 0)
            room = np.minimum(slack[:, :, :, None], slack[:, None, :, :]) * may
            wanted = room * (excess / np.maximum(room.sum(axis=2), 1e-9)).clip(max=1)[:, :, None, :]
            first, second = wanted.sum(axis=3), wanted.sum(axis=1)
            fit = (slack / np.maximum(first + second, 1e-9)).clip(max=1)
            moved = wanted * np.minimum(fit[:, :, :, None], fit[:, None, :, :])
            relayed += moved
            direct -= moved.sum(axis=2)
            load += moved.sum(axis=3) + moved.sum(axis=1) - moved.sum(axis=2)
        else:
            continue
        break
    # To get whole units, the fraction that one relay loses is added to the next
    whole = np.diff(np.floor(np.cumsum(relayed, axis=2) + 1e-6), axis=2, prepend=0).astype(np.int64)
    box, begin, over, end = np.nonzero(whole)
    relay = members[box, over]
    columns = members[box, begin], members[box, end], relay, relay, whole[box, begin, over, end]
    stays = pieces.amount.copy()
    stays[near] -= whole.sum(axis=2)[fabric.box[source], place[source], place[target]]
    kept = stays > 0
    parts: Any = zip(pieces._replace(amount=stays), columns, strict=True)
    return Pieces(*(np.concatenate([column[kept], more]) for column, more in parts))


def split_amounts(fabric: RailFabric, sent: Amounts, least: Fraction, inside: Amounts) -> Pieces:
    """Return `sent` in pieces over NICs that are balanced for a time of `least`; ranks use their own NICs first.

    inside: int64[ranks, places], other loads on the lanes
    """
    return _balanced(fabric, sent, least, inside)[1]


def _balanced(
    fabric: RailFabric, sent: Amounts, least: Fraction, inside: Amounts | None = None, rounds: int = _ROUNDS
) -> tuple[Fraction, Pieces]:
    """Return (time, pieces) of the best of a few splits. Each split relieves lanes that were too busy in the previous.

    The excess of a lane moves to the rank's own NIC if this NIC has room. Otherwise, the rank relays less data.
    """
    limit = float(least / fabric.scale)
    far = np.where(fabric.box[:, None] != fabric.box, sent, 0)
    ends = np.stack([far.sum(axis=1), far.sum(axis=0)])  # amounts that ranks send to and receive from other boxes
    widths = fabric.nics.astype(np.float64)  # NIC bandwidths for filling, reduced if ranks should relay less
    own = np.zeros_like(widths)  # fraction of `ends` that must use the rank's own NIC
    best: tuple[Fraction, Pieces] | None = None
    for _ in range(rounds):
        pieces = Pieces(*native.split_over_rails(sent, fabric.members, widths, own))
        loads = fabric.no_loads(inside)
        native.add_piece_loads(*pieces, loads)
        time = fabric.time(loads)
        if best is None or time < best[0]:
            best = time, pieces
        excess = _excess(fabric, loads, limit)
        if best[0] <= least * (1 + _CLOSE) or not excess.any():
            break
        moved = np.minimum(excess, np.maximum(limit * fabric.nics - own * ends, 0.0))
        own = np.minimum(own + moved / np.maximum(ends, 1), 1.0)
        relayed = np.maximum(np.stack([loads.into, loads.out]), 1)
        widths *= np.maximum(1 - (excess - moved) / relayed, 1e-6)[::-1]
    assert best is not None
    return best


def _excess(fabric: RailFabric, loads: RailLoads, limit: float) -> NDArray[np.float64]:
    """Return float64[2, ranks]: by how much the lanes out of each rank, and into each rank, exceed the limit."""
    if fabric.has_switch:
        tables = fabric.tables(loads)
        return np.stack([np.maximum(tables[side] - limit * fabric.lanes[side], 0.0) for side in (0, 1)])
    lanes = np.maximum(loads.inside - limit * fabric.lanes, 0.0)
    into = np.empty(len(lanes))
    into[fabric.members] = lanes[fabric.members].sum(axis=1)
    return np.stack([lanes.sum(axis=1), into])
