"""Programs of requests in both forms: instructions, and plans of one-sided operations."""

from __future__ import annotations

from collections.abc import Iterable

from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program

PLAN_ALIGNMENT_BYTES = 16
"""What the executor of MSCCL++ moves at once: pieces of the chunks of plans are multiples of it."""


def only_programs(programs: Iterable[AnyProgram]) -> list[Program]:
    """Return those that consist of instructions."""
    return [program for program in programs if isinstance(program, Program)]


def only_plans(programs: Iterable[AnyProgram]) -> list[ExecutionPlan]:
    """Return those that are plans."""
    return [program for program in programs if isinstance(program, ExecutionPlan)]


def equal_parts(program: AnyProgram, element_bytes: int) -> int:
    """Return into how many equal parts of whole elements a vector must be cut for `program`.

    Its chunks; of a plan the pieces of chunks that blocks share, each a multiple of 16 bytes.
    """
    if not isinstance(program, ExecutionPlan):
        return program.chunks
    return program.chunks * pieces_of_a_chunk(program, 1) * max(1, PLAN_ALIGNMENT_BYTES // element_bytes)


def instruction_name(program: AnyProgram, position: tuple[int, int, int]) -> str:
    """Return what a program calls the instruction at rank, block and step."""
    rank, block, step = position
    if isinstance(program, ExecutionPlan):
        return program.ranks[rank].blocks[block].operations[step].action.value
    assert isinstance(program, Program)
    return str(program.ranks[rank].blocks[block].instructions[step].op)
