"""What the kernel that runs the calls of a plan keeps: values of cells, who touched them, clocks, and what is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix, Table
from chorale.synth.programs.plans.flat_plan import (
    COUNT,
    DOES,
    FIRST_CELL,
    FIRST_STEP,
    FIRST_STRETCH,
    PACKETS,
    PROXY,
    READS,
    RELAXED_HEAR,
    RELAXED_TELL,
    TAKES,
    FlatPlan,
    halves_of,
    slots_of,
)
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import (
    ANYTHING,
    ChunkValues,
    expected_outputs,
    initial_inputs,
    unwritten_values,
    words_of,
)

Integers = NDArray[np.int64]

THREADS = 16
"""Most threads of a block that hear or tell in one operation."""
WRITER, WRITTEN, BY_ITSELF, READ = range(4)
NEXT, READER, WHEN = range(3)
CALL, OWNER, TIME, ROW, TAKEN = range(5)
HEAD, TAIL = range(2)
FREE, UNUSED, STEPS = range(3)


class Touched(NamedTuple):
    """Who touched cells and slots, by numbers of their owners, and when by their clocks.

    cells: int32[cells, 4]: last writer, when, whether it is enough that it happened, first read since (0: none)
    reads: int32[1 + reads, 3]: next read of the cell, reader, time; row 0: first free row, and rows never used
    slots: int32[slots, 5]: call (0: no packet), writer, time, row of what it told, first read since
    told:  int16[rows, components]: of packets
    """

    cells: Matrix[np.int32]
    reads: Matrix[np.int32]
    slots: Matrix[np.int32]
    told: Matrix[np.int16]


class Knowledge(NamedTuple):
    """What owners know of components: blocks and proxies, then the begun calls of each rank.

    clocks:  int16[owners, rows, components], as of `chorale.synth.programs.plans.clocks`; of one row or two
    times:   int32[owners]
    threads: int64[blocks, THREADS]: row of what a thread has heard since the last nop, or -1
    news:    int16[all, rows, components]: what was told and is on its way, or known to a thread
    next:    int64[all]: the next row of a queue, or of the free ones
    free:    int64[3]: first free row of news (-1: none), how many are free, and how many steps were done
    queues:  int64[queues, 2]: first and last row, -1 for none
    met:     int64[blocks, 2]: barrier at which a block is, or -1, and whether all have come
    """

    clocks: Table[np.int16]
    times: NDArray[np.int32]
    threads: Matrix[np.int64]
    news: Table[np.int16]
    next: Integers
    free: Integers
    queues: Matrix[np.int64]
    met: Matrix[np.int64]


class CallState(NamedTuple):
    """Where the calls stand.

    progress: int64[blocks]: the next step
    call:     int64[ranks], from 1
    values:   of cells, then of slots, then of what is moved now; chunks of a call are numbered from call * `stride`
    wanted:   of cells at the end of a call, ANYTHING where nothing is said
    given:    of cells at its beginning, ANYTHING where nothing is given
    """

    progress: Integers
    call: Integers
    values: ChunkValues
    wanted: ChunkValues
    given: ChunkValues
    touched: Touched
    knowledge: Knowledge


def new_state(plan: ExecutionPlan, flat: FlatPlan, pieces: int) -> CallState:
    """Return the state before the first call."""
    ranks, cells, slots = len(plan.ranks), int(flat.ranks[-1, FIRST_CELL]), slots_of(plan, pieces)
    longest = int(flat.stretches[:, COUNT].max(initial=1))
    words = words_of(plan)
    return CallState(
        flat.blocks[:-1, FIRST_STEP].copy(),
        np.zeros(ranks, dtype=np.int64),
        unwritten_values(cells + slots + longest, words),
        _placed(plan, flat, pieces, wanted=True),
        _placed(plan, flat, pieces, wanted=False),
        _touched(plan, flat, cells, slots),
        _known(plan, flat),
    )


def clock_entries(state: CallState) -> int:
    """Return how many entries all clocks have, those on their way included."""
    return state.knowledge.clocks.size + state.knowledge.news.size + state.touched.told.size


def with_more_news(state: CallState) -> CallState:
    """Return `state` with room for twice as much that is on its way."""
    knowledge, rows = state.knowledge, len(state.knowledge.next)
    news = np.zeros((2 * rows, *knowledge.news.shape[1:]), dtype=np.int16)
    news[:rows] = knowledge.news
    following = np.concatenate([knowledge.next, np.arange(rows + 1, 2 * rows + 1)])
    following[-1] = knowledge.free[0]
    free = np.array([rows, knowledge.free[UNUSED] + rows, knowledge.free[STEPS]], dtype=np.int64)
    return state._replace(knowledge=knowledge._replace(news=news, next=following, free=free))


def latest_time(flat: FlatPlan) -> int:
    """Return the time that the clock of a block or proxy may reach in a call; ports are told of puts and of signals."""
    steps = int(np.diff(flat.blocks[:, FIRST_STEP]).max(initial=0))
    told = flat.links[:, PROXY]
    return max(steps, 2 * int(np.bincount(told[told >= 0]).max(initial=0)))


def components_of(flat: FlatPlan) -> int:
    """Return how many components a clock has."""
    return int(flat.ranks[-1, -1]) + len(flat.ranks) - 1


def _touched(plan: ExecutionPlan, flat: FlatPlan, cells: int, slots: int) -> Touched:
    moves, halves = flat.moves, halves_of(plan)
    lengths = np.concatenate([[0], np.cumsum(flat.stretches[:, COUNT])])
    first, reads, takes = moves[:, FIRST_STRETCH], moves[:, READS], moves[:, TAKES]
    read = int((lengths[first + reads] - lengths[first]).sum())
    taken = int((lengths[first + reads + takes] - lengths[first + reads]).sum())
    rows = halves * int((moves[:, PACKETS] > 0).sum())
    return Touched(
        np.zeros((cells, 4), dtype=np.int32),
        np.zeros((1 + read + halves * taken, 3), dtype=np.int32),
        np.zeros((slots, 5), dtype=np.int32),
        np.zeros((rows, components_of(flat)), dtype=np.int16),
    )


def _known(plan: ExecutionPlan, flat: FlatPlan) -> Knowledge:
    owners, components, blocks = int(flat.ranks[-1, -1]), components_of(flat), len(flat.blocks) - 1
    kinds, rows = 2 if _is_relaxed(plan, flat) else 1, max(4 * THREADS, blocks + int(flat.begins.sum()))
    following = np.arange(1, rows + 1)
    following[-1] = -1
    return Knowledge(
        np.zeros((owners, kinds, components), dtype=np.int16),
        np.zeros(owners, dtype=np.int32),
        np.full((blocks, THREADS), -1, dtype=np.int64),
        np.zeros((rows, kinds, components), dtype=np.int16),
        following,
        np.array([0, rows, 0], dtype=np.int64),
        np.full((len(flat.begins), 2), -1, dtype=np.int64),
        np.full((blocks, 2), -1, dtype=np.int64),
    )


def _is_relaxed(plan: ExecutionPlan, flat: FlatPlan) -> bool:
    """Return whether something can be known to have happened without an order of memory."""
    relaxed = np.isin(flat.steps[:, DOES], (RELAXED_TELL, RELAXED_HEAR)).any()
    by_others = any(body.port_peers or body.switches for body in plan.ranks)
    return by_others or bool(relaxed) or bool(flat.moves[:, [TAKES, PACKETS]].any())


def _placed(plan: ExecutionPlan, flat: FlatPlan, pieces: int, wanted: bool) -> ChunkValues:
    """Return what is asked of memory at the end of a call, or is in it at the beginning."""
    placed = unwritten_values(int(flat.ranks[-1, FIRST_CELL]), words_of(plan))
    placed.identity[:] = ANYTHING
    for rank in range(len(plan.ranks)):
        layout, first = plan.layout(rank), int(flat.ranks[rank, FIRST_CELL])
        regions = [(layout.output_base, expected_outputs(plan, rank))] if wanted else []
        if not (wanted and plan.in_place):
            regions.append((layout.input_base, initial_inputs(plan, rank)))
        for base, values in regions:
            if values is not None:
                own = slice(first + base * pieces, first + (base + len(values.identity)) * pieces)
                placed.identity[own] = np.repeat(values.identity, pieces)
                placed.members[own] = np.repeat(values.members, pieces, axis=0)
    return placed
