"""Rings as ports: sums that go around a cycle of ranks, one way or both ways to meet half-way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.grid.port import InSequence, Piece, ShardSends, StepMessages, SubCollective, TimeReversed


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """A reduce_scatter along `order`: in step t position p hands on the sum of the shard of position p - 1 - t."""

    order: NDArray[np.int64]

    @property
    def step_count(self) -> int:
        return len(self.order) - 1

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        return Piece()

    def messages(self, step: int) -> StepMessages:
        return StepMessages(self.order, np.roll(self.order, -1), np.ones_like(self.order))

    def shard_sends(self, step: int) -> ShardSends:
        return ShardSends(self.order, np.roll(self.order, -1), np.roll(self.order, 1 + step))

    def signature(self, step: int) -> Hashable:
        return "ring"  # every step sends one shard over every hop


@dataclass(frozen=True, slots=True, eq=False)
class MeetingRing:
    """A reduce_scatter in which the sum for a position comes from `ahead` positions before it and `back` behind it.

    The time reversal of BFB on a ring: max(ahead, back) steps. Source: Zhao et al., "Efficient Direct-Connect
    Topologies for Collective Communications", appendix F.1.
    """

    order: NDArray[np.int64]
    ahead: int
    back: int

    @property
    def step_count(self) -> int:
        return max(self.ahead, self.back)

    def reduces(self, step: int) -> bool:
        return True

    def piece(self, step: int) -> Piece:
        return Piece()

    def messages(self, step: int) -> StepMessages:
        src, dst, _ = self.shard_sends(step)
        return StepMessages(src, dst, np.ones_like(src))

    def shard_sends(self, step: int) -> ShardSends:
        distance = self.step_count - step
        ways = [way for way, reach in ((1, self.ahead), (-1, self.back)) if distance <= reach]
        src = [np.roll(self.order, -way * distance) for way in ways]
        dst = [np.roll(self.order, -way * (distance - 1)) for way in ways]
        return ShardSends(np.concatenate(src), np.concatenate(dst), np.tile(self.order, len(ways)))

    def signature(self, step: int) -> Hashable:
        distance = self.step_count - step
        return distance <= self.ahead, distance <= self.back


def ring_subcollective(order: NDArray[np.int64], collective: Collective, method: str) -> SubCollective:
    """Return the port that makes `collective` around `order` in its direction only."""
    around = np.asarray(order, dtype=np.int64)
    gather = TimeReversed(Ring(around[::-1].copy()))
    return _of_parts(Ring(around), gather, collective, method)


def meeting_subcollective(
    order: NDArray[np.int64], ahead: int, back: int, collective: Collective, method: str
) -> SubCollective:
    """Return the port that makes `collective` around `order` in both directions, meeting half-way."""
    ring = MeetingRing(np.asarray(order, dtype=np.int64), ahead, back)
    return _of_parts(ring, TimeReversed(ring), collective, method)


def _of_parts(scatter: SubCollective, gather: SubCollective, collective: Collective, method: str) -> SubCollective:
    parts: dict[CollectiveName, SubCollective] = {
        CollectiveName.REDUCE_SCATTER: scatter,
        CollectiveName.ALLGATHER: gather,
        CollectiveName.ALLREDUCE: InSequence(scatter, gather),
    }
    if collective.name not in parts:
        known = "allgather, reduce_scatter or allreduce"
        raise InvalidInput(f"{method} makes {known}", collective.name.value, f"choose {known}")
    return parts[collective.name]
