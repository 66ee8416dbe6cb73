"""Plans traffic over boxes with rails in closed form: balances NICs for each pair of boxes, then lanes inside boxes.

If NICs are the bottleneck, the bound of the cut around a box is reached if all NICs of the box have the same load.
Ranks send as much as they can over their own NICs, so that little data also has to use lanes. If a rank's lane is the
bottleneck, a larger part of its data uses its own NIC, up to the amount that the bound allows. If the result is not
close to the bound, parts of busy pieces move one by one to other paths, which may lead over other ranks or other boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.linear_program import commodities_of
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.alltoall.schedule import FlowPaths
from chorale.synth.methods.traffic.fabric import RailFabric, RailLoads, Ranks
from chorale.synth.methods.traffic.matrix import Amounts, ChunkCounts, TrafficMatrix
from chorale.synth.methods.traffic.plan import PriceBound, TrafficPlan, proven_time

_ROUNDS = 8
_LIMITS, _MOVES = 4, 30
"""Number of time limits that are tried, and number of rounds for each limit in which data move to other paths."""
_CLOSE = Fraction(1, 500)
_WEAK = Fraction(1, 100)
_MOST_CELLS = 2**17
"""Maximum of ranks * links for which a bound from prices is computed if the gap is above `_WEAK`."""


class Pieces(NamedTuple):
    """Pieces of traffic: piece i sends `amount[i]` from source to target over the sender's and the receiver's NIC.

    A piece within a box takes one of four paths, depending on `sender` and `receiver`:
    - both are -1: over lanes only
    - both are the same rank: over lanes to and from this rank, which relays the data
    - they are source and target, whose NICs share a switch: over these two NICs
    - they are the ranks of another box at the same places as source and target: over these two relays and four NICs
    """

    source: Ranks
    target: Ranks
    sender: Ranks
    receiver: Ranks
    amount: Amounts


@dataclass(frozen=True, slots=True, eq=False)
class RailPlan(TrafficPlan):
    """A plan over boxes with rails (`fabric`).

    pieces: the data of each pair of ranks, divided into pieces; their `amount` is a number of chunks
    """

    fabric: RailFabric
    pieces: Pieces

    def paths(self) -> FlowPaths:
        return paths_of(self.fabric, self.pieces)


def _ordered(fabric: RailFabric, pieces: Pieces) -> tuple[Pieces, Amounts]:
    """Return (pieces sorted by pair of ranks, index of each piece's first chunk among the chunks of its pair)."""
    order = np.lexsort((pieces.target, pieces.source))
    columns: list[Any] = [column[order] for column in pieces]
    pieces = Pieces(*columns)
    pair = pieces.source.astype(np.int64) * len(fabric.place) + pieces.target
    before = np.cumsum(pieces.amount) - pieces.amount
    first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))
    return pieces, before - np.repeat(before[first], np.diff(np.append(first, len(pair))))


def paths_of(fabric: RailFabric, pieces: Pieces) -> FlowPaths:
    """Return the paths of all pieces over the links of the network, sorted by pair."""
    pieces, lo = _ordered(fabric, pieces)
    rows = zip(*(column.tolist() for column in pieces[:4]), strict=True)
    paths = [fabric.path(*row) for row in rows]
    offsets = np.concatenate([[0], np.cumsum([len(path) for path in paths])])
    links = np.array([link for path in paths for link in path], dtype=np.int32)
    ends = pieces.source.astype(np.int64), pieces.target.astype(np.int64)
    return FlowPaths(*ends, lo, pieces.amount, offsets, links)


def rails_along(plan: RailPlan, matrix: TrafficMatrix) -> RailPlan:
    """Return a plan that splits `matrix` as `plan` does. Pairs without data in `plan` take direct paths. O(ranks^2)."""
    fabric, counts = plan.fabric, ChunkCounts(matrix.amounts, Fraction(1))
    pieces, lo = _ordered(fabric, plan.pieces)
    before, now = (amounts[pieces.source, pieces.target] for amounts in (plan.chunks.counts, matrix.amounts))
    first, last = (np.rint(part / before * now).astype(np.int64) for part in (lo, lo + pieces.amount))
    new = np.where(plan.chunks.counts == 0, matrix.amounts, 0)
    some = last > first
    parts, direct = pieces._replace(amount=last - first), pieces_over(new, *fabric.usual["direct"])
    columns: Any = zip((column[some] for column in parts), direct, strict=True)
    split = Pieces(*map(np.concatenate, columns))
    time = fabric.time(fabric.loads_of(*split))
    return RailPlan(fabric.topology, matrix, counts, time, time, cut_bound(fabric, matrix), plan.method, fabric, split)


def cut_bound(fabric: RailFabric, matrix: TrafficMatrix) -> PriceBound:
    """Return the bound from cuts around ranks and boxes. O(ranks^2)."""
    time, links = fabric.cuts(matrix.sent)
    prices = np.zeros(len(fabric.topology.links), dtype=np.int64)
    prices[links if time else slice(None)] = 1
    return PriceBound(time, prices)


def plan_rails(fabric: RailFabric, matrix: TrafficMatrix, counts: ChunkCounts) -> RailPlan:
    """Return a plan that is at least as fast as libraries' paths, with the bound from cuts around ranks and boxes.

    Deterministic. Takes a few rounds of O(ranks^2). If the plan is more than 1 % above the bound, link prices may
    prove a better bound.
    """
    bound, sent = cut_bound(fabric, matrix), counts.counts
    best, method = None, ""
    for name, relays in fabric.usual.items():
        time = fabric.time(fabric.loads_of(*pieces_over(sent, *relays)))
        if best is None or time < best:
            best, method = time, name
    assert best is not None
    least, pieces = bound.time / counts.chunk, None
    if best > least:
        reached, split = relieved(fabric, balanced(fabric, sent, least)[1], least)
        if reached < best:
            best, pieces, method = reached, split, "two level"
    if pieces is None:
        pieces = pieces_over(sent, *fabric.usual[method])
    took = best * counts.chunk
    if took > bound.time * (1 + _WEAK) and len(sent) * len(fabric.topology.links) <= _MOST_CELLS:
        # Give prices to lanes and NICs that stay busy for longer than a limit just below the reached time.
        topology, limit = fabric.topology, best * (1 - 2 * _WEAK)
        loads = fabric.tables(fabric.loads_of(*_relieved(fabric, pieces, limit)))
        prices = np.zeros(len(topology.links))
        links = [*fabric.lane_links.reshape(len(loads) - 2 * (fabric.boxes > 1), -1), *fabric.narrowest]
        widths = [*fabric.lanes.reshape(len(links) - len(fabric.narrowest), -1), *fabric.nics]
        for ids, load, width in zip(links, loads, widths, strict=False):
            np.maximum.at(prices, ids, load / np.maximum(width * float(limit / fabric.scale), 1e-9) - 1)
        problem = commodities_of(topology, symmetric=False)
        of_links, bounds = prices[problem.link_ids], []
        for whole in (integer_prices(of_links), (of_links > of_links.max() / 2).astype(np.int64)):
            spread = np.zeros(len(prices), dtype=np.int64)
            spread[problem.link_ids] = whole
            bounds.append(PriceBound(proven_time(problem, matrix.sent, whole), spread))
        bound = max(bound, max(bounds, key=lambda each: each.time), key=lambda each: each.time)
    return RailPlan(fabric.topology, matrix, counts, took, took, bound, method.replace("_", " "), fabric, pieces)


def pieces_over(sent: Amounts, sender: Ranks, receiver: Ranks) -> Pieces:
    """Return `sent` as one piece per pair of ranks, which uses the NICs of `sender` and `receiver` (see `Relays`)."""
    away = sent > 0
    np.fill_diagonal(away, False)
    source, target = np.nonzero(away)
    return Pieces(source.astype(np.int32), target.astype(np.int32), sender[away], receiver[away], sent[away])


def relieved(fabric: RailFabric, pieces: Pieces, least: Fraction) -> tuple[Fraction, Pieces]:
    """Move parts of busy pieces to other paths until the time is close to `least`; return (time, pieces)."""
    reached, limit = fabric.time(fabric.loads_of(*pieces)), least
    for _ in range(_LIMITS):
        if reached <= least * (1 + _CLOSE):
            break
        other = _relieved(fabric, pieces, limit)
        time = fabric.time(fabric.loads_of(*other))
        if time < reached:
            reached, pieces = time, other
        limit = (limit + reached) / 2
    return reached, pieces


def _relieved(fabric: RailFabric, pieces: Pieces, limit: Fraction) -> Pieces:
    """Return `pieces` after moving parts to other paths, so that lanes and NICs finish within `limit` if possible."""
    fields = fabric.members, fabric.place, fabric.rails, fabric.lanes, fabric.nics
    return Pieces(*native.relieved(*pieces, *fields, fabric.has_switch, float(limit / fabric.scale), _MOVES))


def balanced(
    fabric: RailFabric, sent: Amounts, least: Fraction, inside: Amounts | None = None, rounds: int = _ROUNDS
) -> tuple[Fraction, Pieces]:
    """Try splits of `sent` over NICs, each with less data on busy lanes than the last; return the best (time, pieces).

    A rank with a busy lane sends more data over its own NIC. If the NIC is busy too, it relays less data for others.

    least:  target time; the search stops close to it
    inside: int64[ranks, places], loads that the lanes already have
    """
    limit = float(least / fabric.scale)
    far = np.where(fabric.box[:, None] != fabric.box, sent, 0)
    ends = np.stack([far.sum(axis=1), far.sum(axis=0)])  # amounts that ranks send to and receive from other boxes
    widths = fabric.nics.astype(np.float64)  # bandwidths for the split, reduced for ranks that should relay less
    own = np.zeros_like(widths)  # fraction of `ends` that must use the rank's own NIC
    best: tuple[Fraction, Pieces] | None = None
    for _ in range(rounds):
        pieces = Pieces(*native.split_over_rails(sent, fabric.members, widths, own))
        loads = fabric.loads_of(*pieces, inside)
        time = fabric.time(loads)
        is_slow = best is not None and 2 * (time - least) > best[0] - least
        if best is None or time < best[0]:
            best = time, pieces
        excess = _excess(fabric, loads, limit)
        if best[0] <= least * (1 + _CLOSE) or is_slow or not excess.any():
            break
        moved = np.minimum(excess, np.maximum(limit * fabric.nics - own * ends, 0.0))
        own = np.minimum(own + moved / np.maximum(ends, 1), 1.0)
        relayed = np.maximum(np.stack([loads.into, loads.out]), 1)
        widths *= np.maximum(1 - (excess - moved) / relayed, 1e-6)[::-1]
    assert best is not None
    return best


def _excess(fabric: RailFabric, loads: RailLoads, limit: float) -> NDArray[np.float64]:
    """Return float64[2, ranks]: data that the lanes out of and into each rank cannot carry in the time `limit`."""
    if fabric.has_switch:
        tables = fabric.tables(loads)
        return np.stack([np.maximum(tables[side] - limit * fabric.lanes[side], 0.0) for side in (0, 1)])
    lanes = np.maximum(loads.inside - limit * fabric.lanes, 0.0)
    into = np.empty(len(lanes))
    into[fabric.members] = lanes[fabric.members].sum(axis=1)
    return np.stack([lanes.sum(axis=1), into])
