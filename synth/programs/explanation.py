"""Says what is behind a wrong result: which part is missing or doubled, where it was last, and what moved it there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.plain_execution import Done, PlainExecution
from chorale.synth.programs.postconditions import (
    AnyProgram,
    ChunkValues,
    contribution_names,
    custom_of,
    expected_outputs,
    initial_inputs,
)
from chorale.synth.programs.program import Program, ProgramViolation, chunks_moved

MAX_EXPLAINED = 5
_WORD = 64

Position = tuple[int, int, int]
"""Rank, block of that rank, step of that block."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is behind a violation, in words, and the instructions that the words are about, in their order."""

    text: str
    positions: tuple[Position, ...]


class Part(NamedTuple):
    """What a chunk holds: the sum of what `ranks` (a bit each) contribute to chunk `identity`; of a custom collective,
    of the members of family `identity`.

    twice: the ranks that contribute more than once; mixed: whether another chunk was added, which is left out here
    """

    identity: int
    ranks: int
    twice: int = 0
    mixed: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum as one should be: of parts of one chunk, each once."""
        return not (self.twice or self.mixed)


_NOTHING = Part(-1, 0)


def sum_of(value: Part, other: Part) -> Part:
    """Return the union of the contributions; those of another chunk are left out."""
    if value.identity != other.identity:
        return value._replace(mixed=True)
    twice = value.twice | other.twice | value.ranks & other.ranks
    return Part(value.identity, value.ranks | other.ranks, twice, value.mixed or other.mixed)


class _Event(NamedTuple):
    """An instruction that had a chunk in hand: the cell that it put it into, None where it sent it on only, to rank
    `receiver`; `rank` has the cell, or the instruction."""

    order: int
    position: Position
    rank: int
    cell: int | None
    part: Part
    receiver: int | None


class PartHistory:
    """The history of a run of `task`. `cell_name` names a cell of the memory of all ranks."""

    def __init__(self, task: AnyProgram, cell_name: Callable[[int], str]) -> None:
        self._task, self._cell_name = task, cell_name
        self._events: dict[int, list[_Event]] = {}
        self._writes: dict[int, list[_Event]] = {}
        self._count = 0
        self._origins: dict[tuple[int, int], int] = {}

    def begin(self, cell: int, part: Part) -> None:
        """Remember that `cell` holds `part` of an input at the start."""
        for member in bits(part.ranks):
            self._origins.setdefault((part.identity, member), cell)

    def record(
        self, position: Position, part: Part | None, rank: int, *, cell: int | None = None, receiver: int | None = None
    ) -> None:
        """Remember that an instruction had `part` in hand (None: of what was never written), at which `rank`."""
        self._count += 1
        event = _Event(self._count, position, rank, cell, part or _NOTHING, receiver)
        if part is not None:
            self._events.setdefault(part.identity, []).append(event)
        if cell is not None:
            self._writes.setdefault(cell, []).append(event)

    def last_write(self, cell: int) -> Position | None:
        """Return what wrote `cell` last, None for nothing."""
        writes = self._writes.get(cell)
        return None if writes is None else writes[-1].position

    def writers(self, cell: int) -> list[Position]:
        """Return all that wrote `cell`, in the order of the run."""
        return [event.position for event in self._writes.get(cell, ())]

    def wrong_result(self, cell: int, held: Part | None, expected: Part, rank: int) -> Explanation:
        """Return why `cell` of `rank` holds something else than `expected`."""
        missing = expected.ranks & ~(held.ranks if held is not None and held.identity == expected.identity else 0)
        clauses = [*self._last_writer(cell), *self._last_seen(expected.identity, missing, rank)]
        positions = dict.fromkeys(position for _, named in clauses for position in named)
        return Explanation("; ".join(text for text, _ in clauses), tuple(positions))

    def wrong_sum(self, part: Part, origins: Sequence[tuple[str, Position | None]]) -> Explanation:
        """Return why summands must not be added that make `part`; `origins`: where they came from, in words."""
        text = "the summands are parts of different chunks"
        if not part.mixed:
            text = f"{self._names(part.identity, list(bits(part.twice)))} is in both summands"
        positions: list[Position] = []
        for verb, origin in origins:
            if origin is not None:
                positions.append(origin)
                text += f"; {verb} {named(origin)}"
        return Explanation(text, tuple(positions))

    def _last_writer(self, cell: int) -> Iterator[tuple[str, tuple[Position, ...]]]:
        writer = self.last_write(cell)
        if writer is None:
            yield f"nothing writes {self._cell_name(cell)}", ()
        else:
            yield f"{self._cell_name(cell)} was last written by {named(writer)}", (writer,)

    def _last_seen(self, identity: int, missing: int, rank: int) -> Iterator[tuple[str, tuple[Position, ...]]]:
        """Yield how far the parts of a chunk got that are missing, those with the same fate together."""
        fates: dict[tuple[str, tuple[Position, ...]], list[int]] = {}
        for source in bits(missing):
            fates.setdefault(self._fate(identity, source, rank), []).append(source)
        for (text, positions), sources in list(fates.items())[:MAX_EXPLAINED]:
            yield f"{self._names(identity, sources)} {text}", positions
        if len(fates) > MAX_EXPLAINED:
            yield f"and {len(fates) - MAX_EXPLAINED} more parts are missing", ()

    def _fate(self, identity: int, source: int, rank: int) -> tuple[str, tuple[Position, ...]]:
        """Return what became of a part on its way to `rank`, and the instructions that this is about."""
        events = [event for event in self._events.get(identity, []) if event.part.ranks >> source & 1]
        if not events:
            return self._never_read(identity, source)
        last = ([event for event in events if event.rank == rank] or events)[-1]
        if last.cell is None:
            return f"was last sent by {named(last.position)} (to rank {last.receiver})", (last.position,)
        text = f"got as far as {self._cell_name(last.cell)}, put there by {named(last.position)}"
        loss = self._loss(last, source)
        if loss is None:
            return f"{text}, where it still is", (last.position,)
        return f"{text}, where {named(loss)} overwrote it", (last.position, loss)

    def _loss(self, event: _Event, source: int) -> Position | None:
        """Return the first instruction that wrote over what `event` put into memory without that part of it."""
        assert event.cell is not None
        for later in self._writes[event.cell]:
            kept = later.part.identity == event.part.identity and later.part.ranks >> source & 1
            if later.order > event.order and not kept:
                return later.position
        return None

    def _never_read(self, identity: int, source: int) -> tuple[str, tuple[Position, ...]]:
        cell = self._origins[identity, source]
        writes = self._writes.get(cell)
        if not writes:
            return f"never leaves {self._cell_name(cell)}: no instruction reads it", ()
        position = writes[0].position
        return f"is never read: {named(position)} overwrites {self._cell_name(cell)}, where it was", (position,)

    def _names(self, identity: int, sources: Sequence[int]) -> str:
        """Return what `sources` contribute to chunk `identity`; of custom collectives, members of that family."""
        custom = custom_of(self._task)
        if custom is not None:
            return contribution_names(custom, identity, sources)
        return f"chunk {identity} of {_ranks(sources)}"


def parts_of(task: AnyProgram, values: ChunkValues, owner: int | None) -> list[Part]:
    """Return `values` as parts; where chunks have one contribution only, that is the `owner`'s, or bit of its own."""
    if values.members.shape[1] == 0 and task.collective.custom is not None:
        return [Part(int(k), 1) for k in values.identity]
    if values.members.shape[1] == 0:
        share = task.chunks // len(task.ranks) if task.collective.name is CollectiveName.ALLGATHER else task.chunks
        return [Part(int(k), 1 << (int(k) // share if owner is None else owner)) for k in values.identity]
    rows = values.members.tolist()
    masks = [sum(word << _WORD * place for place, word in enumerate(row)) for row in rows]
    return [Part(int(k), mask) for k, mask in zip(values.identity.tolist(), masks, strict=True)]


def other_access(violation: ProgramViolation) -> Explanation | None:
    """Return the other instruction of a race, if `violation` names one."""
    if violation.other is None:
        return None
    return Explanation(f"the other access is by {named(violation.other)}", (violation.other,))


def bits(mask: int) -> Iterable[int]:
    """Return the numbers of the bits that are set."""
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def named(position: Position) -> str:
    """Return a position in words."""
    rank, block, step = position
    return f"rank {rank}, block {block}, step {step}"


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:MAX_EXPLAINED])) + (", ..." if len(ranks) > MAX_EXPLAINED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


MAX_MOVES = 2**20
"""Chunks moved by all instructions, beyond which nothing is explained: some seconds of work."""


def explanations(program: Program, violations: Sequence[ProgramViolation]) -> list[Explanation | None]:
    """Return, for each of `violations` of the structurally sound `program`, what is behind it, None where no more is
    known. The first few wrong chunks are explained. O(chunks moved)."""
    behind = [other_access(violation) for violation in violations]
    wrong = [v for v in violations if v.rule in ("result", "reduction") and v.rank is not None][:MAX_EXPLAINED]
    if not wrong or chunks_moved(program) > MAX_MOVES:
        return behind
    history = _History(program)
    history.run()
    pairs = zip(violations, behind, strict=True)
    return [history.explain(violation) if violation in wrong else known for violation, known in pairs]


class _History(PlainExecution[Part]):
    """A run that remembers which instruction had which chunk in hand, and what was in memory before."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._shape = BufferShape(program.collective.name, program.chunks, len(program.ranks), program.in_place)
        self._parts = PartHistory(program, self._cell_name)
        self._sums: dict[tuple[int, int], tuple[Done[Part], list[Position | None]]] = {}
        for rank, layout in enumerate(self.layouts):
            first = self.first_cell[rank] + layout.input_base
            for cell, part in enumerate(parts_of(program, initial_inputs(program, rank), rank), first):
                self.memory[cell] = part
                self._parts.begin(cell, part)

    def sum_of(self, value: Part, other: Part) -> Part:
        """Return the union of the contributions."""
        return sum_of(value, other)

    def note(self, done: Done[Part]) -> None:
        """Remember the chunks that an instruction had in hand, and who wrote before what it writes."""
        cells = [None if done.target is None else done.target + k for k in range(len(done.values))]
        if any(part is not None and not part.is_sum for part in done.values):
            writers = [None if cell is None else self._parts.last_write(cell) for cell in cells]
            self._sums[done.block, done.step] = (done, writers)
        position = self.position(done.block, done.step)
        receiver = self.program.ranks[position[0]].blocks[position[1]].send_peer
        for cell, part in zip(cells, done.values, strict=True):
            self._parts.record(position, part, position[0], cell=cell, receiver=receiver)

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return what is behind a wrong result or sum."""
        if violation.rule == "result":
            return self._missing(violation)
        return self._summands(violation)

    def _missing(self, violation: ProgramViolation) -> Explanation | None:
        assert violation.rank is not None
        expected = expected_outputs(self.program, violation.rank)
        if expected is None or violation.chunk is None:
            return None
        required = parts_of(self.program, expected, None)[violation.chunk]
        cell = self.first_cell[violation.rank] + self.layouts[violation.rank].output_base + violation.chunk
        return self._parts.wrong_result(cell, self.memory[cell], required, violation.rank)

    def _summands(self, violation: ProgramViolation) -> Explanation | None:
        """Return where two summands came from that must not be added."""
        assert violation.rank is not None
        if violation.block is None or violation.step is None:
            return None
        key = self.first_block[violation.rank] + violation.block, violation.step
        if key not in self._sums:
            return None
        done, writers = self._sums[key]
        index, part = next((k, part) for k, part in enumerate(done.values) if part is not None and not part.is_sum)
        sender = None if done.sender is None else self.position(*done.sender)
        origins = (("one was sent by", sender), ("the other was put there by", writers[index]))
        return self._parts.wrong_sum(part, origins)

    def _cell_name(self, cell: int) -> str:
        """Return rank, buffer and chunk of a cell of the memory of all ranks."""
        rank = next(r for r in range(len(self.layouts)) if cell < self.first_cell[r + 1])
        return cell_name(self._shape, rank, self.layouts[rank], cell - self.first_cell[rank])
