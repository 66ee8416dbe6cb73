"""Writes the operations of one thread block, with a `nop` wherever its threads have to wait for each other."""

from __future__ import annotations

from chorale.synth.lowering.memory import Layout
from chorale.synth.lowering.plans.plan import Action, Operand, Operation


class BlockWriter:
    """Appends operations; `layout` is the memory of the rank.

    A `nop` comes between a wait and data, between data and a signal, and between data and data that meet in memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.operations: list[Operation] = []
        self._layout = layout
        self._heard = False
        self._read: list[range] = []
        self._written: list[range] = []

    def wait(self, action: Action, channels: tuple[int, ...] = (), semaphores: tuple[int, ...] = ()) -> None:
        """Wait for a signal or a semaphore."""
        self.operations.append(Operation(action, channels=channels, semaphores=semaphores))
        self._heard = True

    def signal(self, action: Action, channels: tuple[int, ...] = (), semaphores: tuple[int, ...] = ()) -> None:
        """Signal, or release semaphores, after all that was moved; each number is up to one thread."""
        if self._read or self._written or (self._heard and len(channels + semaphores) > 1):
            self._join()
        self.operations.append(Operation(action, channels=channels, semaphores=semaphores))

    def move(self, action: Action, sources: tuple[Operand, ...], target: Operand) -> None:
        """Move or add data with all threads, after what was heard."""
        read = [self._cells(source) for source in sources]
        written = [] if target.buffer is None else [self._cells(target)]
        meets = any(_meet(own, other) for own in (*read, *written) for other in self._written)
        if self._heard or meets or any(_meet(own, other) for own in written for other in self._read):
            self._join()
        # A sum takes its operands and its target piece by piece: `put` has as many targets as sources.
        self.operations.append(Operation(action, sources, (target,)))
        self._read += read
        self._written += written

    def _join(self) -> None:
        self.operations.append(Operation(Action.NOP))
        self._heard = False
        self._read, self._written = [], []

    def _cells(self, operand: Operand) -> range:
        base = self._layout.base(operand.buffer or "s")
        return range(base + operand.first, base + operand.first + operand.count)


def _meet(first: range, second: range) -> bool:
    return first.start < second.stop and second.start < first.stop
