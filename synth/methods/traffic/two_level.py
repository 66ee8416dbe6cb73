"""Plans of traffic over boxes with rails in closed form: NICs are balanced between any two boxes, then inside them.

If NICs limit, filling all NICs of a box to the same level meets the bound of the cut around it. Ranks keep what they
can on their own NICs, so that little data crosses the box twice. If the lane of a rank limits, a larger part of what it
sends or receives uses its own NIC, as much as the bound leaves room for.
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
_CLOSE = Fraction(1, 1000)


class Pieces(NamedTuple):
    """Pieces of traffic: piece i sends `amount` from source to target over the NICs of sender and receiver.

    sender, receiver: -1 within a box
    """

    source: Ranks
    target: Ranks
    sender: Ranks
    receiver: Ranks
    amount: Amounts


@dataclass(frozen=True, slots=True, eq=False)
class RailPlan(TrafficPlan):
    """A plan over boxes with rails.

    pieces: which chunks use which NICs, in any order
    """

    fabric: RailFabric
    pieces: Pieces

    def ordered(self) -> tuple[Pieces, Amounts]:
        """Return the pieces sorted by pair, and the first chunk of its pair in each piece."""
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
    """Return a plan that splits `matrix` in the proportions of `plan`; new pairs take the direct path. O(ranks^2)."""
    fabric, counts = plan.fabric, ChunkCounts(matrix.amounts, Fraction(1))
    pieces, lo = plan.ordered()
    before, now = (amounts[pieces.source, pieces.target] for amounts in (plan.chunks.counts, matrix.amounts))
    first, last = (np.rint(part / before * now).astype(np.int64) for part in (lo, lo + pieces.amount))
    new = np.where(plan.chunks.counts == 0, matrix.amounts, 0)
    parts, direct = pieces._replace(amount=last - first), _pieces_over(new, *fabric.usual["direct"])
    columns: Any = zip(parts, direct, strict=True)
    split = Pieces(*map(np.concatenate, columns))
    loads = fabric.no_loads()
    native.add_piece_loads(*split, loads)
    time = fabric.time(loads)
    return RailPlan(fabric.topology, matrix, counts, time, time, cut_bound(fabric, matrix), plan.method, fabric, split)


def cut_bound(fabric: RailFabric, matrix: TrafficMatrix) -> PriceBound:
    """Return the bound by cuts around ranks and boxes. O(ranks^2)."""
    time, links = fabric.cuts(matrix.sent)
    prices = np.zeros(len(fabric.topology.links), dtype=np.int64)
    prices[links] = 1
    return PriceBound(time, prices)


def plan_rails(fabric: RailFabric, matrix: TrafficMatrix, counts: ChunkCounts) -> RailPlan:
    """Return a plan that is at least as fast as what libraries do, with the bound by cuts around ranks and boxes.

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


def split_amounts(fabric: RailFabric, sent: Amounts, least: Fraction) -> Pieces:
    """Return `sent` in pieces over NICs that are balanced for a time of `least`; ranks use their own NICs first."""
    return _balanced(fabric, sent, least)[1]


def _balanced(fabric: RailFabric, sent: Amounts, least: Fraction) -> tuple[Fraction, Pieces]:
    """Return (time, pieces) of the best of a few splits. Each moves load away from lanes that were too busy before.

    The excess of a lane moves to the rank's own NIC if this NIC has room. Otherwise, the rank relays less data.
    """
    limit = float(least / fabric.scale)
    far = np.where(fabric.box[:, None] != fabric.box, sent, 0)
    ends = np.stack([far.sum(axis=1), far.sum(axis=0)])  # what ranks send to other boxes, and receive from them
    widths = fabric.nics.astype(np.float64)  # of NICs as they are filled: reduced for ranks that should relay less
    own = np.zeros_like(widths)  # the part of `ends` that must use the rank's own NIC
    best: tuple[Fraction, Pieces] | None = None
    for _ in range(_ROUNDS):
        pieces = Pieces(*native.split_over_rails(sent, fabric.members, widths, own))
        loads = fabric.no_loads()
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
    """Return float64[2, ranks]: the amount above the limit on the lanes out of each rank, and on those into it."""
    if fabric.has_switch:
        tables = fabric.tables(loads)
        return np.stack([np.maximum(tables[side] - limit * fabric.lanes[side], 0.0) for side in (0, 1)])
    lanes = np.maximum(loads.inside - limit * fabric.lanes, 0.0)
    into = np.empty(len(lanes))
    into[fabric.members] = lanes[fabric.members].sum(axis=1)
    return np.stack([lanes.sum(axis=1), into])
