"""Says what is behind a wrong result: which part is missing or doubled, where it was last, and what moved it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chorale.synth.programs.columns import chunks_moved
from chorale.synth.programs.memory import BufferShape
from chorale.synth.programs.plain_execution import Done, PlainExecution
from chorale.synth.programs.postconditions import (
    ChunkValues,
    contribution_names,
    custom_of,
    expected_outputs,
    initial_inputs,
)
from chorale.synth.programs.program import Program, ProgramViolation

MAX_MOVES = 2**20
"""Chunks moved by all instructions, beyond which nothing is explained: some seconds of work."""

MAX_EXPLAINED = 5
_WORD = 64

Position = tuple[int, int, int]
"""Rank, block of that rank, step of that block."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is behind a violation, in words, and the instructions that the words are about, in their order."""

    text: str
    positions: tuple[Position, ...]


class _Part(NamedTuple):
    """What a chunk holds: the sum of what `ranks` (a bit each) contribute to chunk `identity`; of a custom collective,
    of the members of family `identity`.

    twice: the ranks that contribute more than once; mixed: whether another chunk was added, which is left out here
    """

    identity: int
    ranks: int
    twice: int = 0
    mixed: bool = False


_NOTHING = _Part(-1, 0)


class _Event(NamedTuple):
    """An instruction that had a chunk in hand: the cell that it put it into, None where it sent it on only."""

    order: int
    block: int
    step: int
    cell: int | None
    part: _Part


def explanations(program: Program, violations: Sequence[ProgramViolation]) -> list[Explanation | None]:
    """Return, for each of `violations` of the structurally sound `program`, what is behind it, None where no more is
    known. The first few wrong chunks are explained. O(chunks moved)."""
    wrong = [v for v in violations if v.rule in ("result", "reduction") and v.rank is not None][:MAX_EXPLAINED]
    if not wrong or chunks_moved(program) > MAX_MOVES:
        return [None] * len(violations)
    history = _History(program)
    history.run()
    return [history.explain(violation) if violation in wrong else None for violation in violations]


class _History(PlainExecution[_Part]):
    """A run that remembers which instruction had which chunk in hand, and what was in memory before."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        shape = BufferShape(program.collective.name, program.chunks, len(program.ranks), program.in_place)
        self._identities = shape.identities
        self._events: dict[int, list[_Event]] = {}
        self._writes: dict[int, list[_Event]] = {}
        self._count = 0
        self._origins: dict[tuple[int, int], int] = {}
        self._sums: dict[tuple[int, int], tuple[Done[_Part], list[tuple[int, int] | None]]] = {}
        for rank, layout in enumerate(self.layouts):
            first = self.first_cell[rank] + layout.input_base
            parts = _parts(program, initial_inputs(program, rank), rank)
            self.memory[first : first + len(parts)] = parts
            self._origins.update(
                ((part.identity, member), first + k) for k, part in enumerate(parts) for member in _bits(part.ranks)
            )

    def sum_of(self, value: _Part, other: _Part) -> _Part:
        """Return the union of the contributions; those of another chunk are left out."""
        if value.identity != other.identity:
            return value._replace(mixed=True)
        twice = value.twice | other.twice | value.ranks & other.ranks
        return _Part(value.identity, value.ranks | other.ranks, twice, value.mixed or other.mixed)

    def note(self, done: Done[_Part]) -> None:
        """Remember the chunks that an instruction had in hand, and who wrote before what it writes."""
        cells = [None if done.target is None else done.target + k for k in range(len(done.values))]
        writers = [None if cell is None else self._last_write(cell) for cell in cells]
        if any(part is not None and (part.twice or part.mixed) for part in done.values):
            self._sums[done.block, done.step] = (done, writers)
        for cell, part in zip(cells, done.values, strict=True):
            self._count += 1
            event = _Event(self._count, done.block, done.step, cell, part or _NOTHING)
            if part is not None:
                self._events.setdefault(part.identity, []).append(event)
            if cell is not None:
                self._writes.setdefault(cell, []).append(event)

    def _last_write(self, cell: int) -> tuple[int, int] | None:
        writes = self._writes.get(cell)
        return None if writes is None else (writes[-1].block, writes[-1].step)

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
        wanted = _parts(self.program, expected, None)[violation.chunk]
        cell = self.first_cell[violation.rank] + self.layouts[violation.rank].output_base + violation.chunk
        held = self.memory[cell]
        missing = wanted.ranks & ~(held.ranks if held is not None and held.identity == wanted.identity else 0)
        clauses = [*self._last_writer(cell), *self._last_seen(wanted.identity, missing, violation.rank)]
        positions = dict.fromkeys(position for _, named in clauses for position in named)
        return Explanation("; ".join(text for text, _ in clauses), tuple(positions))

    def _last_writer(self, cell: int) -> Iterator[tuple[str, tuple[Position, ...]]]:
        writer = self._last_write(cell)
        if writer is None:
            yield f"nothing writes {self._cell_name(cell)}", ()
        else:
            position = self.position(*writer)
            yield f"{self._cell_name(cell)} was last written by {_named(position)}", (position,)

    def _last_seen(self, identity: int, missing: int, rank: int) -> Iterator[tuple[str, tuple[Position, ...]]]:
        """Yield how far the parts of a chunk got that are missing, those with the same fate together."""
        fates: dict[tuple[str, tuple[Position, ...]], list[int]] = {}
        for source in _bits(missing):
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
        there = [event for event in events if self.position(event.block, event.step)[0] == rank]
        last = (there or events)[-1]
        position = self.position(last.block, last.step)
        if last.cell is None:
            return f"was last sent by {_named(position)} ({self._receiver(last)})", (position,)
        text = f"got as far as {self._cell_name(last.cell)}, put there by {_named(position)}"
        loss = self._loss(last, source)
        if loss is None:
            return f"{text}, where it still is", (position,)
        return f"{text}, where {_named(loss)} overwrote it", (position, loss)

    def _loss(self, event: _Event, source: int) -> Position | None:
        """Return the first instruction that wrote over what `event` put into memory without that part of it."""
        assert event.cell is not None
        for later in self._writes[event.cell]:
            kept = later.part.identity == event.part.identity and later.part.ranks >> source & 1
            if later.order > event.order and not kept:
                return self.position(later.block, later.step)
        return None

    def _never_read(self, identity: int, source: int) -> tuple[str, tuple[Position, ...]]:
        cell = self._origins[identity, source]
        writes = self._writes.get(cell)
        if not writes:
            return f"never leaves {self._cell_name(cell)}: no instruction reads it", ()
        position = self.position(writes[0].block, writes[0].step)
        return f"is never read: {_named(position)} overwrites {self._cell_name(cell)}, where it was", (position,)

    def _receiver(self, event: _Event) -> str:
        rank, block, _ = self.position(event.block, event.step)
        return f"to rank {self.program.ranks[rank].blocks[block].send_peer}"

    def _summands(self, violation: ProgramViolation) -> Explanation | None:
        """Return where two summands came from that must not be added."""
        assert violation.rank is not None
        if violation.block is None or violation.step is None:
            return None
        key = self.first_block[violation.rank] + violation.block, violation.step
        if key not in self._sums:
            return None
        done, writers = self._sums[key]
        index = next(k for k, part in enumerate(done.values) if part is not None and (part.twice or part.mixed))
        part = done.values[index]
        assert part is not None
        text = "the summands are parts of different chunks"
        if not part.mixed:
            text = f"{self._names(part.identity, list(_bits(part.twice)))} is in both summands"
        positions: list[Position] = []
        for verb, origin in (("one was sent by", done.sender), ("the other was put there by", writers[index])):
            if origin is not None:
                positions.append(self.position(*origin))
                text += f"; {verb} {_named(positions[-1])}"
        return Explanation(text, tuple(positions))

    def _names(self, identity: int, sources: Sequence[int]) -> str:
        """Return what `sources` contribute to chunk `identity`; of custom collectives, members of that family."""
        custom = custom_of(self.program)
        if custom is not None:
            return contribution_names(custom, identity, sources)
        return f"chunk {identity} of {_ranks(sources)}"

    def _cell_name(self, cell: int) -> str:
        """Return rank, buffer and chunk of a cell of the memory of all ranks."""
        rank = next(r for r in range(len(self.layouts)) if cell < self.first_cell[r + 1])
        layout, offset = self.layouts[rank], cell - self.first_cell[rank]
        if offset >= layout.scratch_base:
            return f"s[{offset - layout.scratch_base}] of rank {rank}"
        program = self.program
        outputs = expected_outputs(program, rank)
        count = program.chunks if outputs is None else len(outputs.identity)
        if 0 <= offset - layout.output_base < count:
            return f"o[{offset - layout.output_base}] of rank {rank}"
        return f"i[{offset - layout.input_base}] of rank {rank}"


def _parts(program: Program, values: ChunkValues, owner: int | None) -> list[_Part]:
    """Return `values` as parts; where chunks have one contribution only, that is the `owner`'s, or bit of its own."""
    if values.members.shape[1] == 0 and program.collective.custom is not None:
        return [_Part(int(k), 1) for k in values.identity]
    if values.members.shape[1] == 0:
        share = program.chunks // len(program.ranks) if program.collective.name.value == "allgather" else program.chunks
        return [_Part(int(k), 1 << (int(k) // share if owner is None else owner)) for k in values.identity]
    rows = values.members.tolist()
    masks = [sum(word << _WORD * place for place, word in enumerate(row)) for row in rows]
    return [_Part(int(k), mask) for k, mask in zip(values.identity.tolist(), masks, strict=True)]


def _bits(mask: int) -> Iterable[int]:
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:MAX_EXPLAINED])) + (", ..." if len(ranks) > MAX_EXPLAINED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _named(position: Position) -> str:
    rank, block, step = position
    return f"rank {rank}, block {block}, step {step}"
