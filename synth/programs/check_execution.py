"""Executes a program symbolically with several message sizes and block orders and reports what goes wrong.

Instead of data, each chunk holds the set of ranks that contributed to it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.flat_program import (
    CLOCKS_OF_A_RANK,
    CLOCKS_OF_ALL_RANKS,
    COUNT,
    DST,
    FIRST,
    FIRST_MARK,
    FLAGS,
    FORWARD,
    INCOMING,
    MOVED,
    NO_CLOCKS,
    OTHER_CHUNK,
    OUTGOING,
    PC,
    RACE,
    RANDOM,
    READS_DST,
    READS_SRC,
    RECEIVED,
    REVERSE,
    SAVED,
    SENT,
    SRC,
    WRITES_DST,
    RunConditions,
    flatten,
)
from chorale.synth.programs.limits import MOST_CHUNKS, MessageBuffer
from chorale.synth.programs.memory import cell_name, layout_of, shape_of
from chorale.synth.programs.postconditions import (
    MAX_REPORTED,
    ChunkValues,
    describe,
    initial_inputs,
    result_violations,
    unwritten_values,
    words_of,
)
from chorale.synth.programs.program import QUEUE_DEPTH, Program, ProgramViolation, chunks_moved

MAX_CLOCK_ENTRIES = 2**27
MAX_CELLS = 2**25
MAX_WORDS = 2**27
MAX_MOVES = 2**25
RANDOM_SEED = 1


class _Result(NamedTuple):
    """The state at the end of a run of the program; see `native.execute`."""

    values: ChunkValues
    progress: Matrix[np.int64]
    queues: Matrix[np.int64]
    fault: NDArray[np.int64]


def first_excess(sizes: dict[str, tuple[int, int]]) -> str:
    """Return a message about the first size above its limit, or "" if all sizes are within their limits.

    sizes: (value, limit), keyed by a phrase that says what is counted
    """
    for what, (value, largest) in sizes.items():
        if value > largest:
            return f"{what}: {value} are more than the {largest} that can be checked"
    return ""


class ExecutionRuns:
    """Executes a program under different conditions.

    excess: why the program is too large to be executed, or ""
    waste:  after a run, a violation if instructions moved chunks that had never been written
    """

    def __init__(self, program: Program, max_words: int) -> None:
        self._program = program
        self._flat = flatten(program)
        self._depth = QUEUE_DEPTH[program.protocol]
        self._layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self.waste: list[ProgramViolation] = []
        blocks, waited = self._flat.first_block[-1], int(self._flat.code.items[:, SAVED].max(initial=-1)) + 1
        rows = blocks + waited
        self._all_clock_entries = (rows + self._depth * len(self._flat.longest)) * blocks
        entries = rows * int(np.diff(self._flat.first_block).max(initial=1))
        words = self._depth * int(self._flat.longest.sum()) * words_of(program)
        self.excess = first_excess(
            {
                "clock entries for blocks and waits": (entries, MAX_CLOCK_ENTRIES),
                "words for messages": (words, max_words),
            }
        )

    @cached_property
    def longest_message(self) -> int:
        """Largest number of chunks that any step sends."""
        return int(self._flat.longest.max(initial=1))

    def with_races(self, message_chunks: int) -> list[ProgramViolation]:
        """Execute the program, search for races, and return the violations.

        A program that Chorale lowered must order all accesses by waits within the rank. A missing wait counts as a race
        even if a message from another rank happens to enforce the order. Programs from other sources may rely on
        messages, so their races are confirmed with the clocks of all ranks. The clocks of a single rank are tried
        first, because they are shorter and thus faster.
        """
        found = self._run(message_chunks, FORWARD, clocks=CLOCKS_OF_A_RANK)
        races = any(violation.rule == "race" for violation in found)
        if races and not self._program.origin and self._all_clock_entries <= MAX_CLOCK_ENTRIES:
            return self._run(message_chunks, FORWARD, clocks=CLOCKS_OF_ALL_RANKS)
        return found

    def in_order(self, message_chunks: int, order: int, seed: int = 0) -> list[ProgramViolation]:
        """Execute the program with the blocks in `order` (see `RunConditions`), without searching for races."""
        return self._run(message_chunks, order, seed)

    def blocked(self, message_chunks: int) -> list[tuple[int, int]]:
        """Return (rank, block) of each block that does not finish with messages of this number of chunks."""
        progress = self._executed(message_chunks, REVERSE).progress
        return [self._flat.block_of(block) for block in self._unfinished(progress)]

    def _unfinished(self, progress: Matrix[np.int64]) -> list[int]:
        unfinished: list[int] = np.flatnonzero(progress[:, PC] < self._flat.code.blocks[1:, FIRST]).tolist()
        return unfinished

    def _executed(self, message_chunks: int, order: int, seed: int = 0, clocks: int = NO_CLOCKS) -> _Result:
        flat, program = self._flat, self._program
        start = unwritten_values(flat.first_cell[-1], words_of(program))
        for rank, layout in enumerate(self._layouts):
            inputs = initial_inputs(program, rank)
            own = slice(flat.first_cell[rank] + layout.input_base, None)
            start.identity[own][: len(inputs.identity)] = inputs.identity
            start.members[own][: len(inputs.identity)] = inputs.members
        conditions = RunConditions(self._depth, message_chunks, order, seed, clocks)
        identity, members, *rest = native.execute(flat.code, flat.longest, *start, conditions)
        return _Result(ChunkValues(identity, members), *rest)

    def _run(self, message_chunks: int, order: int, seed: int = 0, clocks: int = NO_CLOCKS) -> list[ProgramViolation]:
        run, program, flat = self._executed(message_chunks, order, seed, clocks), self._program, self._flat
        cells = flat.first_cell[-1]
        kind, block, other = run.fault.tolist()
        if kind == RACE:
            return [self._race(block, other, run.progress)]
        if kind:
            added, to = (describe(run.values, cell, program) for cell in (cells, cells + 1))
            message = f"counts a contribution twice: {added} and {to}"
            if kind == OTHER_CHUNK:
                message = f"adds {added} to {to}"
            return [ProgramViolation.at("reduction", message, *flat.position(run.progress[block, PC]))]
        self.waste = []
        marked = run.values.identity[:cells][run.values.identity[:cells] <= FIRST_MARK]
        if len(marked):
            message = (
                f"reads a chunk that was never written; {len(marked)} chunks of memory contain the result of such "
                "reads. None of them reaches a result, but moving them takes time"
            )
            reader = flat.position(FIRST_MARK - int(marked.max()))
            self.waste = [ProgramViolation.at("uninitialised", message, *reader)]
        found = self._deadlock(run, message_chunks)
        if not found:
            found = result_violations(program, self._layouts, flat.first_cell, run.values)
            found = [self._unwritten(violation, run.values) for violation in found]
        return found

    def _unwritten(self, violation: ProgramViolation, values: ChunkValues) -> ProgramViolation:
        """Return `violation`, with rule `uninitialised` if the result comes from a chunk that was never written."""
        if violation.rank is None or violation.chunk is None:
            return violation
        cell = self._flat.first_cell[violation.rank] + self._layouts[violation.rank].output_base + violation.chunk
        mark = int(values.identity[cell])
        if mark > FIRST_MARK:
            return violation
        rank, block, step = self._flat.position(FIRST_MARK - mark)
        message = (
            f"{violation.message}; it comes from a chunk that was never written, which rank {rank}, block {block}, "
            f"step {step} reads"
        )
        return replace(violation, rule="uninitialised", message=message, rank=rank, block=block, step=step)

    def _race(self, block: int, other: int, progress: Matrix[np.int64]) -> ProgramViolation:
        """Return the violation for a race between the next instruction of `block` and an earlier one of `other`."""
        code, number = self._flat.code, int(progress[block, PC])
        at = self._flat.position(number)
        end = int(progress[other, PC]) + int(progress[other, MOVED] > 0)
        for item in range(end - 1, int(code.blocks[other, FIRST]) - 1, -1):
            cell = _conflict(code.items[number], code.items[item])
            if cell is not None:
                rank, behind = at[0], self._flat.position(item)
                layout, offset = self._layouts[rank], cell - self._flat.first_cell[rank]
                message = (
                    f"touches {cell_name(shape_of(self._program), rank, layout, offset)}, which block {behind[1]} "
                    f"touches too at step {behind[2]}, and nothing orders the two"
                )
                return ProgramViolation.at("race", message, *at)
        message = f"touches a chunk that block {self._flat.block_of(other)[1]} touches too, and nothing orders the two"
        return ProgramViolation.at("race", message, *at)

    def _deadlock(self, run: _Result, message_chunks: int) -> list[ProgramViolation]:
        blocked = self._unfinished(run.progress)
        size = "one chunk" if message_chunks == 1 else f"at most {message_chunks} chunks"
        note = f"; {len(blocked)} blocks hang at queue depth {self._depth} with messages of {size}"
        found = []
        for block in blocked[:MAX_REPORTED]:
            message = self._obstacle(block, run)[0] + note
            found.append(ProgramViolation.at("deadlock", message, *self._flat.position(run.progress[block, PC])))
        if found:
            found[0] = replace(found[0], message=f"{found[0].message}; {self._chain(blocked[0], run)}")
        return found

    def _obstacle(self, block: int, run: _Result) -> tuple[str, int]:
        """Return (what `block` is waiting for, block that would have to continue first)."""
        flat = self._flat
        rank, index, step = flat.position(run.progress[block, PC])
        instruction = self._program.ranks[rank].blocks[index].instructions[step]
        for wait in instruction.waits:
            other = flat.first_block[rank] + wait.block
            if run.progress[other, PC] <= flat.code.blocks[other, FIRST] + wait.step:
                return f"waits for step {wait.step} of block {wait.block}", other
        source, target = flat.code.blocks[block, [INCOMING, OUTGOING]].tolist()
        what, end, connection = "waits for a free slot to send", INCOMING, target
        if instruction.op.receives and run.queues[source, SENT] == run.queues[source, RECEIVED]:
            what, end, connection = "waits for a message", OUTGOING, source
        users = np.flatnonzero(flat.code.blocks[:-1, end] == connection)
        return what, int(users[0]) if len(users) else block

    def _chain(self, block: int, run: _Result) -> str:
        """Return text that says which block waits for which, from `block` to a cycle or to a finished block."""
        seen: list[int] = []
        while block not in seen and len(seen) < MAX_REPORTED:
            seen.append(block)
            if run.progress[block, PC] >= self._flat.code.blocks[block + 1, FIRST]:
                break
            block = self._obstacle(block, run)[1]
        names = ["rank {} block {}".format(*self._flat.block_of(each)) for each in seen]
        if block in seen[:-1]:
            first = seen.index(block)
            return f"they wait in a circle: {' -> '.join([*names[first:], names[first]])}"
        return f"who waits for whom: {' -> '.join(names)}"


def _conflict(item: NDArray[np.int64], other: NDArray[np.int64]) -> int | None:
    """Return a cell that both instructions access and at least one of them writes, or None if there is none."""

    def operands(item: NDArray[np.int64]) -> list[tuple[range, bool]]:
        """Return (range of cells, whether they are written) for each operand of an instruction."""
        flags, count = int(item[FLAGS]), int(item[COUNT])
        found = [(range(int(item[SRC]), int(item[SRC]) + count), False)] if flags & READS_SRC else []
        if flags & (READS_DST | WRITES_DST):
            found.append((range(int(item[DST]), int(item[DST]) + count), bool(flags & WRITES_DST)))
        return found

    for first, writes in operands(item):
        for second, also_writes in operands(other):
            shared = max(first.start, second.start)
            if (writes or also_writes) and shared < min(first.stop, second.stop):
                return shared
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a program.

    violations: the rules that the program breaks; empty if it is correct at all sizes that it allows, up to `max_bytes`
    notices:    facts worth knowing about a correct program
    max_bytes:  largest vector size in bytes at which the program cannot deadlock with the buffers of its runtime; None:
                no limit
    """

    violations: tuple[ProgramViolation, ...]
    notices: tuple[ProgramViolation, ...] = ()
    max_bytes: int | None = None


def execution_violations(program: Program, max_words: int = MAX_WORDS) -> list[ProgramViolation]:
    """Return the violations when `program` runs with messages of any size; see `execution_verdict`."""
    return list(execution_verdict(program, None, max_words).violations)


def execution_verdict(program: Program, buffer: MessageBuffer | None, max_words: int = MAX_WORDS) -> Verdict:
    """Execute the structurally sound `program` under several conditions; stop at the first run with a violation.

    The larger the vector, the fewer chunks fit into a message. With a `buffer`, the program is checked with the
    shortest messages that can occur at its sizes. If it deadlocks with these, it is checked with the shortest messages
    that avoid the deadlock, and `max_bytes` is the largest vector that has messages of this length. Without a buffer,
    and for programs that Chorale lowered, it is checked with messages of one chunk. Longer messages cannot cause a
    deadlock, because they only reduce the number of sends that wait for a slot.

    Races are searched for with the shortest messages, because these impose the least order. Without races, the result
    and the deadlocks do not depend on the order of the blocks, so the runs in other orders only validate the checker.
    O(runs * chunks moved * ranks / 64).

    Args:
        program: The program.
        buffer: The buffers of its runtime, if their size matters.
        max_words: Memory limit, in 64-bit words for sets of ranks; a program that exceeds it violates the rule `size`.
    """
    cells = sum(layout_of(program, rank).cells for rank in range(len(program.ranks)))
    excess = first_excess(
        {
            "chunks of memory on all ranks": (cells, MAX_CELLS),
            "words for sets of ranks": (cells * words_of(program), max_words),
            "chunks moved by all instructions": (chunks_moved(program), MAX_MOVES),
        }
    )
    if excess:
        return Verdict((ProgramViolation.at("size", excess),))
    runs = ExecutionRuns(program, max_words)
    if runs.excess:
        return Verdict((ProgramViolation.at("size", runs.excess),))
    message_chunks, max_bytes = 1, None
    if buffer is not None and not program.origin:
        longest = buffer.chunks_at(max(program.min_bytes, 1), program.chunks)
        shortest = _shortest_without_deadlock(runs, min(longest, max(runs.longest_message, 1)))
        if shortest is None:
            return Verdict(tuple(runs.in_order(longest, REVERSE)))
        message_chunks = max(shortest, buffer.chunks_at(program.max_bytes, program.chunks))
        max_bytes = buffer.largest_size(shortest, program.chunks)
    whole = max(message_chunks, MOST_CHUNKS, runs.longest_message)
    violations = (
        runs.with_races(message_chunks) or runs.in_order(whole, REVERSE) or runs.in_order(whole, RANDOM, RANDOM_SEED)
    )
    return Verdict(tuple(violations), () if violations else tuple(runs.waste), max_bytes)


def _shortest_without_deadlock(runs: ExecutionRuns, longest: int) -> int | None:
    """Return the smallest number of chunks per message without a deadlock; None if even `longest` deadlocks."""

    def deadlocks(message_chunks: int) -> bool:
        return any(violation.rule == "deadlock" for violation in runs.in_order(message_chunks, REVERSE))

    low, high = 1, longest
    if not deadlocks(low):
        return low
    if deadlocks(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if deadlocks(middle) else (low, middle)
    return high
