"""What a sender knows of the memory of others: which puts need no permission, and which sources stay as they are.

A message that is put without asking must not hit chunks that its receiver still needs. It does not if everything that
the receiver does to them before the receive also happens before the send, because of earlier messages from the
receiver, on any path. And what a receiver reads, or a port, after the sender has gone on, must not be written before:
every later write at the sender has to happen after the receive. Source: L. Lamport, "Time, Clocks, and the Ordering of
Events" (CACM 1978), with one clock per thread block.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import Layout, layout_of
from chorale.synth.programs.program import BufferRef, Instruction, Program

InstructionId = tuple[int, int, int]
"""Rank, block, number of an instruction."""
VectorClock = NDArray[np.signedinteger[Any]]
"""int[blocks of all ranks]: how many instructions of each are known to be done."""
_NONE: Mapping[InstructionId, InstructionId] = MappingProxyType({})


class MessageOrder(NamedTuple):
    """direct:  the receives that store what arrives, and whose chunks nobody can still be using when it is sent
    lasting: the sends whose chunks are not written again before they have been received"""

    direct: frozenset[InstructionId]
    lasting: frozenset[InstructionId]


def message_order(
    program: Program,
    receive_of: Mapping[InstructionId, InstructionId],
    read_late: Mapping[InstructionId, InstructionId] = _NONE,
) -> MessageOrder:
    """Return what holds for the messages of the sound `program`. O(instructions * blocks).

    receive_of: the receive of each send; read_late: the same of those sends whose chunks are read until they have been
    received, instead of when they are sent. Which sends last is found only where receivers read, or ports: there it
    matters, and what every write knew must be kept.
    """
    return _Causality(program, receive_of, read_late).run()


class _Access(NamedTuple):
    """A write at a rank, or what a send reads: who did it, and what he knew."""

    item: InstructionId
    block: int
    clock: VectorClock


class _Causality:
    def __init__(
        self,
        program: Program,
        receive_of: Mapping[InstructionId, InstructionId],
        read_late: Mapping[InstructionId, InstructionId],
    ) -> None:
        self._program, self._receive_of, self._read_late = program, receive_of, read_late
        self._first = [0, *accumulate(len(rank.blocks) for rank in program.ranks)]
        blocks = self._first[-1]
        self._looks_for_lasting = program.plan.reads or bool(program.plan.boxes)
        longest = max((len(block.instructions) for body in program.ranks for block in body.blocks), default=0)
        self._clock: VectorClock = np.zeros((blocks, blocks), dtype=np.int16 if longest < 2**15 else np.int32)
        self._at = [0] * blocks
        self._rank = [rank for rank, body in enumerate(program.ranks) for _ in body.blocks]
        self._layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self._done: dict[tuple[int, int], VectorClock] = {}
        self._sent: dict[tuple[int, int, int], deque[tuple[VectorClock, VectorClock]]] = defaultdict(deque)
        self._accesses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._writes: dict[tuple[int, int], list[_Access]] = defaultdict(list)
        self._sends: list[tuple[_Access, range]] = []
        self._direct: set[InstructionId] = set()
        self._waited = {
            (self._first[rank] + wait.block, wait.step)
            for rank, body in enumerate(program.ranks)
            for block in body.blocks
            for item in block.instructions
            for wait in item.waits
        }

    def run(self) -> MessageOrder:
        moved = True
        while moved:
            # A list, so that every block has its turn.
            moved = any([self._advance(block) for block in range(len(self._at))])
        lasting = frozenset(send.item for send, cells in self._sends if self._lasts(send, cells))
        return MessageOrder(frozenset(self._direct), lasting)

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
        instruction = (rank, block - self._first[rank], step)
        if item.op.receives:
            put, sent = self._sent[incoming].popleft()
            np.maximum(clock, sent, out=clock)
            if item.op.writes_dst and not item.op.reads_src and self._is_free(rank, item, put):
                self._direct.add(instruction)
            # What is sent on is put after it has arrived.
            before = clock.copy()
        self._note(rank, item, _Access(instruction, block, before))
        self._at[block] = clock[block] = step + 1
        if item.op.sends:
            self._sent[outgoing].append((before, clock.copy()))
        if (block, step) in self._waited:
            self._done[block, step] = clock.copy()

    def _is_free(self, rank: int, item: Instruction, put: VectorClock) -> bool:
        cells = self._cells(rank, item.dst, item.count)
        return all(put[block] > step for cell in cells for block, step in self._accesses[rank, cell])

    def _note(self, rank: int, item: Instruction, access: _Access) -> None:
        """Keep the last write of each cell and the reads since; all before that are before these."""
        read = self._cells(rank, item.src, item.count) if item.op.reads_src else range(0)
        written = self._cells(rank, item.dst, item.count) if item.op.writes_dst else range(0)
        for cell in read:
            self._accesses[rank, cell].append((access.block, access.item[2]))
        for cell in written:
            self._accesses[rank, cell] = [(access.block, access.item[2])]
            if self._looks_for_lasting:
                self._writes[rank, cell].append(access)
        if item.op.sends:
            # What arrived is sent from where it was stored, if it was.
            sent = written or read
            if self._looks_for_lasting:
                self._sends.append((access, sent))
            if access.item in self._read_late:
                for cell in sent:
                    self._accesses[rank, cell].append(self._number(self._read_late[access.item]))

    def _lasts(self, send: _Access, cells: range) -> bool:
        """Return whether all writes of `cells` are part of the send, or before it, or after its receive."""
        reader, step = self._number(self._receive_of[send.item])
        return all(
            write.item == send.item or send.clock[write.block] > write.item[2] or write.clock[reader] > step
            for cell in cells
            for write in self._writes[send.item[0], cell]
        )

    def _number(self, item: InstructionId) -> tuple[int, int]:
        return self._first[item[0]] + item[1], item[2]

    def _cells(self, rank: int, place: BufferRef, count: int) -> range:
        layout: Layout = self._layouts[rank]
        first = layout.cell(place)
        return range(first, first + count)
