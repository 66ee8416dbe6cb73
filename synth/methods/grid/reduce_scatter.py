"""A reduce_scatter on a grid as the product of reduce_scatters along its lines; also its trees alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.grid.lines import LineReduceScatter, Turn
from chorale.synth.methods.grid.subcollective import Piece, ShardSends, StepMessages

Numbers = NDArray[np.int64]
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class GridReduceScatter:
    """Every line of dimension d runs `lines[d]`, in the order of `turns` (None: wait).

    A shard is a block in every dimension, those of its owner's coordinates. A rank holds a partial sum of it as
    long as its position holds the block in all dimensions; in a turn of dimension d it hands on what its line hands
    on there. So steps are products, and sums over them are cheap: O(N) per step, whatever the number of shards.
    """

    lines: tuple[LineReduceScatter, ...]
    turns: tuple[Turn | None, ...]

    @property
    def step_count(self) -> int:
        return len(self.turns)

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        turn = self.turns[step]
        return Piece() if turn is None else Piece(turn.piece, turn.pieces)

    def messages(self, step: int) -> StepMessages:
        turn = self.turns[step]
        if turn is None:
            return StepMessages(_NOTHING, _NOTHING, _NOTHING)
        src, dst, shards = [], [], []
        for axis, line in enumerate(self.lines):
            if axis == turn.axis:
                here, there, blocks = line.steps[turn.number].pairs(line.size)
            else:
                blocks = self._held(axis, step).sum(axis=1)
                here = there = np.flatnonzero(blocks)
                blocks = blocks[here]
            src.append(here * self._stride(axis))
            dst.append(there * self._stride(axis))
            shards.append(blocks)
        return StepMessages(outer_sum(src), outer_sum(dst), _outer_product(shards))

    def shard_sends(self, step: int) -> ShardSends:
        turn = self.turns[step]
        if turn is None:
            return ShardSends(_NOTHING, _NOTHING, _NOTHING)
        src: list[Numbers] = []
        dst: list[Numbers] = []
        shard: list[Numbers] = []
        for axis, line in enumerate(self.lines):
            if axis == turn.axis:
                moved = line.steps[turn.number]
                here, there, block = moved.src, moved.dst, moved.block
            else:
                here, block = np.nonzero(self._held(axis, step))
                there = here
            for numbers, part in ((src, here), (dst, there), (shard, block)):
                numbers.append(part * self._stride(axis))
        return ShardSends(outer_sum(src), outer_sum(dst), outer_sum(shard))

    def signature(self, step: int) -> Hashable:
        turn = self.turns[step]
        if turn is None:
            return None
        line = self.lines[turn.axis]
        moved = b"".join(part.tobytes() for part in line.steps[turn.number].pairs(line.size))
        others = (self._held(axis, step).sum(axis=1).tobytes() for axis in range(len(self.lines)) if axis != turn.axis)
        return turn.axis, turn.pieces, moved, *others

    def _held(self, axis: int, step: int) -> NDArray[np.bool_]:
        done = (turn.number + 1 for turn in self.turns[:step] if turn is not None and turn.axis == axis)
        return self.lines[axis].held(max(done, default=0))

    def _stride(self, axis: int) -> int:
        return prod(line.size for line in self.lines[axis + 1 :])


@dataclass(frozen=True, slots=True)
class ReduceToRoot:
    """A reduce to `root`: every rank sends the whole vector where it hands on the shard of `root` in `scatter`."""

    scatter: GridReduceScatter
    root: int

    @property
    def step_count(self) -> int:
        return self.scatter.step_count

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        return self.scatter.piece(step)

    def messages(self, step: int) -> StepMessages:
        src, dst, shard = self.scatter.shard_sends(step)
        of_root = shard == self.root
        count = np.full(int(of_root.sum()), self._ranks, dtype=np.int64)
        return StepMessages(src[of_root], dst[of_root], count)

    def shard_sends(self, step: int) -> ShardSends:
        return full_vector_sends(self.messages(step), self._ranks)

    def signature(self, step: int) -> Hashable:
        return "tree", step, self.root

    @property
    def _ranks(self) -> int:
        return prod(line.size for line in self.scatter.lines)


def full_vector_sends(messages: StepMessages, ranks: int) -> ShardSends:
    """Return the cells of messages that hold every shard."""
    shard = np.tile(np.arange(ranks), len(messages.src))
    return ShardSends(np.repeat(messages.src, ranks), np.repeat(messages.dst, ranks), shard)


def outer_sum(parts: Iterable[Numbers]) -> Numbers:
    """Return all sums of one number of each part, the last part fastest."""
    result = np.zeros(1, dtype=np.int64)
    for part in parts:
        result = np.add.outer(result, part).ravel()
    return result


def _outer_product(parts: Iterable[Numbers]) -> Numbers:
    result = np.ones(1, dtype=np.int64)
    for part in parts:
        result = np.multiply.outer(result, part).ravel()
    return result
