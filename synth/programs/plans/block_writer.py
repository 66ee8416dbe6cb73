"""Writes the operations of one thread block, with a `nop` wherever its threads must wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chorale.synth.programs.memory import Layout
from chorale.synth.programs.plans.plan import (
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
    Action,
    Kind,
    Operand,
    Operation,
)


class BlockWriter:
    """Appends operations; `layout` is the memory of the rank.

    A `nop` comes between a wait and data, between data and a signal, and between data and data that meet in memory.
    Packets are waited for one by one, so that those in scratch need none.
    """

    def __init__(self, layout: Layout) -> None:
        self.operations: list[Operation] = []
        self._layout = layout
        self._heard = self._heard_by_several = False
        self._moved = False
        self._read: list[range] = []
        self._written: list[range] = []

    def wait(self, action: Action, channels: Sequence[int], kind: Kind = "memory") -> None:
        """Wait for a signal on each channel."""
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self.operations.append(Operation(action, channels=some, kind=kind))
            self._hear(len(some))

    def signal(self, action: Action, channels: Sequence[int], kind: Kind = "memory") -> None:
        """Signal, after all that was moved; each channel is up to one thread."""
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self._tell(len(some))
            self.operations.append(Operation(action, channels=some, kind=kind))

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Wait for each semaphore."""
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self.operations.append(Operation(Action.ACQUIRE, semaphores=some))
            self._hear(len(some))

    def release(self, semaphores: Sequence[int]) -> None:
        """Release semaphores, after all that was moved; each is up to one thread."""
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self._tell(len(some))
            self.operations.append(Operation(Action.RELEASE, semaphores=some))

    def move(self, action: Action, sources: Sequence[Operand], *targets: Operand) -> None:
        """Move or add data with all threads, after what was heard."""
        read = self._cells(sources, action.packets)
        written = self._cells(targets, action.packets)
        meets = any(_meet(mine, other) for mine in (*read, *written) for other in self._written)
        if self._heard or meets or any(_meet(mine, other) for mine in written for other in self._read):
            self.join()
        # A sum takes its operands and its target piece by piece: `put` has as many targets as sources.
        self.operations.append(Operation(action, tuple(sources), targets))
        self._moved = True
        self._read += read
        self._written += written

    def push(self, action: Action, source: Operand, target: Operand, port: int) -> None:
        """Let a port write to a peer. One thread tells it, so that all must be done with what it reads."""
        if self._heard or self._moved:
            self.join()
        self.operations.append(Operation(action, (source,), (target,), channels=(port,), kind="port"))

    def forward(self, packets: Operand, target: Operand, port: int) -> None:
        """Let a port send packets on, once all of them are there."""
        if self._heard:
            self.join()
        action = Action.READ_PUT_PACKETS
        self.operations.append(Operation(action, (packets,), (target,), channels=(port,), kind="port"))
        self._moved = True

    @contextmanager
    def repeated(self, part_bytes: int, chunks: int) -> Iterator[None]:
        """Let what is written inside be repeated for each part of so many chunks."""
        if self._heard or self._moved:
            self.join()
        before, self.operations = self.operations, []
        yield
        body, self.operations = tuple(self.operations), before
        if body:
            self.operations.append(Operation(Action.PIPELINE, pipeline=(part_bytes, chunks), body=body))

    def join(self) -> None:
        """Let all threads of the block wait for each other."""
        self.operations.append(Operation(Action.NOP))
        self._heard = self._heard_by_several = self._moved = False
        self._read, self._written = [], []

    def _hear(self, threads: int) -> None:
        self._heard = True
        self._heard_by_several |= threads > 1

    def _tell(self, threads: int) -> None:
        if self._moved or self._heard_by_several or (self._heard and threads > 1):
            self.join()

    def _cells(self, operands: Sequence[Operand], packets: bool) -> list[range]:
        """Return the cells of plain data of this rank among `operands`."""
        plain = (each for each in operands if each.buffer is not None and not (packets and each.buffer == "s"))
        return [_span(self._layout.base(each.buffer or "s") + each.first, each.count) for each in plain]


def _span(first: int, count: int) -> range:
    return range(first, first + count)


def _meet(first: range, second: range) -> bool:
    return first.start < second.stop and second.start < first.stop


def _runs(numbers: Sequence[int], longest: int) -> Iterator[tuple[int, ...]]:
    return (tuple(numbers[first : first + longest]) for first in range(0, len(numbers), longest))
