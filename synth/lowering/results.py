"""Compares what ranks hold at the end with what the collective says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chorale.synth.lowering.definition import AnyProgram, ChunkValues, describe, expected_outputs, initial_inputs
from chorale.synth.lowering.memory import Layout
from chorale.synth.lowering.violation import ProgramViolation

MAX_REPORTED = 20


def result_violations(
    task: AnyProgram, layouts: Sequence[Layout], first_cell: Sequence[int], memory: ChunkValues
) -> list[ProgramViolation]:
    """Return the chunks of outputs that are not what they must be, and, out of place, of inputs that have changed.

    layouts, first_cell: of each rank, its buffers, and where they begin in `memory`. O(chunks of all ranks).
    """
    found: list[ProgramViolation] = []
    for rank, layout in enumerate(layouts):
        regions = [("result", "o", layout.output_base, expected_outputs(task, rank))]
        if not task.in_place:
            regions.append(("input changed", "i", layout.input_base, initial_inputs(task, rank)))
        for rule, buffer, base, expected in regions:
            if expected is None:
                continue
            first = first_cell[rank] + base
            cells = slice(first, first + len(expected.identity))
            held = ChunkValues(memory.identity[cells], memory.members[cells])
            for chunk in _different(held, expected):
                got, wanted = describe(held, chunk, task), describe(expected, chunk, task)
                found.append(ProgramViolation.at(rule, f"{buffer}[{chunk}] holds {got}, must hold {wanted}", rank))
                if len(found) >= MAX_REPORTED:
                    return found
    return found


def _different(held: ChunkValues, expected: ChunkValues) -> list[int]:
    wrong = (held.identity != expected.identity) | (held.members != expected.members).any(axis=1)
    chunks: list[int] = np.flatnonzero(wrong).tolist()
    return chunks
