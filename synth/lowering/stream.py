"""A program whose ranks are made one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chorale.synth.lowering.program import Program, RankProgram

EMPTY_RANK = RankProgram(0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class ProgramStream:
    """head: the program without anything in its ranks; make: returns what a rank executes."""

    head: Program
    make_rank: Callable[[int], RankProgram]

    def ranks(self) -> Iterator[RankProgram]:
        """Make one rank after the other."""
        return map(self.make_rank, range(len(self.head.ranks)))
