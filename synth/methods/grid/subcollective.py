"""Subcollectives, which run side by side, each on its part of the data, and how they are combined."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]


class StepMessages(NamedTuple):
    """The messages of a step: `shards[i]` shards from `src[i]` to `dst[i]`, each pair once."""

    src: Ranks
    dst: Ranks
    shards: NDArray[np.int64]


class ShardSends(NamedTuple):
    """The shards of a step, one by one: `shard[i]` from `src[i]` to `dst[i]`."""

    src: Ranks
    dst: Ranks
    shard: NDArray[np.int64]


class Piece(NamedTuple):
    """Piece `number` out of `total` equal ones of the data of a subcollective."""

    number: int = 0
    total: int = 1


class SubCollective(Protocol):
    """A collective on its part of every shard."""

    @property
    def step_count(self) -> int:
        """The number of steps."""

    def reduces(self, step: int) -> bool:
        """Whether what is sent in `step` is added to what the receiver holds."""

    def piece(self, step: int) -> Piece:
        """Return which piece of its data is sent in `step`."""

    def messages(self, step: int) -> StepMessages:
        """Return the messages of `step`, without naming shards."""

    def shard_sends(self, step: int) -> ShardSends:
        """Return the shards in the messages of `step`."""

    def signature(self, step: int) -> Hashable:
        """Return a value that is equal for steps of equal messages (it may differ for some that are equal)."""


@dataclass(frozen=True, slots=True)
class TimeReversed:
    """`forward` backwards in time: what was summed up along a tree is copied down the same tree."""

    forward: SubCollective

    @property
    def step_count(self) -> int:
        return self.forward.step_count

    def reduces(self, step: int) -> bool:
        return False

    def piece(self, step: int) -> Piece:
        return self.forward.piece(self._forwards(step))

    def messages(self, step: int) -> StepMessages:
        src, dst, shards = self.forward.messages(self._forwards(step))
        return StepMessages(dst, src, shards)

    def shard_sends(self, step: int) -> ShardSends:
        src, dst, shard = self.forward.shard_sends(self._forwards(step))
        return ShardSends(dst, src, shard)

    def signature(self, step: int) -> Hashable:
        return "backwards", self.forward.signature(self._forwards(step))

    def _forwards(self, step: int) -> int:
        return self.forward.step_count - 1 - step


@dataclass(frozen=True, slots=True)
class InSequence:
    """`first`, and then `second`."""

    first: SubCollective
    second: SubCollective

    @property
    def step_count(self) -> int:
        return self.first.step_count + self.second.step_count

    def reduces(self, step: int) -> bool:
        part, number = self._part(step)
        return part.reduces(number)

    def piece(self, step: int) -> Piece:
        part, number = self._part(step)
        return part.piece(number)

    def messages(self, step: int) -> StepMessages:
        part, number = self._part(step)
        return part.messages(number)

    def shard_sends(self, step: int) -> ShardSends:
        part, number = self._part(step)
        return part.shard_sends(number)

    def signature(self, step: int) -> Hashable:
        part, number = self._part(step)
        return part.signature(number)

    def _part(self, step: int) -> tuple[SubCollective, int]:
        return (self.first, step) if step < self.first.step_count else (self.second, step - self.first.step_count)
