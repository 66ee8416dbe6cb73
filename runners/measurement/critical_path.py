"""Explains an execution's time by its critical path: the instructions that determined when the last rank ended."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from chorale.runners.api.base import ExecutionTrace, StepSpan
from chorale.synth.programs.program import Program


class Cause(StrEnum):
    """How time on the critical path was spent."""

    START = "start skew"  # the rank began late
    LINK = "link"  # bytes were on their way
    BUFFER = "full buffer"  # a message could not leave: its connection had no room
    PROCESSOR = "processor"  # a rank had everything it needed but had not started yet


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A segment of the critical path on `rank`. peer: the sender if the rank received a message, or else None"""

    cause: Cause
    rank: int
    peer: int | None
    block: int
    step: int
    begin_s: float
    end_s: float

    @property
    def time_s(self) -> float:
        return self.end_s - self.begin_s


_Key = tuple[int, int, int, int, int]  # rank, block, step, part, piece


class CriticalPath:
    """The chain of instructions from the common start to the last end; O(instructions) to build.

    The chain is followed backwards. A receiving step leads to its sender if the receiver was ready and waiting during
    at least half of the message's travel time. Any other step leads to the step that ended last among its waits and
    the previous step of its block. The path shows where the time went in this execution, not how much faster it would
    be if a step were faster.
    """

    def __init__(self, program: Program, trace: ExecutionTrace) -> None:
        self._program = program
        self._trace = trace
        self._spans: dict[_Key, StepSpan] = {
            (rank, span.block, span.step, span.part, span.piece): span
            for rank, rank_trace in enumerate(trace.ranks)
            for span in rank_trace.steps
        }
        # Receiving step -> sending step of every message; messages on a connection arrive in order.
        self._senders: dict[_Key, _Key] = {}
        sent: dict[tuple[int, int, int], list[_Key]] = {}
        received: dict[tuple[int, int, int], list[_Key]] = {}
        for key in sorted(self._spans, key=lambda one: (one[0], one[1], one[3], one[2], one[4])):
            rank, number, step, _, _ = key
            block = program.ranks[rank].blocks[number]
            op = block.instructions[step].op
            if op.sends and block.send_peer is not None:
                sent.setdefault((rank, block.send_peer, block.channel), []).append(key)
            if op.receives and block.recv_peer is not None:
                received.setdefault((block.recv_peer, rank, block.channel), []).append(key)
        for connection, receivers in received.items():
            self._senders.update(zip(receivers, sent.get(connection, []), strict=False))

    def segments(self) -> tuple[PathSegment, ...]:
        """Return the path from the common start to the last end, in order; empty without a trace."""
        path: list[PathSegment] = []
        key = max(self._spans, key=lambda one: self._spans[one].end_s, default=None)
        until_s = 0.0 if key is None else self._spans[key].end_s
        while key is not None:
            sender = self._late_sender(key, until_s)
            begun = [one for one in self._local_before(key) if self._spans[one].ready_s < until_s]
            latest = max(begun, key=lambda one: self._spans[one].end_s, default=None)
            before = latest if sender is None else sender
            if sender is None:
                latest_first = self._own_segments(key, before, until_s)
            else:  # a message's travel time since its first byte left
                way = PathSegment(Cause.LINK, key[0], sender[0], key[1], key[2], self._left_s(sender), until_s)
                latest_first = iter((way,))
            path.extend(one for one in latest_first if one.time_s > 0)
            until_s = min([until_s, *(one.begin_s for one in path[-1:])])
            key = before
        return tuple(reversed(path))

    def _own_segments(self, key: _Key, before: _Key | None, until_s: float) -> Iterator[PathSegment]:
        """Yield the rank's own segments since the end of `before`, latest first."""
        rank, block, step, _, _ = key
        span, op = self._spans[key], self._program.ranks[rank].blocks[block].instructions[step].op
        start_s = min(max(self._trace.ranks[rank].start_s, 0.0), until_s)
        since_s = start_s if before is None else min(self._spans[before].end_s, until_s)
        ready_s = min(max(span.ready_s, since_s), until_s)
        moved_s = min(max(span.start_s, ready_s), until_s) if op.sends else ready_s
        moving = Cause.LINK if op.sends or op.receives else Cause.PROCESSOR
        yield PathSegment(moving, rank, None, block, step, moved_s, until_s)
        yield PathSegment(Cause.BUFFER, rank, None, block, step, ready_s, moved_s)
        yield PathSegment(Cause.PROCESSOR, rank, None, block, step, since_s, ready_s)
        if before is None:
            yield PathSegment(Cause.START, rank, None, block, step, 0.0, start_s)

    def _late_sender(self, key: _Key, until_s: float) -> _Key | None:
        """Return the step that sent the message for which `key` waited; None if it did not wait, or only briefly."""
        sender = self._senders.get(key)
        if sender is None:
            return None
        left_s, ready_s = self._left_s(sender), self._spans[key].ready_s
        is_late = until_s - ready_s >= (until_s - left_s) / 2
        return sender if left_s < until_s and is_late else None

    def _left_s(self, key: _Key) -> float:
        return self._spans[key].start_s or self._spans[key].ready_s

    def _local_before(self, key: _Key) -> Iterator[_Key]:
        rank, block, step, part, piece = key
        steps = self._program.ranks[rank].blocks[block].instructions
        earlier = (
            (rank, block, step, part, piece - 1),
            (rank, block, step - 1, part, self._last_piece(rank, block, step - 1, part)),
            (rank, block, len(steps) - 1, part - 1, self._last_piece(rank, block, len(steps) - 1, part - 1)),
        )
        yield from (one for one in earlier if one in self._spans)
        for wait in steps[step].waits:
            other = (rank, wait.block, wait.step, part, self._last_piece(rank, wait.block, wait.step, part))
            if other in self._spans:
                yield other

    def _last_piece(self, rank: int, block: int, step: int, part: int) -> int:
        piece = 0
        while (rank, block, step, part, piece + 1) in self._spans:
            piece += 1
        return piece


def time_by_cause(segments: Sequence[PathSegment]) -> dict[Cause, float]:
    """Return the seconds of a critical path by cause; causes that do not occur have 0."""
    return {cause: sum(one.time_s for one in segments if one.cause is cause) for cause in Cause}
