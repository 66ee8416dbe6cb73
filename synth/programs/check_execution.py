"""Executes a program symbolically with the shortest messages that can occur and reports what goes wrong.

Instead of data, each chunk holds the set of ranks that contributed to it. The program is converted to arrays and then
executed by compiled code. Runtimes repeat a program for successive parts of long chunks; one repetition is enough for
the check, as [`programs.cpp`](../kernels/cpp/programs.cpp) explains.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.check_structure import MessageBuffer
from chorale.synth.programs.memory import (
    MAX_REPORTED,
    ChunkValues,
    cell_name,
    describe,
    initial_inputs,
    layout_of,
    result_violations,
    shape_of,
    unwritten_values,
    words_of,
)
from chorale.synth.programs.program import (
    BUFFERS,
    NO_PEER,
    OPS,
    QUEUE_DEPTH,
    Op,
    Position,
    Program,
    ProgramViolation,
    chunks_moved,
    ends_of,
)

Integers = NDArray[np.int64]

RECEIVES, SENDS, READS_SRC, WRITES_DST, READS_DST = 1, 2, 4, 8, 16
FLAGS, SRC, DST, COUNT, SAVED, FIRST_WAIT = range(6)
FIRST, INCOMING, OUTGOING, BASE, FIRST_NEIGHBOUR = range(5)


class Code(NamedTuple):
    """A program's code as arrays. Instructions, blocks and memory cells are numbered across all ranks.

    items:      int64[instructions + 1, 6], one row per instruction: flags (what the instruction does); first source
                cell and first target cell, each valid only if the flags say that it is used; number of chunks; index
                among the instructions for which others wait, or -1; index of the instruction's first row in `waits`
    waits:      int64[waits, 2]: the instruction to wait for, and the block that contains it
    blocks:     int64[blocks + 1, 5], one row per block: first instruction; connection from which it receives, or -1;
                connection to which it sends, or -1; first block of its rank; index of its first entry in `neighbours`
    neighbours: int64[...]: for each block, the blocks that may have to wait for it

    `items` and `blocks` have one extra row at the end, so that the range of row k ends where the range of row k + 1
    begins.
    """

    items: Matrix[np.int64]
    waits: Matrix[np.int64]
    blocks: Matrix[np.int64]
    neighbours: Integers


class FlatProgram(NamedTuple):
    """A program converted to arrays for the kernel.

    code: instructions and blocks
    first_block, first_cell: first block and first cell of each rank, followed by the total number of blocks and cells
    longest: number of chunks in the longest send of each connection
    """

    code: Code
    first_block: list[int]
    first_cell: list[int]
    longest: Integers

    def block_of(self, number: int) -> tuple[int, int]:
        """Convert a block number across all ranks into (rank, block number within the rank)."""
        rank = bisect_right(self.first_block, number) - 1
        return rank, number - self.first_block[rank]

    def position(self, item: int) -> Position:
        """Convert an instruction number across all ranks into (rank, block, step)."""
        first = self.code.blocks[:-1, FIRST]
        block = int(np.searchsorted(first, item, side="right")) - 1
        return *self.block_of(block), item - int(first[block])


_FLAGS = np.array(
    [
        RECEIVES * op.receives
        + SENDS * op.sends
        + READS_SRC * op.reads_src
        + WRITES_DST * op.writes_dst
        + READS_DST * (op is Op.REDUCE)
        for op in OPS
    ]
)


def flatten(program: Program) -> FlatProgram:
    """Convert `program`, whose structure must be valid, to arrays for the kernel. O(instructions)."""
    ranks = [body.columns for body in program.ranks]
    first_block = [0, *accumulate(columns.blocks for columns in ranks)]
    first_cell = [0, *accumulate(layout_of(program, rank).cells for rank in range(len(ranks)))]
    lengths = np.concatenate([columns.lengths for columns in ranks])
    first = ends_of(lengths)
    items = np.full((int(first[-1]) + 1, 6), -1, dtype=np.int64)
    parts = [np.zeros((0, 2), dtype=np.int64)]
    low, waits_before = 0, 0
    for rank, body in enumerate(program.ranks):
        columns, layout = body.columns, layout_of(program, rank)
        bases = first_cell[rank] + np.array([layout.base(buffer) for buffer in BUFFERS])
        rows = items[low : low + len(columns.op)]
        rows[:, FLAGS] = _FLAGS[columns.op]
        rows[:, SRC] = bases[columns.src_buffer] + columns.src_offset
        rows[:, DST] = bases[columns.dst_buffer] + columns.dst_offset
        rows[:, COUNT] = columns.count
        rows[:, FIRST_WAIT] = waits_before + columns.first_wait[:-1]
        other = first_block[rank] + columns.wait_block
        parts.append(np.stack([first[other] + columns.wait_step, other], axis=1))
        low, waits_before = low + len(rows), waits_before + len(other)
    items[-1] = (0, 0, 0, 0, -1, waits_before)
    waits = np.concatenate(parts)
    waited = np.unique(waits[:, 0])
    items[waited, SAVED] = np.arange(len(waited))
    blocks = np.full((len(lengths) + 1, 5), -1, dtype=np.int64)
    blocks[:, FIRST] = first
    blocks[:-1, BASE] = np.repeat(first_block[:-1], np.diff(first_block))
    numbers: dict[tuple[int, int, int], int] = {}  # the number of each connection
    block = 0
    for rank, columns in enumerate(ranks):
        peers = (columns.recv_peer.tolist(), columns.send_peer.tolist(), columns.channel.tolist())
        for source, target, channel in zip(*peers, strict=True):
            if source != NO_PEER:
                blocks[block, INCOMING] = numbers.setdefault((source, rank, channel), len(numbers))
            if target != NO_PEER:
                blocks[block, OUTGOING] = numbers.setdefault((rank, target, channel), len(numbers))
            block += 1
    ends = np.empty((len(numbers), 2), dtype=np.int64)  # blocks at both ends of each connection
    for side, column in enumerate((INCOMING, OUTGOING)):
        users = np.flatnonzero(blocks[:-1, column] >= 0)
        ends[blocks[users, column], side] = users
    waiter = np.repeat(np.repeat(np.arange(len(lengths)), lengths), np.diff(items[:, FIRST_WAIT]))
    pairs = np.concatenate([np.stack([waits[:, 1], waiter], axis=1), ends, ends[:, ::-1]])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    waited_on, neighbours = np.divmod(np.unique(pairs[:, 0] * len(blocks) + pairs[:, 1]), len(blocks))
    blocks[:, FIRST_NEIGHBOUR] = np.searchsorted(waited_on, np.arange(len(blocks)))
    longest = np.ones(len(numbers), dtype=np.int64)
    sends = np.flatnonzero(items[:, FLAGS] & SENDS)
    sender = np.searchsorted(first, sends, side="right") - 1
    np.maximum.at(longest, blocks[sender, OUTGOING], items[sends, COUNT])
    return FlatProgram(Code(items, waits, blocks, np.ascontiguousarray(neighbours)), first_block, first_cell, longest)


NO_CLOCKS, CLOCKS_OF_A_RANK, CLOCKS_OF_ALL_RANKS = range(3)
OTHER_CHUNK, TWICE, RACE = 1, 2, 3
FIRST_MARK = -2
"""If instruction k reads a chunk that was never written, its result gets the identity FIRST_MARK - k."""
PC, MOVED = 0, 1
SENT, RECEIVED = 2, 3


MAX_CLOCK_ENTRIES = 2**27
MAX_CELLS = 2**25
MAX_WORDS = 2**27
MAX_MOVES = 2**25


class _Result(NamedTuple):
    """The state of the memory, blocks and queues after a run of the program; see `native.execute`."""

    values: ChunkValues
    progress: Matrix[np.int64]
    queues: Matrix[np.int64]
    fault: NDArray[np.int64]


def first_excess(sizes: dict[str, tuple[int, int]]) -> str:
    """Return a message about the first size above its limit, or "" if all sizes are within their limits.

    sizes: maps a phrase that says what is counted to (value, limit)
    """
    for what, (value, largest) in sizes.items():
        if value > largest:
            return f"{what}: {value} are more than the {largest} that can be checked"
    return ""


class ExecutionRuns:
    """Executes a program symbolically with different message lengths, and reports violations.

    excess: why the program is too large to be executed, or ""
    waste:  violation found in the last run if instructions moved chunks that had never been written; otherwise empty
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
        """Maximum number of chunks that a step sends."""
        return int(self._flat.longest.max(initial=1))

    def with_races(self, message_chunks: int) -> list[ProgramViolation]:
        """Execute the program, search for races, and return the violations.

        A program that Chorale lowered must order all accesses by waits within the rank. A missing wait counts as a race
        even if a message from another rank happens to enforce the order. Programs from other sources may rely on
        messages, so their races are confirmed with the clocks of all ranks. The clocks of a single rank are tried
        first, because they are shorter and thus faster.
        """
        found = self.run(message_chunks, CLOCKS_OF_A_RANK)
        races = any(violation.rule == "race" for violation in found)
        if races and not self._program.origin and self._all_clock_entries <= MAX_CLOCK_ENTRIES:
            return self.run(message_chunks, CLOCKS_OF_ALL_RANKS)
        return found

    def blocked(self, message_chunks: int) -> list[tuple[int, int]]:
        """Return (rank, block) of each block that hangs if messages have at most `message_chunks` chunks."""
        progress = self._executed(message_chunks).progress
        return [self._flat.block_of(block) for block in self._unfinished(progress)]

    def _unfinished(self, progress: Matrix[np.int64]) -> list[int]:
        unfinished: list[int] = np.flatnonzero(progress[:, PC] < self._flat.code.blocks[1:, FIRST]).tolist()
        return unfinished

    def _executed(self, message_chunks: int, clocks: int = NO_CLOCKS) -> _Result:
        flat, program = self._flat, self._program
        start = unwritten_values(flat.first_cell[-1], words_of(program))
        for rank, layout in enumerate(self._layouts):
            inputs = initial_inputs(program, rank)
            own = slice(flat.first_cell[rank] + layout.input_base, None)
            start.identity[own][: len(inputs.identity)] = inputs.identity
            start.members[own][: len(inputs.identity)] = inputs.members
        identity, members, *rest = native.execute(
            flat.code, flat.longest, *start, (self._depth, message_chunks, clocks)
        )
        return _Result(ChunkValues(identity, members), *rest)

    def run(self, message_chunks: int, clocks: int = NO_CLOCKS) -> list[ProgramViolation]:
        """Execute the program with at most `message_chunks` chunks per message, and return the violations.

        clocks: NO_CLOCKS to skip the search for races, CLOCKS_OF_A_RANK if only waits within a rank order accesses, or
            CLOCKS_OF_ALL_RANKS if messages between ranks order them, too
        """
        run, program, flat = self._executed(message_chunks, clocks), self._program, self._flat
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
        for number, violation in enumerate(found):
            if violation.rank is None or violation.chunk is None:
                continue
            cell = flat.first_cell[violation.rank] + self._layouts[violation.rank].output_base + violation.chunk
            mark = int(run.values.identity[cell])
            if mark <= FIRST_MARK:
                rank, block, step = flat.position(FIRST_MARK - mark)
                message = (
                    f"{violation.message}; it comes from a chunk that was never written, which rank {rank}, "
                    f"block {block}, step {step} reads"
                )
                found[number] = ProgramViolation("uninitialised", message, rank, block, step, violation.chunk)
        return found

    def _race(self, block: int, other: int, progress: Matrix[np.int64]) -> ProgramViolation:
        """Return the violation for a race of the next instruction of `block` with an earlier instruction of `other`."""
        code, number = self._flat.code, int(progress[block, PC])
        at = self._flat.position(number)
        end = int(progress[other, PC]) + int(progress[other, MOVED] > 0)

        def operands(item: int) -> list[tuple[range, bool]]:
            """Return (range of cells, whether they are written) for each operand of an instruction."""
            flags, src, dst, count = code.items[item, [FLAGS, SRC, DST, COUNT]].tolist()
            found = [(range(src, src + count), False)] if flags & READS_SRC else []
            if flags & (READS_DST | WRITES_DST):
                found.append((range(dst, dst + count), bool(flags & WRITES_DST)))
            return found

        for item in range(end - 1, int(code.blocks[other, FIRST]) - 1, -1):
            for (first, writes), (second, also_writes) in product(operands(number), operands(item)):
                cell = max(first.start, second.start)
                if not (writes or also_writes) or cell >= min(first.stop, second.stop):
                    continue
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
            # Follow who waits for whom, from the first block to a cycle or to a finished block.
            seen: list[int] = []
            block = blocked[0]
            while block not in seen and len(seen) < MAX_REPORTED:
                seen.append(block)
                if run.progress[block, PC] >= self._flat.code.blocks[block + 1, FIRST]:
                    break
                block = self._obstacle(block, run)[1]
            names = ["rank {} block {}".format(*self._flat.block_of(each)) for each in seen]
            chain = f"who waits for whom: {' -> '.join(names)}"
            if block in seen[:-1]:
                first = seen.index(block)
                chain = f"they wait in a circle: {' -> '.join([*names[first:], names[first]])}"
            found[0] = replace(found[0], message=f"{found[0].message}; {chain}")
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a program.

    violations: the rules that the program breaks; empty if it is correct at all sizes that it allows, up to `max_bytes`
    notices:    remarks about a correct program
    max_bytes:  largest vector size in bytes at which the program cannot deadlock with the buffers of its runtime; None:
                no limit
    """

    violations: tuple[ProgramViolation, ...]
    notices: tuple[ProgramViolation, ...] = ()
    max_bytes: int | None = None


def execution_violations(program: Program, max_words: int = MAX_WORDS) -> list[ProgramViolation]:
    """Return the violations that `execution_verdict` finds in `program` if messages may have any size."""
    return list(execution_verdict(program, None, max_words).violations)


def execution_verdict(program: Program, buffer: MessageBuffer | None, max_words: int = MAX_WORDS) -> Verdict:
    """Execute `program`, whose structure must be valid, under several conditions. Stops after a run with a violation.

    The larger the vector, the fewer chunks fit into a message. If `buffer` is given, the program is checked with the
    shortest messages that can occur at its vector sizes. If it deadlocks with these, it is checked with the shortest
    messages that avoid the deadlock, and `max_bytes` is the size of the largest vector with messages of this length.
    Without `buffer`, and for programs that Chorale lowered, the program is checked with messages of one chunk. Longer
    messages cannot cause a deadlock, because they only reduce the number of sends that wait for a slot.

    The search for races uses the shortest messages, because these order the fewest accesses. If there are no races, the
    result depends neither on the order in which blocks run nor on the length of messages.
    O(runs * chunks moved * ranks / 64).

    Args:
        program: The program.
        buffer: Sizes of the runtime's message buffers; None if they do not matter.
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
        most = min(longest, max(runs.longest_message, 1))

        def passes(message_chunks: int) -> bool:
            return all(violation.rule != "deadlock" for violation in runs.run(message_chunks))

        shortest = 1 if passes(1) else 1 + bisect_left(range(1, most + 1), True, key=passes)
        if shortest > most:
            return Verdict(tuple(runs.run(longest)))
        message_chunks = max(shortest, buffer.chunks_at(program.max_bytes, program.chunks))
        max_bytes = buffer.largest_size(shortest, program.chunks)
    violations = runs.with_races(message_chunks)
    return Verdict(tuple(violations), () if violations else tuple(runs.waste), max_bytes)
