"""What a program uses: channels, thread blocks, steps, scratch."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.programs.limits import written_steps
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program, columns_of
from chorale.synth.targets.registry import target_named


@dataclass(frozen=True, slots=True)
class Resources:
    """Largest values over the ranks of a program; `steps_max` counts steps as the target writes them, of a plan its
    operations."""

    channels: int
    threadblocks_max: int
    steps_max: int
    scratch_chunks_max: int


def resources_of(program: AnyProgram) -> Resources:
    """Return what `program` uses when written for its target."""
    return Resources(
        channels=program.channels,
        threadblocks_max=max(len(rank.blocks) for rank in program.ranks),
        steps_max=max(_steps(program), default=0),
        scratch_chunks_max=max(rank.scratch_chunks for rank in program.ranks),
    )


def _steps(program: AnyProgram) -> list[int]:
    if isinstance(program, ExecutionPlan):
        return [sum(1 for _ in block.every_operation()) for body in program.ranks for block in body.blocks]
    assert isinstance(program, Program)
    limits = target_named(program.target).limits
    return [int(written_steps(columns_of(rank), limits).max(initial=0)) for rank in program.ranks]
