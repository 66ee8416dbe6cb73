"""What a program or a plan uses: channels, thread blocks, steps, scratch."""

from __future__ import annotations

from dataclasses import dataclass

from synth.lowering.limits import Limits, written_steps
from synth.lowering.plans.plan import Plan
from synth.lowering.program import Program


@dataclass(frozen=True, slots=True)
class Resources:
    """Largest values over the ranks of a program; `steps_max` counts steps as the dialect writes them, of a plan its
    operations."""

    channels: int
    threadblocks_max: int
    steps_max: int
    scratch_chunks_max: int


def resources_of(program: Program, limits: Limits) -> Resources:
    """Return what `program` uses when written in the dialect with `limits`."""
    return Resources(
        channels=program.channels,
        threadblocks_max=max(len(rank.blocks) for rank in program.ranks),
        steps_max=max((written_steps(block, limits) for rank in program.ranks for block in rank.blocks), default=0),
        scratch_chunks_max=max(rank.scratch_chunks for rank in program.ranks),
    )


def resources_of_plan(plan: Plan) -> Resources:
    """Return what `plan` uses."""
    return Resources(
        channels=max(len(body.peers) for body in plan.ranks),
        threadblocks_max=max(len(body.blocks) for body in plan.ranks),
        steps_max=max((len(block.operations) for body in plan.ranks for block in body.blocks), default=0),
        scratch_chunks_max=max(body.scratch_chunks for body in plan.ranks),
    )
