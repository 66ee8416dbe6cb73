"""What travels in each step of a schedule: over which channel between which ranks, in chunks of the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from synth.lowering.options import LoweringOptions
from synth.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Message:
    """Chunks `first` to `end - 1` of the vector go from `sender` to `receiver` over `channel`."""

    sender: int
    receiver: int
    channel: int
    first: int
    end: int
    reduces: bool


Interval = tuple[int, int, bool]
"""First chunk, end, reduces."""


@dataclass(frozen=True, slots=True)
class ChunkNumbering:
    """Chunks of a program: those of a shard follow one another, and in it those of an instance."""

    chunks_per_shard: int
    instances: int

    def of(self, shard: int, instance: int, chunk: int) -> int:
        """Return the chunk of the vector that is `chunk` of `shard` in the copy `instance` of the schedule."""
        return (shard * self.instances + instance) * self.chunks_per_shard + chunk


def messages_by_step(schedule: Schedule, options: LoweringOptions) -> list[list[Message]]:
    """Return the messages of every step, in the order of (sender, receiver, parallel link, instance, channel, chunk).

    Channels are numbered densely over what is used. A transfer over a route of several links is a message
    between its ends. O(rows * log(rows) + messages).
    """
    steps: list[list[Message]] = [[] for _ in range(schedule.steps)]
    spread = _Spread(schedule, options)
    for (step, sender, receiver, parallel), rows in groupby(_sorted_rows(schedule), key=lambda row: row[:4]):
        intervals = [(shard, low, high, bool(reduces)) for *_, shard, low, high, reduces in rows]
        steps[step].extend(spread.messages(step, (sender, receiver, parallel), intervals))
    used = sorted({message.channel for messages in steps for message in messages})
    dense = {channel: index for index, channel in enumerate(used)}
    return [[replace(message, channel=dense[message.channel]) for message in messages] for messages in steps]


def _sorted_rows(schedule: Schedule) -> list[list[int]]:
    transfers = schedule.transfers
    parallel = _parallel_index(schedule)[transfers.route]
    of_message = (transfers.step, schedule.src, schedule.dst, parallel)
    columns = (*of_message, transfers.shard, transfers.lo, transfers.hi, transfers.reduce)
    order = np.lexsort((transfers.lo, transfers.shard, *reversed(of_message)))
    rows: list[list[int]] = np.column_stack([column[order].astype(np.int64) for column in columns]).tolist()
    return rows


def _parallel_index(schedule: Schedule) -> NDArray[np.int32]:
    """Return, per route, which of several links between two ranks it is; 0 for routes of more than one link."""
    routes = schedule.routes
    single = np.diff(routes.offsets) == 1
    of_first_link = schedule.topology.links.parallel_index()[routes.link_ids[routes.offsets[:-1]]]
    return np.where(single, of_first_link, 0).astype(np.int32)


class _Spread:
    """Distributes what a connection carries in a step over the channels of every instance."""

    def __init__(self, schedule: Schedule, options: LoweringOptions) -> None:
        self._numbering = ChunkNumbering(schedule.chunks_per_shard, options.instances)
        self._options = options
        self._parallel_links = 1 + int(_parallel_index(schedule).max(initial=0))

    def messages(
        self, step: int, link: tuple[int, int, int], rows: list[tuple[int, int, int, bool]]
    ) -> Iterator[Message]:
        """Yield the messages of one (step, connection); `rows` holds (shard, low, high, reduces)."""
        sender, receiver, parallel = link
        channels = self._options.channels
        for instance in range(self._options.instances):
            intervals = [
                (self._numbering.of(shard, instance, low), self._numbering.of(shard, instance, high), reduces)
                for shard, low, high, reduces in rows
            ]
            for group, part in enumerate(_nearly_equal_parts(intervals, channels)):
                # Turning with the step evens out the groups that are one chunk longer than others.
                slot = instance * channels + (group + step) % channels
                channel = slot * self._parallel_links + parallel
                for first, end, reduces in part:
                    yield Message(sender, receiver, channel, first, end, reduces)


def _nearly_equal_parts(intervals: list[Interval], parts: int) -> Iterator[list[Interval]]:
    """Cut `intervals`, in order, into `parts` lists whose numbers of chunks differ by at most one."""
    total = sum(end - first for first, end, _ in intervals)
    begun = 0
    spans = []
    for first, end, reduces in intervals:
        spans.append((begun, first, end, reduces))
        begun += end - first
    for part in range(parts):
        low, high = total * part // parts, total * (part + 1) // parts
        yield [
            (first + max(0, low - start), min(end, first + high - start), reduces)
            for start, first, end, reduces in spans
            if start < high and start + end - first > low
        ]
