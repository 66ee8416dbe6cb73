"""One collective call of all ranks with random sizes, types and memory, held against the reference."""

import random
from dataclasses import dataclass

import numpy as np

from chorale.runners.engine.library import DataType, ReduceOp, Work
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from tests.live.engine.job import Job
from tests.live.engine.reference import (
    DTYPES,
    Array,
    Memory,
    exact_values,
    expected_output,
    input_elements,
    output_elements,
)

LIMIT_S = 4.0
PRIMES = (1, 2, 3, 5, 7, 13, 31, 127, 1009, 4099)


@dataclass(frozen=True, slots=True)
class Case:
    """What all ranks do in one call.

    in_place:    where the callers put input and output, whatever the program does
    shift_bytes: how far memory is from an aligned address
    """

    elements: int
    type: DataType
    operation: ReduceOp
    in_place: bool
    parts: int
    shift_bytes: int
    seed: int


def random_case(program: Program, draw: random.Random, large: float = 0.03) -> Case:
    """Return a case whose element counts are odd ones: none, fewer than chunks, primes, around multiples of chunks."""
    shards = len(program.ranks) if program.collective.name in SPLIT_BY_RANK else 1
    chunks = program.chunks // shards
    around = chunks * draw.choice((1, 2, 3, 17, 64)) + draw.choice((-1, 0, 1))
    count = draw.choice((0, 1, draw.choice(PRIMES), draw.choice(PRIMES), max(around, 0), around * 3, chunks))
    if draw.random() < large:
        count = draw.randrange(20_000, 400_000) // shards
    type_ = draw.choice(tuple(DataType))
    shift = draw.choice((0, 0, DTYPES[type_].itemsize, 1, 3))
    return Case(
        max(count, 0) * shards,
        type_,
        draw.choice(tuple(ReduceOp)),
        draw.random() < 0.5,
        draw.choice((1, 1, 1, 2, 3, 7)),
        shift,
        draw.randrange(2**32),
    )


class RankMemory:
    """Input and output of one rank, in place as NCCL has it, or apart."""

    def __init__(self, program: Program, rank: int, case: Case, values: Array) -> None:
        collective, ranks, dtype = program.collective, len(program.ranks), DTYPES[case.type]
        self.inputs = input_elements(collective, case.elements, ranks)
        self.outputs = output_elements(collective, case.elements, ranks)
        self.values = values
        own = rank * (case.elements // ranks)
        self.input_at = own if case.in_place and collective.name == CollectiveName.ALLGATHER else 0
        self.output_at = own if case.in_place and collective.name == CollectiveName.REDUCE_SCATTER else 0
        room = max(self.inputs, self.outputs) if case.in_place else self.inputs
        self.input = Memory(dtype, room, case.shift_bytes)
        self.output = self.input if case.in_place else Memory(dtype, self.outputs, case.shift_bytes)
        self.input.fill(values, self.input_at)
        self.is_in_place = case.in_place

    def work(self, number: int, case: Case) -> Work:
        size = DTYPES[case.type].itemsize
        first, last = self.input.address + self.input_at * size, self.output.address + self.output_at * size
        return Work(number, first, last, case.elements, case.type, case.operation, case.parts, LIMIT_S)

    def complaint(self, expected: Array | None) -> str:
        if not (self.input.has_guards() and self.output.has_guards()):
            return "writes outside of its memory"
        if not self.is_in_place and self.input.values().tobytes() != self.values.tobytes():
            return "changes its input"
        if expected is None:
            return ""
        result = self.output.values(self.output_at, self.outputs)
        wrong = np.flatnonzero(result != expected)
        return f"{len(wrong)} wrong elements, first {wrong[:3]}" if len(wrong) else ""


def complaints(job: Job, number: int, program: Program, case: Case) -> list[str]:
    """Execute `case` at all ranks; return a line for each rank that ended with something else than it should."""
    ranks, collective = len(program.ranks), program.collective
    random_ = np.random.default_rng(case.seed)
    count = input_elements(collective, case.elements, ranks)
    inputs = [exact_values(case.type, case.operation, count, random_) for _ in range(ranks)]
    memories = [RankMemory(program, rank, case, inputs[rank]) for rank in range(ranks)]
    job.run([memory.work(number, case) for memory in memories])
    found = []
    for rank, memory in enumerate(memories):
        text = memory.complaint(expected_output(collective, inputs, rank, case.type, case.operation))
        if text:
            found.append(f"rank {rank}: {text}")
    return found
