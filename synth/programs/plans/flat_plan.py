"""A plan as tables of numbers, as the kernel that runs its calls takes it (`chorale.synth.programs.plans.calls`).

Everything has a number among all ranks: blocks, and after them the proxies of ports, are owners of clocks; channels at
their receiving ends and semaphores are queues; pieces of chunks are cells, and pieces of scratch slots for packets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.plans.clocks import MOST_REPEATS
from chorale.synth.programs.plans.moves import Move, MoveMaker, Stretch, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation

JOIN, MEET, TELL, HEAR, RELAXED_TELL, RELAXED_HEAR, OTHER = range(7)
"""What a step does beside moving data: threads of the block, or blocks, wait for each other; clocks go to queues, or
come from them, with what they order or without."""

FIRST_STEP, RANK = range(2)
FIRST_BLOCK, FIRST_CELL, SCRATCH_CELL, FIRST_PROXY = range(4)
DOES, FIRST_LINK, FIRST_MOVE, BARRIER, BARRIER_BLOCKS = range(5)
QUEUE, PROXY = range(2)
FIRST_STRETCH, READS, TAKES, WRITES, PACKETS, PORT, FLAGS, TOLD = range(8)
START, COUNT, HALF = range(3)
BY_SWITCH, AWAITED, SIGNALS, FLUSHES = 1, 2, 4, 8

_DOES = {
    Action.NOP: JOIN,
    Action.BARRIER: MEET,
    Action.SIGNAL: TELL,
    Action.RELEASE: TELL,
    Action.RELAXED_SIGNAL: RELAXED_TELL,
    Action.WAIT: HEAR,
    Action.ACQUIRE: HEAR,
    Action.RELAXED_WAIT: RELAXED_HEAR,
}


class FlatPlan(NamedTuple):
    """Tables; the last row of each with a first number of something is where all of that ends.

    blocks:    int64[blocks + 1, 2]: first step, rank
    ranks:     int64[ranks + 1, 4]: first block, first cell, first cell of scratch, first proxy
    steps:     int64[steps + 1, 5]: what it does, first link, first move, number of its barrier and blocks that meet
    links:     int64[links, 2]: queue, and the proxy that signals there, or -1
    moves:     int64[moves, 8]: first stretch; how many are read, taken as packets, written, and written as packets, in
               this order; which thread tells a port, or -1; flags; rows of what its packets tell: one for each half
    stretches: int64[stretches, 3]: first cell or slot, how many, and how far the next half of scratch is
    begins:    int64[queues]: how often a queue can be heard before anybody tells
    """

    blocks: Matrix[np.int64]
    ranks: Matrix[np.int64]
    steps: Matrix[np.int64]
    links: Matrix[np.int64]
    moves: Matrix[np.int64]
    stretches: Matrix[np.int64]
    begins: NDArray[np.int64]


def flat_plan(plan: ExecutionPlan, parts: int, pieces: int, calls: int) -> FlatPlan:
    """Return the tables of the structurally sound `plan` for `calls` calls, with pipelines in so many `parts` and
    chunks in so many `pieces`. O(operands)."""
    return _Tables(plan, parts, pieces).tables(calls)


def slots_of(plan: ExecutionPlan, pieces: int) -> int:
    """Return the number of slots for packets."""
    return sum(body.scratch_chunks for body in plan.ranks) * pieces * halves_of(plan)


def halves_of(plan: ExecutionPlan) -> int:
    """Return how many parts of scratch calls use by turns."""
    return 2 if plan.settings.double_scratch else 1


class _Tables:
    """Rows as they are found."""

    def __init__(self, plan: ExecutionPlan, parts: int, pieces: int) -> None:
        self._plan, self._parts, self._pieces, self._halves = plan, parts, pieces, halves_of(plan)
        self._layouts = [plan.layout(rank) for rank in range(len(plan.ranks))]
        self._cells = [0, *accumulate(layout.cells * pieces for layout in self._layouts)]
        self._slots = [0, *accumulate(body.scratch_chunks * pieces * self._halves for body in plan.ranks)]
        self._maker = MoveMaker(plan, pieces)
        blocks = sum(len(body.blocks) for body in plan.ranks)
        self._proxies = [*accumulate((len(body.port_peers) for body in plan.ranks), initial=blocks)]
        self._ends = {
            (rank, kind): [plan.other_end(rank, channel, kind) for channel in range(len(body.peers_of(kind)))]
            for rank, body in enumerate(plan.ranks)
            for kind in ("memory", "port")
        }
        self._queues: dict[tuple[object, ...], int] = defaultdict(lambda: len(self._queues))
        self._acquired: Counter[int] = Counter()
        self._blocks: list[tuple[int, int]] = []
        self._steps: list[tuple[int, ...]] = []
        self._links: list[tuple[int, int]] = []
        self._moves: list[tuple[int, ...]] = []
        self._stretches: list[tuple[int, int, int]] = []
        self._told = 0

    def tables(self, calls: int) -> FlatPlan:
        first_block = [0]
        for rank, body in enumerate(self._plan.ranks):
            for block in body.blocks:
                self._blocks.append((len(self._steps), rank))
                for _, operation, repeat in unrolled(block, self._parts):
                    self._add(rank, block.channels_of(operation.kind), operation)
                    if operation.action.moves:
                        for move in self._maker.moves(rank, block, operation, repeat):
                            self._add_move(operation, move)
            first_block.append(len(self._blocks))
        self._blocks.append((len(self._steps), len(self._plan.ranks)))
        self._steps.append((OTHER, len(self._links), len(self._moves), 0, 0))
        scratch = [
            first + layout.scratch_base * self._pieces
            for first, layout in zip(self._cells[:-1], self._layouts, strict=True)
        ]
        ranks = np.array([first_block, self._cells, [*scratch, self._cells[-1]], self._proxies], dtype=np.int64).T
        return FlatPlan(
            _table(self._blocks, 2),
            np.ascontiguousarray(ranks),
            _table(self._steps, 5),
            _table(self._links, 2),
            _table(self._moves, 8),
            _table(self._stretches, 3),
            self._begins(calls),
        )

    def _begins(self, calls: int) -> NDArray[np.int64]:
        """Semaphores keep their values from before; no more of them matter than can be taken."""
        begins = np.zeros(max(1, len(self._queues)), dtype=np.int64)
        for rank, body in enumerate(self._plan.ranks):
            for number, value in enumerate(body.semaphores):
                queue = self._queues.get((rank, number))
                if queue is not None:
                    begins[queue] = min(value, MOST_REPEATS * calls * self._acquired[queue])
        return begins

    def _add(self, rank: int, numbers: Sequence[int], operation: Operation) -> None:
        action, (barrier, blocks) = operation.action, operation.barrier or (0, 0)
        barrier_of_all = self._queues[rank, "barrier", barrier] if action is Action.BARRIER else 0
        self._steps.append((_DOES.get(action, OTHER), len(self._links), len(self._moves), barrier_of_all, blocks))
        if action in (Action.ACQUIRE, Action.RELEASE):
            for number in operation.semaphores:
                queue = self._queues[rank, number]
                self._acquired[queue] += action is Action.ACQUIRE
                self._links.append((queue, -1))
        elif operation.kind != "switch":
            self._links += [self._link(rank, numbers[local], operation) for local in operation.channels]

    def _link(self, rank: int, number: int, operation: Operation) -> tuple[int, int]:
        kind = operation.kind
        if operation.action.waits:
            return self._queues[rank, number, kind], -1
        proxy = self._proxies[rank] + number if kind == "port" else -1
        return self._queues[*self._ends[rank, kind][number], kind], proxy

    def _add_move(self, operation: Operation, move: Move) -> None:
        flags = BY_SWITCH * move.switch | AWAITED * move.waits
        if move.port is not None and operation.action.signals:
            flags |= SIGNALS | FLUSHES * (operation.action is Action.PUT_SIGNAL_FLUSH)
        counts = (len(move.reads), len(move.takes), len(move.writes), len(move.packets))
        port = -1 if move.port is None else move.port
        self._moves.append((len(self._stretches), *counts, port, flags, self._told))
        self._told += self._halves * bool(move.packets)
        self._stretches += [self._cells_of(each) for each in move.reads]
        self._stretches += [self._slots_of(each) for each in move.takes]
        self._stretches += [self._cells_of(each) for each in move.writes]
        self._stretches += [self._slots_of(each) for each in move.packets]

    def _cells_of(self, stretch: Stretch) -> tuple[int, int, int]:
        base = self._layouts[stretch.rank].base(stretch.buffer) * self._pieces
        return self._cells[stretch.rank] + base + stretch.first, stretch.count, 0

    def _slots_of(self, stretch: Stretch) -> tuple[int, int, int]:
        half = self._plan.ranks[stretch.rank].scratch_chunks * self._pieces
        return self._slots[stretch.rank] + stretch.first, stretch.count, half


def _table(rows: Sequence[Sequence[int]], columns: int) -> Matrix[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)
