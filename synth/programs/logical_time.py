"""When instructions of a program can be done at the earliest, if each takes one unit and nothing else holds it up."""

from __future__ import annotations

from chorale.synth.programs.plain_execution import Done, PlainExecution
from chorale.synth.programs.program import Program


class LogicalTimes(PlainExecution[int]):
    """A run that counts: an instruction comes after the last of its block, its waits, and the sender of its message.

    times: by block of all blocks, of each instruction that could be done in turn, from 0
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.times: list[list[int]] = [[] for _ in range(self.first_block[-1])]

    def sum_of(self, value: int, other: int) -> int:
        """Return anything; only the order counts."""
        return value + other

    def note(self, done: Done[int]) -> None:
        """Note when an instruction could be done."""
        before = [self.times[done.block][-1]] if self.times[done.block] else []
        if done.sender is not None:
            before.append(self.times[done.sender[0]][done.sender[1]])
        rank, index, _ = self.position(done.block, done.step)
        waits = self.program.ranks[rank].blocks[index].instructions[done.step].waits
        before += [self.times[self.first_block[rank] + wait.block][wait.step] for wait in waits]
        self.times[done.block].append(1 + max(before, default=-1))


def logical_times(program: Program) -> dict[tuple[int, int], list[int]]:
    """Return, by rank and block, when each instruction that can be done is done. O(chunks moved)."""
    run = LogicalTimes(program)
    run.run()
    positions = (run.position(block, 0) for block in range(len(run.times)))
    return {(rank, index): times for (rank, index, _), times in zip(positions, run.times, strict=True)}
