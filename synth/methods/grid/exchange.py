"""Exchanges of the whole vector on a grid (fewest steps, most bytes), and the plain and mirrored subcollectives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from chorale.synth.collective import STANDARD, Collective, CollectiveName, require_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.lines import LineReduceScatter, Positions, Turn, round_robin
from chorale.synth.methods.grid.reduce_scatter import GridReduceScatter, ReduceToRoot, full_vector_sends, outer_sum
from chorale.synth.methods.grid.subcollective import (
    InSequence,
    Piece,
    ShardSends,
    StepMessages,
    SubCollective,
    TimeReversed,
)


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeRounds:
    """The rounds of one line: the largest power of two of them exchange, the others are folded onto them.

    active: the positions that exchange
    folded: the others; `onto[i]` takes the vector of `folded[i]` before and hands it the sum afterwards
    peers:  `peers[s][i]` is the position with which `active[i]` exchanges in round s
    """

    size: int
    active: Positions
    folded: Positions
    onto: Positions
    peers: tuple[Positions, ...]

    @staticmethod
    def of(size: int, peers: Sequence[Positions]) -> ExchangeRounds:
        """Return the rounds in which positions 0 to 2^k - 1 of `size` exchange with `peers`."""
        active = np.arange(1 << len(peers))
        folded = np.arange(len(active), size)
        return ExchangeRounds(size, active, folded, folded - len(active), tuple(peers))

    def mirrored(self) -> ExchangeRounds:
        """Return the rounds in which position -a modulo size does what a does here."""
        active, folded, onto = (-part % self.size for part in (self.active, self.folded, self.onto))
        return ExchangeRounds(self.size, active, folded, onto, tuple(-peer % self.size for peer in self.peers))


@dataclass(frozen=True, slots=True)
class Exchange:
    """An allreduce in which every message holds the whole vector of the subcollective.

    Dimensions that are no power of two are folded one after the other, then all lines exchange in the order of
    `turns`, then the folded ranks are given the result. The latency-optimal algorithms of the Swing paper
    (sections 2.3.2 and 3.1.2) on sizes that are powers of two.
    """

    lines: tuple[ExchangeRounds, ...]
    turns: tuple[Turn | None, ...]

    @property
    def step_count(self) -> int:
        return 2 * len(self._folds) + len(self.turns)

    def reduces(self, step: int) -> bool:
        return step < len(self._folds) + len(self.turns)

    def piece(self, step: int) -> Piece:
        return Piece()

    def messages(self, step: int) -> StepMessages:
        folds = self._folds
        number = step - len(folds)
        if number < 0:
            src, dst = self._fold(folds[step])
        elif number < len(self.turns):
            src, dst = self._round(self.turns[number])
        else:
            dst, src = self._fold(folds[len(self.turns) - 1 - number])
        return StepMessages(src, dst, np.full(len(src), self._ranks, dtype=np.int64))

    def shard_sends(self, step: int) -> ShardSends:
        return full_vector_sends(self.messages(step), self._ranks)

    def signature(self, step: int) -> Hashable:
        return "exchange", step

    @property
    def _ranks(self) -> int:
        return prod(line.size for line in self.lines)

    @property
    def _folds(self) -> list[int]:
        return [axis for axis, line in enumerate(self.lines) if len(line.folded)]

    def _fold(self, axis: int) -> tuple[Positions, Positions]:
        """Return (ranks that are folded along `axis`, onto which): earlier dimensions are folded already."""
        line = self.lines[axis]
        others = [line.active if number < axis else np.arange(line.size) for number, line in enumerate(self.lines)]
        return self._ranks_at(axis, line.folded, others), self._ranks_at(axis, line.onto, others)

    def _round(self, turn: Turn | None) -> tuple[Positions, Positions]:
        if turn is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        others = [line.active for line in self.lines]
        line = self.lines[turn.axis]
        peers = line.peers[turn.number]
        return self._ranks_at(turn.axis, line.active, others), self._ranks_at(turn.axis, peers, others)

    def _ranks_at(self, axis: int, positions: Positions, others: list[Positions]) -> Positions:
        parts = [positions if number == axis else other for number, other in enumerate(others)]
        strides = [prod(line.size for line in self.lines[number + 1 :]) for number in range(len(parts))]
        return outer_sum(part * stride for part, stride in zip(parts, strides, strict=True))


LineT = TypeVar("LineT", LineReduceScatter, ExchangeRounds)

Order = Callable[[Sequence[int], int], list[Turn | None]]
"""From the number of steps of each dimension and the dimension to begin with to the order of all steps."""


def reduce_scatters(lines: Sequence[LineReduceScatter], order: Order, all_ports: bool) -> list[GridReduceScatter]:
    """Return the collectives that run side by side (Swing paper, section 4.1).

    With `all_ports` one begins in each dimension, and each has a mirror image, which goes the other way around; a
    grid whose sizes are all 2 has no other way around. Else there is the one that begins in the first dimension.
    """
    counts = [len(line.steps) for line in lines]
    return [
        GridReduceScatter(tuple(port_lines), tuple(order(counts, first)))
        for first, port_lines in _beginnings(lines, all_ports)
    ]


def vector_exchanges(lines: Sequence[ExchangeRounds], all_ports: bool) -> list[Exchange]:
    """Return the exchanges of whole vectors that run side by side, like `reduce_scatters`."""
    counts = [len(line.peers) for line in lines]
    return [
        Exchange(tuple(port_lines), tuple(round_robin(counts, first)))
        for first, port_lines in _beginnings(lines, all_ports)
    ]


def _beginnings(lines: Sequence[LineT], all_ports: bool) -> Iterator[tuple[int, Sequence[LineT]]]:
    """Yield the dimension that each subcollective begins in, and its lines: plain, then mirrored."""
    mirrored = [line.mirrored() for line in lines]
    for first in range(len(lines) if all_ports else 1):
        yield first, lines
        if all_ports and any(line.size > 2 for line in lines):
            yield first, mirrored


def subcollective_for(scatter: GridReduceScatter, collective: Collective, method: str) -> SubCollective:
    """Return the subcollective that makes `collective` from a reduce_scatter.

    allgather is the reduce_scatter backwards, allreduce one after the other, reduce the tree of the root's shard with
    the whole vector, broadcast the same tree backwards. Raises InvalidInput for alltoall.
    """
    if collective.root is not None:
        tree = ReduceToRoot(scatter, collective.root)
        return tree if collective.reduces else TimeReversed(tree)
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return scatter
    if collective.name == CollectiveName.ALLGATHER:
        return TimeReversed(scatter)
    require_collective(method, collective, [name for name in STANDARD if name != CollectiveName.ALLTOALL])
    return InSequence(scatter, TimeReversed(scatter))


def require_allreduce(collective: Collective, method: str) -> None:
    """Raise InvalidInput unless `collective` is allreduce."""
    if collective.name != CollectiveName.ALLREDUCE:
        raise InvalidInput(f"{method} makes allreduce, broadcast or reduce", collective.name.value, "choose allreduce")
