"""What a program uses: channels, thread blocks, steps, scratch."""

from __future__ import annotations

from dataclasses import dataclass

from synth.lowering.limits import Limits, written_steps
from synth.lowering.program import Program


@dataclass(frozen=True, slots=True)
class Resources:
    """Largest values over the ranks of a program; `steps_max` counts steps as the dialect writes them."""

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
