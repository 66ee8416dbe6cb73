"""Says what is behind a wrong result: which part is missing or doubled, where it was last, and what moved it there."""

from __future__ import annotations

from collections.abc import Sequence

from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.part_history import (
    MAX_EXPLAINED,
    Explanation,
    Part,
    PartHistory,
    Position,
    other_access,
    parts_of,
    sum_of,
)
from chorale.synth.programs.plain_execution import Done, PlainExecution
from chorale.synth.programs.postconditions import expected_outputs, initial_inputs
from chorale.synth.programs.program import Program, ProgramViolation, chunks_moved

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
