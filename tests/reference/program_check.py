"""The slow check of a program: one object per message and one Python integer per chunk. The reference for
`chorale.synth.programs.check_execution`.
"""

from collections.abc import Iterator
from functools import partial

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import QUEUE_DEPTH, Program, ProgramViolation
from tests.reference.contributions import add, describe, expected_outputs, initial_inputs
from tests.reference.program_interpreter import UNKNOWN, Conditions, ExecutionError, Interpreter
from tests.reference.vector_clocks import HappensBefore

MOST_REPORTED = 20
RANDOM_SEEDS = (1, 2)

Memory = list[list[int | None]]


def execution_violations(program: Program) -> list[ProgramViolation]:
    """Return what goes wrong when the structurally sound `program` runs; the first faulty run ends the check.

    Runs with whole steps as messages and with messages of one chunk, the two extremes of what runtimes do, at the
    queue depth of the protocol; once each with a search for races, then with blocks in other orders. A program
    without races gives the same result and the same deadlocks in every order, so the further orders check the
    checker. O(runs * chunks moved).
    """
    depth = QUEUE_DEPTH[program.protocol]
    for message_chunks in (None, 1):
        found = _race_check(program, Conditions(depth, message_chunks))
        if found:
            return found
    for conditions in _other_orders(depth):
        found = _run(program, conditions, None)
        if found:
            return found
    return []


def _other_orders(depth: int) -> Iterator[Conditions]:
    for message_chunks in (None, 1):
        yield Conditions(depth, message_chunks, "reverse")
        for seed in RANDOM_SEEDS:
            yield Conditions(depth, message_chunks, "random", seed)


def _race_check(program: Program, conditions: Conditions) -> list[ProgramViolation]:
    """Run with a search for races.

    A program that was lowered here orders all accesses by waits within the rank, and is held to that: a missing
    wait is found even where an answer from another rank happens to give the order. Programs from elsewhere may
    rely on such answers. Clocks of one rank are tried first, because they are short.
    """
    found = _run(program, conditions, HappensBefore(program, across_ranks=False))
    races = any(violation.rule == "race" for violation in found)
    if races and not program.origin:
        return _run(program, conditions, HappensBefore(program, across_ranks=True))
    return found


def _run(program: Program, conditions: Conditions, watcher: HappensBefore | None) -> list[ProgramViolation]:
    memory = _initial_memory(program)
    interpreter = Interpreter(program, memory, partial(add, ranks=len(program.ranks)), conditions, watcher)
    try:
        blocked = interpreter.run()
    except ExecutionError as error:
        return [ProgramViolation.at(error.rule, error.message, error.rank, error.block, error.step)]
    if blocked:
        size = "one chunk" if conditions.message_chunks == 1 else "a whole step"
        note = f"; {len(blocked)} blocks hang at queue depth {conditions.depth} with messages of {size}"
        places = blocked[:MOST_REPORTED]
        return [ProgramViolation.at("deadlock", at.reason + note, at.rank, at.block, at.step) for at in places]
    return _compare(program, memory)


def _initial_memory(program: Program) -> Memory:
    """Return the cells of all ranks before the first instruction."""
    memory: Memory = []
    for rank in range(len(program.ranks)):
        layout = layout_of(program, rank)
        cells: list[int | None] = [None] * layout.cells
        inputs = initial_inputs(program, rank)
        cells[layout.input_base : layout.input_base + len(inputs)] = inputs
        memory.append(cells)
    return memory


def _compare(program: Program, memory: Memory) -> list[ProgramViolation]:
    ranks = len(program.ranks)
    found: list[ProgramViolation] = []
    for rank, cells in enumerate(memory):
        layout = layout_of(program, rank)
        regions = [("result", "o", layout.output_base, expected_outputs(program, rank))]
        if not program.in_place:
            regions.append(("input changed", "i", layout.input_base, initial_inputs(program, rank)))
        for rule, buffer, base, expected in regions:
            for chunk, value in enumerate(expected or ()):
                if cells[base + chunk] != value:
                    got, wanted = describe(cells[base + chunk], ranks), describe(value, ranks)
                    message = f"{buffer}[{chunk}] holds {got}, must hold {wanted}"
                    found.append(ProgramViolation.at(_rule(rule, cells[base + chunk]), message, rank))
                    if len(found) >= MOST_REPORTED:
                        return found
    return found


def _rule(rule: str, held: int | None) -> str:
    """Return the rule for a wrong chunk: one of its own where a result comes from what nobody wrote."""
    return "uninitialised" if held == UNKNOWN and rule == "result" else rule
