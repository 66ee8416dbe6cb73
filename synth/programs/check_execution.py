"""Executes a program on sets of contributions, under several message sizes and orders, and says what goes wrong."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.programs.flat_program import (
    BASE,
    COUNT,
    DST,
    FIRST,
    FIRST_MARK,
    FLAGS,
    FORWARD,
    INCOMING,
    MOVED,
    OTHER_CHUNK,
    OUTGOING,
    PC,
    QUEUE,
    RACE,
    RANDOM,
    READS_DST,
    READS_SRC,
    RECEIVED,
    REVERSE,
    SENT,
    SPAN,
    SPARE_CELLS,
    SRC,
    WRITES_DST,
    Clocks,
    ExecutionState,
    FlatProgram,
    RunConditions,
    flatten,
    no_accesses,
)
from chorale.synth.programs.limits import MOST_CHUNKS, MessageBuffer
from chorale.synth.programs.memory import BufferShape, cell_name, layout_of
from chorale.synth.programs.postconditions import (
    MAX_REPORTED,
    describe,
    initial_inputs,
    result_violations,
    unwritten_values,
    words_of,
)
from chorale.synth.programs.program import QUEUE_DEPTH, Program, ProgramViolation, chunks_moved

MAX_CLOCK_ENTRIES = 2**27


def first_excess(sizes: dict[str, tuple[int, int]]) -> str:
    """Return the first of `sizes`, value and limit by what is counted, that is too large; "" if none is."""
    for what, (value, largest) in sizes.items():
        if value > largest:
            return f"{what}: {value} are more than the {largest} that can be checked"
    return ""


class ExecutionRuns:
    """The runs of one program.

    excess: why it is too large to be run here, "" if it is not
    waste:  what the last run did with chunks that were never written
    """

    def __init__(self, program: Program, max_words: int) -> None:
        self._program = program
        self._flat: FlatProgram = flatten(program)
        self._depth = QUEUE_DEPTH[program.protocol]
        self._words = words_of(program)
        self._layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self.waste: list[ProgramViolation] = []
        self.excess = first_excess(
            {
                "clock entries for blocks and waits": (self._clock_entries(across_ranks=False), MAX_CLOCK_ENTRIES),
                "words for messages": (self._depth * int(self._flat.longest.sum()) * self._words, max_words),
            }
        )

    @cached_property
    def longest_message(self) -> int:
        """Chunks of the longest step that sends."""
        return int(self._flat.longest.max(initial=1))

    def with_races(self, message_chunks: int) -> list[ProgramViolation]:
        """Run with a search for races.

        A program that was lowered here orders all accesses by waits within the rank, and is held to that: a missing
        wait is found even where an answer from another rank happens to give the order. Programs from elsewhere may
        rely on such answers. Clocks of one rank are tried first, because they are short.
        """
        found = self._run(message_chunks, self._clocks(across_ranks=False))
        races = any(violation.rule == "race" for violation in found)
        if races and not self._program.origin and self._clock_entries(across_ranks=True) <= MAX_CLOCK_ENTRIES:
            return self._run(message_chunks, self._clocks(across_ranks=True), across_ranks=True)
        return found

    def in_order(self, message_chunks: int, order: int, seed: int = 0) -> list[ProgramViolation]:
        """Run without a search for races, the blocks in `order`."""
        return self._run(message_chunks, np.zeros((0, 0), dtype=np.int32), order, seed)

    def blocked(self, message_chunks: int) -> list[tuple[int, int]]:
        """Return rank and number of the blocks that do not come to their end."""
        state = self._executed(message_chunks, np.zeros((0, 0), dtype=np.int32), REVERSE, 0, across_ranks=False)
        return [self._place(block, state)[:2] for block in self._unfinished(state).tolist()]

    def _unfinished(self, state: ExecutionState) -> NDArray[np.int64]:
        return np.flatnonzero(state.progress[:, PC] < self._flat.code.blocks[1:, FIRST])

    def _clock_entries(self, across_ranks: bool) -> int:
        rows, width = self._clock_shape(across_ranks)
        return rows * width

    def _clock_shape(self, across_ranks: bool) -> tuple[int, int]:
        blocks = self._flat.first_block[-1]
        if across_ranks:
            return blocks + self._flat.waited + self._depth * len(self._flat.longest), blocks
        return blocks + self._flat.waited, int(np.diff(self._flat.first_block).max(initial=1))

    def _clocks(self, across_ranks: bool) -> Clocks:
        return np.zeros(self._clock_shape(across_ranks), dtype=np.int32)

    def _run(
        self, message_chunks: int, clocks: Clocks, order: int = FORWARD, seed: int = 0, across_ranks: bool = False
    ) -> list[ProgramViolation]:
        state = self._executed(message_chunks, clocks, order, seed, across_ranks)
        if state.fault[0]:
            return [self._faulty(state)]
        self.waste = self._wasted(state)
        return self._deadlock(state, message_chunks) or self._result(state)

    def _executed(
        self, message_chunks: int, clocks: Clocks, order: int, seed: int, across_ranks: bool
    ) -> ExecutionState:
        flat = self._flat
        blocks = flat.first_block[-1]
        conditions = RunConditions(self._depth, message_chunks, order, seed, blocks, blocks + flat.waited)
        code = flat.code
        if across_ranks:
            alone = code.blocks.copy()
            alone[:, BASE] = 0
            code = code._replace(blocks=alone)
        state = self._initial_state(message_chunks, clocks)
        native.execute(code, state, conditions, flat.first_cell[-1])
        return state

    def _result(self, state: ExecutionState) -> list[ProgramViolation]:
        """Return what is wrong in the memory of a run that came to its end."""
        found = result_violations(self._program, self._layouts, self._flat.first_cell, state.values)
        return [self._unwritten(violation, state) for violation in found]

    def _unwritten(self, violation: ProgramViolation, state: ExecutionState) -> ProgramViolation:
        """Return `violation`, under a rule of its own where the result comes from what was never written."""
        if violation.rank is None or violation.chunk is None:
            return violation
        cell = self._flat.first_cell[violation.rank] + self._layouts[violation.rank].output_base + violation.chunk
        mark = int(state.values.identity[cell])
        if mark > FIRST_MARK:
            return violation
        at = self._reader(mark)
        origin = f"rank {at[0]}, block {at[1]}, step {at[2]}"
        message = f"{violation.message}; what it holds comes from a chunk that was never written, which {origin} reads"
        return replace(violation, rule="uninitialised", message=message, rank=at[0], block=at[1], step=at[2])

    def _reader(self, mark: int) -> tuple[int, int, int]:
        """Return rank, block and step of the instruction whose mark a chunk carries."""
        item = FIRST_MARK - mark
        block = int(np.searchsorted(self._flat.code.blocks[:, FIRST], item, side="right")) - 1
        rank = int(np.searchsorted(self._flat.first_block, block, side="right")) - 1
        first = int(self._flat.code.blocks[block, FIRST])
        return rank, block - self._flat.first_block[rank], item - first

    def _wasted(self, state: ExecutionState) -> list[ProgramViolation]:
        """Return what the run did with chunks that were never written, by its first such read."""
        identity = state.values.identity[: self._flat.first_cell[-1]]
        marked = identity[identity <= FIRST_MARK]
        if len(marked) == 0:
            return []
        message = (
            f"reads a chunk that was never written; {len(marked)} chunks of memory hold what came of such reads. None "
            "reaches a result, but moving them takes time"
        )
        return [ProgramViolation.at("uninitialised", message, *self._reader(int(marked.max())))]

    def _initial_state(self, message_chunks: int, clocks: Clocks) -> ExecutionState:
        flat, cells = self._flat, self._flat.first_cell[-1]
        spans = np.minimum(flat.longest, message_chunks)
        values = unwritten_values(cells + SPARE_CELLS + self._depth * int(spans.sum()), self._words)
        for rank in range(len(self._program.ranks)):
            inputs = initial_inputs(self._program, rank)
            first = flat.first_cell[rank] + self._layouts[rank].input_base
            values.identity[first : first + len(inputs.identity)] = inputs.identity
            values.members[first : first + len(inputs.identity)] = inputs.members
        progress = np.zeros((flat.first_block[-1], 2), dtype=np.int64)
        progress[:, PC] = flat.code.blocks[:-1, FIRST]
        queues = np.zeros((len(spans), 4), dtype=np.int64)
        queues[:, QUEUE] = cells + SPARE_CELLS + self._depth * (np.cumsum(spans) - spans)
        queues[:, SPAN] = spans
        reads = self._reads() if len(clocks) else 0
        accesses = no_accesses(cells if len(clocks) else 0, reads)
        return ExecutionState(values, progress, queues, clocks, accesses, np.zeros(3, dtype=np.int64))

    def _reads(self) -> int:
        items = self._flat.code.items
        return int(sum(items[(items[:, FLAGS] & flag) > 0, COUNT].sum() for flag in (READS_SRC, READS_DST)))

    def _place(self, block: int, state: ExecutionState) -> tuple[int, int, int]:
        """Return rank, block of that rank, and the step that it stands at."""
        rank = int(np.searchsorted(self._flat.first_block, block, side="right")) - 1
        step = state.progress[block, PC] - self._flat.code.blocks[block, FIRST]
        return rank, block - self._flat.first_block[rank], int(step)

    def _faulty(self, state: ExecutionState) -> ProgramViolation:
        kind, block, other = state.fault.tolist()
        place = self._place(block, state)
        if kind == RACE:
            return self._race(block, other, state)
        value = self._flat.first_cell[-1]
        added, to = (describe(state.values, value + cell, self._program) for cell in range(SPARE_CELLS))
        if kind == OTHER_CHUNK:
            return ProgramViolation.at("reduction", f"adds {added} to {to}", *place)
        return ProgramViolation.at("reduction", f"counts a contribution twice: {added} and {to}", *place)

    def _race(self, block: int, other: int, state: ExecutionState) -> ProgramViolation:
        """Return that the instruction of `block` is in no order with the last one of `other` that meets it."""
        rank, index, step = self._place(block, state)
        first, number = int(self._flat.first_block[rank]), int(state.progress[block, PC])
        end = int(state.progress[other, PC]) + int(state.progress[other, MOVED] > 0)
        for item in range(end - 1, int(self._flat.code.blocks[other, FIRST]) - 1, -1):
            cell = _conflict(self._flat.code.items[number], self._flat.code.items[item])
            if cell is not None:
                behind = rank, other - first, item - int(self._flat.code.blocks[other, FIRST])
                program = self._program
                shape = BufferShape(program.collective.name, program.chunks, len(program.ranks), program.in_place)
                what = cell_name(shape, rank, layout_of(self._program, rank), cell - int(self._flat.first_cell[rank]))
                message = (
                    f"touches {what}, which block {behind[1]} touches too at step {behind[2]}, "
                    "and nothing orders the two"
                )
                return replace(ProgramViolation.at("race", message, rank, index, step), other=behind)
        message = f"touches a chunk that block {other - first} touches too, and nothing orders the two"
        return ProgramViolation.at("race", message, rank, index, step)

    def _deadlock(self, state: ExecutionState, message_chunks: int) -> list[ProgramViolation]:
        blocked = self._unfinished(state)
        size = "one chunk" if message_chunks == 1 else f"at most {message_chunks} chunks"
        note = f"; {len(blocked)} blocks hang at queue depth {self._depth} with messages of {size}"
        shown = blocked[:MAX_REPORTED].tolist()
        found = [
            ProgramViolation.at("deadlock", self._obstacle(block, state)[0] + note, *self._place(block, state))
            for block in shown
        ]
        if found:
            found[0] = replace(found[0], message=f"{found[0].message}; {self._chain(shown[0], state)}")
        return found

    def _obstacle(self, block: int, state: ExecutionState) -> tuple[str, int]:
        """Return what the blocked `block` waits for, and the block that would have to go on."""
        rank, index, step = self._place(block, state)
        instruction = self._program.ranks[rank].blocks[index].instructions[step]
        for wait in instruction.waits:
            other = self._flat.first_block[rank] + wait.block
            if state.progress[other, PC] <= self._flat.code.blocks[other, FIRST] + wait.step:
                return f"waits for step {wait.step} of block {wait.block}", other
        source, target = self._flat.code.blocks[block, [INCOMING, OUTGOING]].tolist()
        if instruction.op.receives and state.queues[source, SENT] == state.queues[source, RECEIVED]:
            return "waits for a message", self._other_end(block, OUTGOING, source)
        return "waits for a free slot to send", self._other_end(block, INCOMING, target)

    def _other_end(self, block: int, end: int, connection: int) -> int:
        """Return the block that has `connection` as its `end`; `block` itself where there is none."""
        users = np.flatnonzero(self._flat.code.blocks[:-1, end] == connection)
        return int(users[0]) if len(users) else block

    def _chain(self, block: int, state: ExecutionState) -> str:
        """Return who waits for whom, from `block` on, until the chain meets itself or a block that has ended."""
        seen: list[int] = []
        while block not in seen and len(seen) < MAX_REPORTED:
            seen.append(block)
            if state.progress[block, PC] >= self._flat.code.blocks[block + 1, FIRST]:
                break
            block = self._obstacle(block, state)[1]
        names = [self._name(at) for at in seen]
        if block in seen and len(seen) > seen.index(block) + 1:
            first = seen.index(block)
            return f"they wait in a circle: {' -> '.join([*names[first:], names[first]])}"
        return f"who waits for whom: {' -> '.join(names)}"

    def _name(self, block: int) -> str:
        rank = int(np.searchsorted(self._flat.first_block, block, side="right")) - 1
        return f"rank {rank} block {block - self._flat.first_block[rank]}"


def _conflict(item: NDArray[np.int64], other: NDArray[np.int64]) -> int | None:
    """Return a cell that two instructions touch, at least one of which writes it; None for none."""
    for first, writes in _operands(item):
        for second, also_writes in _operands(other):
            shared = max(first.start, second.start)
            if (writes or also_writes) and shared < min(first.stop, second.stop):
                return shared
    return None


def _operands(item: NDArray[np.int64]) -> list[tuple[range, bool]]:
    """Return the cells that an instruction touches, and whether it writes them."""
    flags, count = int(item[FLAGS]), int(item[COUNT])
    found = [(range(int(item[SRC]), int(item[SRC]) + count), False)] if flags & READS_SRC else []
    if flags & (READS_DST | WRITES_DST):
        found.append((range(int(item[DST]), int(item[DST]) + count), bool(flags & WRITES_DST)))
    return found


MAX_CELLS = 2**25
MAX_WORDS = 2**27
MAX_MOVES = 2**25
RANDOM_SEED = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a program.

    violations: the rules that it breaks; none where it is right at sizes up to `max_bytes` and within its own bounds
    notices:    what is right and still worth saying
    max_bytes:  bytes of the largest vector at which it cannot hang, with the buffers of its runtime; None: any
    """

    violations: tuple[ProgramViolation, ...]
    notices: tuple[ProgramViolation, ...] = ()
    max_bytes: int | None = None


def execution_violations(program: Program, max_words: int = MAX_WORDS) -> list[ProgramViolation]:
    """Return what goes wrong when `program` runs with messages of any size; see `execution_verdict`."""
    return list(execution_verdict(program, None, max_words).violations)


def execution_verdict(program: Program, buffer: MessageBuffer | None, max_words: int = MAX_WORDS) -> Verdict:
    """Return what happens when the structurally sound `program` runs; the first faulty run ends the check.

    Messages become shorter as vectors grow. With a `buffer` the program is judged at the shortest messages that it may
    meet at its sizes; where it hangs with these, at the shortest with which it does not hang, and `max_bytes` says up
    to which size that is. Without one, and of programs that were lowered here, messages of one chunk are possible at
    every size. Longer messages can only end a deadlock: they take away sends that wait for a slot, and add none.

    Races are looked for with the shortest messages, which give the least order. A program without races has the same
    result and the same deadlocks whichever block goes on first, so the orders of the other runs check the checker.
    O(runs * chunks moved * ranks / 64).

    max_words: limit of memory, in words of 64 ranks; a program beyond it breaks the rule `size`
    """
    excess = _excess(program, max_words)
    runs = None if excess else ExecutionRuns(program, max_words)
    if runs is None or runs.excess:
        return Verdict((ProgramViolation.at("size", excess or (runs.excess if runs else "")),))
    if buffer is None or program.origin:
        return _verdict(runs, 1, None)
    return _by_size(program, runs, buffer)


def _by_size(program: Program, runs: ExecutionRuns, buffer: MessageBuffer) -> Verdict:
    """Return the verdict at the shortest messages with which `program` does not hang, if it has sizes with these."""
    longest = buffer.chunks_at(max(program.min_bytes, 1), program.chunks)
    shortest = _shortest_without_deadlock(runs, min(longest, max(runs.longest_message, 1)))
    if shortest is None:
        return Verdict(tuple(runs.in_order(longest, REVERSE)))
    message_chunks = max(shortest, buffer.chunks_at(program.max_bytes, program.chunks))
    return _verdict(runs, message_chunks, buffer.largest_size(shortest, program.chunks))


def _verdict(runs: ExecutionRuns, message_chunks: int, max_bytes: int | None) -> Verdict:
    """Return what happens with messages of `message_chunks` and with whole steps as messages."""
    whole = max(message_chunks, MOST_CHUNKS, runs.longest_message)
    violations = (
        runs.with_races(message_chunks) or runs.in_order(whole, REVERSE) or runs.in_order(whole, RANDOM, RANDOM_SEED)
    )
    return Verdict(tuple(violations), () if violations else tuple(runs.waste), max_bytes)


def _shortest_without_deadlock(runs: ExecutionRuns, longest: int) -> int | None:
    """Return the fewest chunks of messages with which the program ends, None where it hangs with `longest`."""
    low, high = 1, longest
    if not _hangs(runs, low):
        return low
    if _hangs(runs, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _hangs(runs, middle) else (low, middle)
    return high


def _hangs(runs: ExecutionRuns, message_chunks: int) -> bool:
    return any(violation.rule == "deadlock" for violation in runs.in_order(message_chunks, REVERSE))


def _excess(program: Program, max_words: int) -> str:
    """Return why `program` is too large to be executed here, "" if it is not."""
    cells = sum(layout_of(program, rank).cells for rank in range(len(program.ranks)))
    return first_excess(
        {
            "chunks of memory on all ranks": (cells, MAX_CELLS),
            "words for sets of ranks": (cells * words_of(program), max_words),
            "chunks moved by all instructions": (chunks_moved(program), MAX_MOVES),
        }
    )
