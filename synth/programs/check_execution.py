"""Executes a program on sets of contributions and compares the result with the collective's definition."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.programs.execution_runs import ExecutionRuns, first_excess
from chorale.synth.programs.interpreter import RANDOM, REVERSE
from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.message_sizes import MOST_CHUNKS, MessageBuffer
from chorale.synth.programs.postconditions import words_of
from chorale.synth.programs.program import Program, ProgramViolation, chunks_moved

MAX_CELLS = 2**25
MAX_WORDS = 2**27
MAX_MOVES = 2**25
RANDOM_SEED = 1


@dataclass(frozen=True, slots=True)
class ExecutionVerdict:
    """What comes of executing a program.

    violations: what goes wrong at the sizes that it may be used for; none where it is right
    notices:    what is right and still worth saying
    max_bytes:  bytes of the largest vector at which it cannot hang, with the buffers of its runtime; None: any
    """

    violations: tuple[ProgramViolation, ...]
    notices: tuple[ProgramViolation, ...] = ()
    max_bytes: int | None = None


def execution_violations(program: Program, max_words: int = MAX_WORDS) -> list[ProgramViolation]:
    """Return what goes wrong when `program` runs with messages of any size; see `execution_verdict`."""
    return list(execution_verdict(program, None, max_words).violations)


def execution_verdict(program: Program, buffer: MessageBuffer | None, max_words: int = MAX_WORDS) -> ExecutionVerdict:
    """Return what happens when the structurally sound `program` runs; the first faulty run ends the check.

    Messages become shorter as vectors grow. With a `buffer` the program is judged at the shortest messages that it may
    meet at its sizes; where it hangs with these, at the shortest with which it does not hang, and `max_bytes` says up
    to which size that is. Without one, and of programs that were lowered here, messages of one chunk are possible at
    every size. Longer messages can only end a deadlock: they take away sends that wait for a slot, and add none.

    Races are looked for with the shortest messages, which give the least order. A program without races has the same
    result and the same deadlocks whichever block goes on first, so the orders of the other runs check the checker.
    O(runs * chunks moved * ranks / 64).

    max_words: limit of memory, in words of 64 ranks; a program beyond it breaks the rule `size`
    """
    excess = _excess(program, max_words)
    runs = None if excess else ExecutionRuns(program, max_words)
    if runs is None or runs.excess:
        return ExecutionVerdict((ProgramViolation.at("size", excess or (runs.excess if runs else "")),))
    if buffer is None or program.origin:
        return _verdict(runs, 1, None)
    return _by_size(program, runs, buffer)


def _by_size(program: Program, runs: ExecutionRuns, buffer: MessageBuffer) -> ExecutionVerdict:
    """Return the verdict at the shortest messages with which `program` does not hang, if it has sizes with these."""
    longest = buffer.chunks_at(max(program.min_bytes, 1), program.chunks)
    shortest = _shortest_without_deadlock(runs, min(longest, max(runs.longest_message, 1)))
    if shortest is None:
        return ExecutionVerdict(tuple(runs.in_order(longest, REVERSE)))
    message_chunks = max(shortest, buffer.chunks_at(program.max_bytes, program.chunks))
    return _verdict(runs, message_chunks, buffer.largest_size(shortest, program.chunks))


def _verdict(runs: ExecutionRuns, message_chunks: int, max_bytes: int | None) -> ExecutionVerdict:
    """Return what happens with messages of `message_chunks` and with whole steps as messages."""
    whole = max(message_chunks, MOST_CHUNKS, runs.longest_message)
    violations = (
        runs.with_races(message_chunks) or runs.in_order(whole, REVERSE) or runs.in_order(whole, RANDOM, RANDOM_SEED)
    )
    return ExecutionVerdict(tuple(violations), () if violations else tuple(runs.waste), max_bytes)


def _shortest_without_deadlock(runs: ExecutionRuns, longest: int) -> int | None:
    """Return the fewest chunks of messages with which the program ends, None where it hangs with `longest`."""
    low, high = 1, longest
    if not _hangs(runs, low):
        return low
    if _hangs(runs, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _hangs(runs, middle) else (low, middle)
    return high


def _hangs(runs: ExecutionRuns, message_chunks: int) -> bool:
    return any(violation.rule == "deadlock" for violation in runs.in_order(message_chunks, REVERSE))


def _excess(program: Program, max_words: int) -> str:
    """Return why `program` is too large to be executed here, "" if it is not."""
    cells = sum(layout_of(program, rank).cells for rank in range(len(program.ranks)))
    return first_excess(
        {
            "chunks of memory on all ranks": (cells, MAX_CELLS),
            "words for sets of ranks": (cells * words_of(program), max_words),
            "chunks moved by all instructions": (chunks_moved(program), MAX_MOVES),
        }
    )
