"""Explains wrong results: which contribution is missing or counted twice, and which instruction handled it last."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import cell_name, shape_of
from chorale.synth.programs.plain_execution import Done, PlainExecution
from chorale.synth.programs.postconditions import (
    AnyProgram,
    ChunkValues,
    contribution_names,
    custom_of,
    expected_outputs,
    initial_inputs,
)
from chorale.synth.programs.program import Position, Program, ProgramViolation, chunks_moved

MAX_EXPLAINED = 5
MAX_MOVES = 2**20
"""Programs that move more chunks than this get no explanations, because computing them would take too long."""
_WORD = 64


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a violation: a text, and the positions of the instructions that it mentions, in order."""

    text: str
    positions: tuple[Position, ...]


class Part(NamedTuple):
    """The contents of a chunk: a sum of contributions.

    identity: index of the chunk in the vector; in a custom collective, index of a family of input chunks
    ranks:    bit mask of the contributing ranks; in a custom collective, of the contributing members of the family
    twice:    bit mask of the ranks or members that contribute more than once
    mixed:    whether a chunk with another identity was added by mistake; its contributions are not recorded
    """

    identity: int
    ranks: int
    twice: int = 0
    mixed: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether the sum is valid: all contributions belong to one chunk, and none was added twice."""
        return not (self.twice or self.mixed)


def sum_of(value: Part, other: Part) -> Part:
    """Return the sum of two parts. If they belong to different chunks, the contributions of `other` are left out."""
    if value.identity != other.identity:
        return value._replace(mixed=True)
    twice = value.twice | other.twice | value.ranks & other.ranks
    return Part(value.identity, value.ranks | other.ranks, twice, value.mixed or other.mixed)


class _Event(NamedTuple):
    """One handling of a chunk by an instruction, which stored it in `cell` of `rank` or, if None, only sent it."""

    order: int
    position: Position
    rank: int
    cell: int | None
    part: Part
    receiver: int | None


_Clause = tuple[str, tuple[Position, ...]]
"""A part of an explanation, and the instructions that it mentions."""


class PartHistory:
    """Records what happened to each part during a run of `task`. `cell_name` converts a cell number into a name."""

    def __init__(self, task: AnyProgram, cell_name: Callable[[int], str]) -> None:
        self._task, self._cell_name = task, cell_name
        self._events: dict[int, list[_Event]] = {}  # by identity
        self._writes: dict[int, list[_Event]] = {}  # by cell
        self._count = 0
        self._origins: dict[tuple[int, int], int] = {}

    def begin(self, cell: int, part: Part) -> None:
        """Remember that `cell` initially contains `part` of an input."""
        for member in bits(part.ranks):
            self._origins.setdefault((part.identity, member), cell)

    def record(
        self, position: Position, part: Part | None, rank: int, *, cell: int | None = None, receiver: int | None = None
    ) -> None:
        """Remember that an instruction handled `part`, or a chunk that was never written (None)."""
        self._count += 1
        event = _Event(self._count, position, rank, cell, part or Part(-1, 0), receiver)
        if part is not None:
            self._events.setdefault(part.identity, []).append(event)
        if cell is not None:
            self._writes.setdefault(cell, []).append(event)

    def last_write(self, cell: int) -> Position | None:
        """Return the position of the last instruction that wrote `cell`; None if no instruction did."""
        writes = self._writes.get(cell)
        return None if writes is None else writes[-1].position

    def wrong_result(self, cell: int, held: Part | None, expected: Part, rank: int) -> Explanation:
        """Return why `cell` of `rank` contains something other than `expected`."""
        writer = self.last_write(cell)
        clauses: list[_Clause] = [(f"nothing writes {self._cell_name(cell)}", ())]
        if writer is not None:
            clauses = [(f"{self._cell_name(cell)} was last written by {named(writer)}", (writer,))]
        found = held.ranks if held is not None and held.identity == expected.identity else 0
        fates: dict[_Clause, list[int]] = {}  # parts with the same fate are named together
        for source in bits(expected.ranks & ~found):
            fates.setdefault(self._fate(expected.identity, source, rank), []).append(source)
        for (text, mentioned), sources in list(fates.items())[:MAX_EXPLAINED]:
            clauses.append((f"{self._names(expected.identity, sources)} {text}", mentioned))
        if len(fates) > MAX_EXPLAINED:
            clauses.append((f"and {len(fates) - MAX_EXPLAINED} more parts are missing", ()))
        positions = dict.fromkeys(position for _, mentioned in clauses for position in mentioned)
        return Explanation("; ".join(text for text, _ in clauses), tuple(positions))

    def wrong_sum(self, part: Part, origins: Sequence[tuple[str, Position | None]]) -> Explanation:
        """Explain why the two summands must not be added.

        Args:
            part: The wrong sum.
            origins: For each summand, a phrase such as "one was sent by", and the position of the instruction it came
                from.
        """
        text = "the summands are parts of different chunks"
        if not part.mixed:
            text = f"{self._names(part.identity, list(bits(part.twice)))} is in both summands"
        known = [(verb, origin) for verb, origin in origins if origin is not None]
        text = "; ".join([text, *(f"{verb} {named(origin)}" for verb, origin in known)])
        return Explanation(text, tuple(origin for _, origin in known))

    def _fate(self, identity: int, source: int, rank: int) -> _Clause:
        """Return what happened to a part on its way to `rank`."""
        events = [event for event in self._events.get(identity, []) if event.part.ranks >> source & 1]
        if not events:
            cell = self._origins[identity, source]
            if not self._writes.get(cell):
                return f"never leaves {self._cell_name(cell)}: no instruction reads it", ()
            position = self._writes[cell][0].position
            return f"is never read: {named(position)} overwrites {self._cell_name(cell)}, where it was", (position,)
        last = ([event for event in events if event.rank == rank] or events)[-1]
        if last.cell is None:
            return f"was last sent by {named(last.position)} (to rank {last.receiver})", (last.position,)
        text = f"got as far as {self._cell_name(last.cell)}, put there by {named(last.position)}"
        for later in self._writes[last.cell]:
            is_kept = later.part.identity == last.part.identity and later.part.ranks >> source & 1
            if later.order > last.order and not is_kept:
                return f"{text}, where {named(later.position)} overwrote it", (last.position, later.position)
        return f"{text}, where it still is", (last.position,)

    def _names(self, identity: int, sources: Sequence[int]) -> str:
        """Return a text that names the contributions of `sources` to the chunk `identity`."""
        custom = custom_of(self._task)
        if custom is not None:
            return contribution_names(custom, identity, sources)
        names = ", ".join(map(str, sources[:MAX_EXPLAINED])) + (", ..." if len(sources) > MAX_EXPLAINED else "")
        return f"chunk {identity} of rank{'s' if len(sources) > 1 else ''} {names}"


def parts_of(task: AnyProgram, values: ChunkValues, owner: int | None) -> list[Part]:
    """Return `values` as parts.

    Args:
        task: The program that `values` belong to.
        values: Chunks of one rank.
        owner: The contributing rank if each chunk has exactly one contribution; None to derive it from the chunk index.
    """
    identities = values.identity.tolist()
    if values.members.shape[1]:
        rows = values.members.tolist()
        masks = [sum(word << _WORD * place for place, word in enumerate(row)) for row in rows]
    elif task.collective.custom is not None:
        masks = [1] * len(identities)
    else:
        share = task.chunks // len(task.ranks) if task.collective.name is CollectiveName.ALLGATHER else task.chunks
        masks = [1 << (chunk // share if owner is None else owner) for chunk in identities]
    return [Part(chunk, mask) for chunk, mask in zip(identities, masks, strict=True)]


def other_access(violation: ProgramViolation) -> Explanation | None:
    """Explain a race by naming the other instruction; None if `violation` is not a race."""
    if violation.other is None:
        return None
    return Explanation(f"the other access is by {named(violation.other)}", (violation.other,))


def bits(mask: int) -> Iterable[int]:
    """Return the indices of the bits that are set in `mask`."""
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def named(position: Position) -> str:
    """Return a position in words."""
    return "rank {}, block {}, step {}".format(*position)


def explanations(program: Program, violations: Sequence[ProgramViolation]) -> list[Explanation | None]:
    """Return an explanation for each of `violations`, or None if the cause is not known. O(chunks moved).

    Only the first few wrong chunks are explained.

    Args:
        program: A structurally sound program.
        violations: The violations that the check of `program` found.
    """
    found = [other_access(violation) for violation in violations]
    wrong = [v for v in violations if v.rule in ("result", "reduction") and v.rank is not None][:MAX_EXPLAINED]
    if not wrong or chunks_moved(program) > MAX_MOVES:
        return found
    history = _History(program)
    history.run()
    pairs = zip(violations, found, strict=True)
    return [history.explain(violation) if violation in wrong else known for violation, known in pairs]


class _History(PlainExecution[Part]):
    """Executes a program and records which instruction handled which chunk."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._parts = PartHistory(program, self._cell_name)
        self._sums: dict[Position, tuple[Done[Part], list[Position | None]]] = {}
        for rank, layout in enumerate(self.layouts):
            first = self.first_cell[rank] + layout.input_base
            for cell, part in enumerate(parts_of(program, initial_inputs(program, rank), rank), first):
                self.memory[cell] = part
                self._parts.begin(cell, part)

    def sum_of(self, value: Part, other: Part) -> Part:
        """Return the union of the contributions."""
        return sum_of(value, other)

    def note(self, done: Done[Part]) -> None:
        """Record the chunks that an instruction handled.

        For a wrong sum, also who wrote the cells that it overwrites.
        """
        cells = [None if done.target is None else done.target + k for k in range(len(done.values))]
        if any(part is not None and not part.is_sum for part in done.values):
            writers = [None if cell is None else self._parts.last_write(cell) for cell in cells]
            self._sums[done.position] = (done, writers)
        rank, index, _ = done.position
        receiver = self.program.ranks[rank].blocks[index].send_peer
        for cell, part in zip(cells, done.values, strict=True):
            self._parts.record(done.position, part, rank, cell=cell, receiver=receiver)

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return the cause of a wrong result or sum."""
        rank, position = violation.rank, violation.position
        assert rank is not None
        if violation.rule == "result":
            expected = expected_outputs(self.program, rank)
            if expected is None or violation.chunk is None:
                return None
            cell = self.first_cell[rank] + self.layouts[rank].output_base + violation.chunk
            required = parts_of(self.program, expected, None)[violation.chunk]
            return self._parts.wrong_result(cell, self.memory[cell], required, rank)
        if position not in self._sums:
            return None
        done, writers = self._sums[position]
        index, part = next((k, part) for k, part in enumerate(done.values) if part is not None and not part.is_sum)
        origins = (("one was sent by", done.sender), ("the other was put there by", writers[index]))
        return self._parts.wrong_sum(part, origins)

    def _cell_name(self, cell: int) -> str:
        rank = bisect_right(self.first_cell, cell) - 1
        return cell_name(shape_of(self.program), rank, self.layouts[rank], cell - self.first_cell[rank])
