"""Plans of traffic over boxes with rails, in closed form: NICs are balanced between any two boxes, then inside them.

Where NICs limit, equal levels of all NICs of a box meet the bound of the cut around it. Ranks keep what they can on
their own NICs, so that little crosses the box twice. Where the lane of a rank limits instead, a larger part of what it
sends or receives goes over its own NIC, as much as the bound leaves room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

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
    """Row i: `amount` from source to target, over the NICs of sender, -1 for what stays in a box, and receiver."""

    source: Ranks
    target: Ranks
    sender: Ranks
    receiver: Ranks
    amount: Amounts


@dataclass(frozen=True, slots=True, eq=False)
class RailPlan(TrafficPlan):
    """pieces: what goes over which NICs, in chunks, in any order."""

    fabric: RailFabric
    pieces: Pieces

    def ordered(self) -> tuple[Pieces, Amounts]:
        """Return the pieces by pair, and which part of its pair each begins with, in chunks."""
        order = np.lexsort((self.pieces.target, self.pieces.source))
        source, target, sender, receiver, amount = self.pieces
        pieces = Pieces(source[order], target[order], sender[order], receiver[order], amount[order])
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
    """Return a plan that splits the amounts of `matrix` as `plan` does; pairs that it lacks go directly. O(ranks^2)."""
    fabric, counts = plan.fabric, ChunkCounts(matrix.amounts, Fraction(1))
    pieces, lo = plan.ordered()
    before, now = (amounts[pieces.source, pieces.target] for amounts in (plan.chunks.counts, matrix.amounts))
    first, last = (np.rint(part / before * now).astype(np.int64) for part in (lo, lo + pieces.amount))
    lacking = np.where(plan.chunks.counts == 0, matrix.amounts, 0)
    direct = _pieces_over(lacking, *fabric.usual["direct"])
    parts = pieces._replace(amount=last - first)
    split = Pieces(
        np.append(parts.source, direct.source),
        np.append(parts.target, direct.target),
        np.append(parts.sender, direct.sender),
        np.append(parts.receiver, direct.receiver),
        np.append(parts.amount, direct.amount),
    )
    loads = fabric.no_loads()
    native.add_piece_loads(*split, loads)
    time = fabric.time(loads)
    return RailPlan(fabric.topology, matrix, counts, time, time, cut_bound(fabric, matrix), plan.method, fabric, split)


def cut_bound(fabric: RailFabric, matrix: TrafficMatrix) -> PriceBound:
    """Return the bound of cuts around ranks and boxes. O(ranks^2)."""
    time, links = fabric.cuts(matrix.sent)
    prices = np.zeros(len(fabric.topology.links), dtype=np.int64)
    prices[links] = 1
    return PriceBound(time, prices)


def plan_rails(fabric: RailFabric, matrix: TrafficMatrix, counts: ChunkCounts) -> RailPlan:
    """Return a plan that is no slower than what libraries do, and the bound of cuts around ranks and boxes. O(ranks^2).

    Deterministic; each of at most 8 rounds costs as much.
    """
    bound, sent = cut_bound(fabric, matrix), counts.counts
    names = {name: _time_over(fabric, sent, *relays) for name, relays in fabric.usual.items()}
    method = min(names, key=lambda name: names[name])
    best, pieces = names[method], None
    least = bound.time / counts.chunk
    if best > least:
        reached, split = _balanced(fabric, sent, least)
        if reached < best:
            best, pieces, method = reached, split, "two level"
    if pieces is None:
        pieces = _pieces_over(sent, *fabric.usual[method])
    took = best * counts.chunk
    return RailPlan(fabric.topology, matrix, counts, took, took, bound, method.replace("_", " "), fabric, pieces)


def _time_over(fabric: RailFabric, sent: Amounts, sender: Ranks, receiver: Ranks) -> Fraction:
    loads = fabric.no_loads()
    native.add_relayed_loads(sent, sender, receiver, loads)
    return fabric.time(loads)


def _pieces_over(sent: Amounts, sender: Ranks, receiver: Ranks) -> Pieces:
    away = sent > 0
    np.fill_diagonal(away, False)
    source, target = np.nonzero(away)
    columns = source.astype(np.int32), target.astype(np.int32), sender[away], receiver[away]
    return Pieces(*columns, sent[away])


def split_amounts(fabric: RailFabric, sent: Amounts, least: Fraction) -> Pieces:
    """Return `sent` in pieces over NICs that are balanced for a time of `least`, with ranks' own NICs first."""
    return _balanced(fabric, sent, least)[1]


def _balanced(fabric: RailFabric, sent: Amounts, least: Fraction) -> tuple[Fraction, Pieces]:
    """Return the best of a few splits, each with other levels of the NICs of ranks whose lanes were too busy."""
    far = np.where(fabric.box[:, None] != fabric.box, sent, 0)
    levels = _Levels.of(fabric, np.stack([far.sum(axis=1), far.sum(axis=0)]), float(least / fabric.scale))
    best: tuple[Fraction, Pieces] | None = None
    for _ in range(_ROUNDS):
        pieces = Pieces(*native.split_over_rails(sent, fabric.members, levels.widths, levels.own))
        loads = fabric.no_loads()
        native.add_piece_loads(*pieces, loads)
        time = fabric.time(loads)
        if best is None or time < best[0]:
            best = time, pieces
        if best[0] <= least * (1 + _CLOSE) or not levels.relieve(loads):
            break
    assert best is not None
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _Levels:
    """How busy NICs are to be, by what lanes have too much of. All are float64[2, ranks], for sending and receiving.

    far:    what ranks send to other boxes and receive from them;  least: the time to reach, for widths in whole units
    widths: of NICs, less where ranks had better not relay;  own: the part of `far` that must use the own NIC
    """

    fabric: RailFabric
    far: Amounts
    least: float
    widths: NDArray[np.float64]
    own: NDArray[np.float64]

    @staticmethod
    def of(fabric: RailFabric, far: Amounts, least: float) -> _Levels:
        return _Levels(fabric, far, least, fabric.nics.astype(np.float64), np.zeros(far.shape))

    def relieve(self, loads: RailLoads) -> bool:
        """Move what lanes have too much of to own NICs, as far as these have room, then let others relay instead."""
        excess = self._excess(loads)
        room = np.maximum(self.least * self.fabric.nics - self.own * self.far, 0.0)
        moved = np.minimum(excess, room)
        self.own[:] = np.minimum(self.own + moved / np.maximum(self.far, 1), 1.0)
        relayed = np.maximum(np.stack([loads.into, loads.out]), 1)
        self.widths[:] *= np.maximum(1 - (excess - moved) / relayed, 1e-6)[::-1]
        return bool(excess.any())

    def _excess(self, loads: RailLoads) -> NDArray[np.float64]:
        fabric, tables = self.fabric, self.fabric.tables(loads)
        if fabric.has_switch:
            return np.stack([np.maximum(tables[side] - self.least * fabric.lanes[side], 0.0) for side in (0, 1)])
        lanes = np.maximum(loads.inside - self.least * fabric.lanes, 0.0)
        into = np.empty(len(lanes))
        into[fabric.members] = lanes[fabric.members].sum(axis=1)
        return np.stack([lanes.sum(axis=1), into])
