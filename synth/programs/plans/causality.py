"""Which receives of a program can be written straight to their destination by a sender that asks for no permission.

A message that is put without asking must not hit chunks that its receiver still needs. It does not if everything that
the receiver does to them before the receive also happens before the send, because of earlier messages from the
receiver, on any path. Source: L. Lamport, "Time, Clocks, and the Ordering of Events" (CACM 1978), with one clock per
thread block.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import Instruction, Program

InstructionId = tuple[int, int, int]
"""Rank, block, number of an instruction."""
VectorClock = NDArray[np.int32]
"""int32[blocks of all ranks]: how many instructions of each are known to be done."""


def direct_receives(program: Program) -> set[InstructionId]:
    """Return the receives of the sound `program` that store what arrives, and whose chunks nobody at the receiver can
    still be using when it is sent. O(instructions * blocks)."""
    return _Causality(program).run()


class _Causality:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._first = [0, *accumulate(len(rank.blocks) for rank in program.ranks)]
        blocks = self._first[-1]
        self._clock: NDArray[np.int32] = np.zeros((blocks, blocks), dtype=np.int32)
        self._at = [0] * blocks
        self._rank = [rank for rank, body in enumerate(program.ranks) for _ in body.blocks]
        self._done: dict[tuple[int, int], VectorClock] = {}
        self._sent: dict[tuple[int, int, int], deque[tuple[VectorClock, VectorClock]]] = defaultdict(deque)
        self._accesses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._direct: set[InstructionId] = set()
        self._waited = {
            (self._first[rank] + wait.block, wait.step)
            for rank, body in enumerate(program.ranks)
            for block in body.blocks
            for item in block.instructions
            for wait in item.waits
        }

    def run(self) -> set[InstructionId]:
        moved = True
        while moved:
            # A list, so that every block has its turn.
            moved = any([self._advance(block) for block in range(len(self._at))])
        return self._direct

    def _advance(self, block: int) -> bool:
        """Go on with `block` as far as possible; return whether it moved."""
        rank = self._rank[block]
        body = self._program.ranks[rank].blocks[block - self._first[rank]]
        begun = self._at[block]
        while self._at[block] < len(body.instructions):
            item = body.instructions[self._at[block]]
            incoming = (body.recv_peer or 0, rank, body.channel)
            if item.op.receives and not self._sent[incoming]:
                break
            waits = [(self._first[rank] + wait.block, wait.step) for wait in item.waits]
            if any(self._at[other] <= step for other, step in waits):
                break
            for wait in waits:
                np.maximum(self._clock[block], self._done[wait], out=self._clock[block])
            self._execute(block, rank, item, incoming, (rank, body.send_peer or 0, body.channel))
        return self._at[block] > begun

    def _execute(
        self, block: int, rank: int, item: Instruction, incoming: tuple[int, int, int], outgoing: tuple[int, int, int]
    ) -> None:
        step, clock = self._at[block], self._clock[block]
        before = clock.copy()
        if item.op.receives:
            put, sent = self._sent[incoming].popleft()
            np.maximum(clock, sent, out=clock)
            if item.op.writes_dst and not item.op.reads_src and self._is_free(rank, item, put):
                self._direct.add((rank, block - self._first[rank], step))
            # What is sent on is put after it has arrived.
            before = clock.copy()
        self._note(rank, item, block, step)
        self._at[block] = clock[block] = step + 1
        if item.op.sends:
            self._sent[outgoing].append((before, clock.copy()))
        if (block, step) in self._waited:
            self._done[block, step] = clock.copy()

    def _is_free(self, rank: int, item: Instruction, put: VectorClock) -> bool:
        return all(put[block] > step for cell in self._cells(rank, item) for block, step in self._accesses[rank, cell])

    def _note(self, rank: int, item: Instruction, block: int, step: int) -> None:
        """Keep the last write of each cell and the reads since; all before that are before these."""
        layout = layout_of(self._program, rank)
        if item.op.reads_src:
            first = layout.cell(item.src)
            for cell in range(first, first + item.count):
                self._accesses[rank, cell].append((block, step))
        if item.op.writes_dst:
            for cell in self._cells(rank, item):
                self._accesses[rank, cell] = [(block, step)]

    def _cells(self, rank: int, item: Instruction) -> range:
        first = layout_of(self._program, rank).cell(item.dst)
        return range(first, first + item.count)
