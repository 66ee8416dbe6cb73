"""Programs of every method on eight ranks over every transport against the reference.

A job takes a few random programs, runs them some times each, in turn, and ends; transports and options change from job
to job.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from chorale.runners.engine.library import DataType, EngineError, ReduceOp, Work
from chorale.synth.programs.program import Instruction, Op, Program, RankProgram
from tests.live.engine.cases import Case, complaints, random_case
from tests.live.engine.conftest import MakeJob
from tests.live.engine.job import TRANSPORTS, Job
from tests.live.engine.programs import EIGHT, random_program
from tests.unit.synth.lowering.programs import lowered

FEW = ("hypercube:3", "ring:8", "switch:8,10", "degree(ring:4;2)")


PROGRAMS = 4
RUNS = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """One call, and what was wrong with it: nothing, it is hoped."""

    transport: str
    options: dict[str, int]
    program: Program
    case: Case
    complaints: Sequence[str]


def trials(count: int, seed: int, networks: Sequence[str] = EIGHT) -> Iterator[Trial]:
    """Yield `count` trials, the same for the same seed."""
    draw = random.Random(seed)
    done = 0
    for turn in range(count):
        if done >= count:
            return
        transport = TRANSPORTS[turn % len(TRANSPORTS)]
        for trial in _job_trials(draw, transport, networks, min(RUNS, count - done)):
            done += 1
            yield trial


def _job_trials(draw: random.Random, transport: str, networks: Sequence[str], runs: int) -> Iterator[Trial]:
    first = random_program(draw, networks)
    programs = [first] + [random_program(draw, networks) for _ in range(PROGRAMS - 1)]
    ranks = len(first.ranks)
    programs = [program for program in programs if len(program.ranks) == ranks]
    options = _random_options(draw)
    job = Job(ranks, transport, options)
    try:
        numbers = [job.load(program) for program in programs]
        job.connect()
        for _ in range(runs):
            turn = draw.randrange(len(programs))
            case = random_case(programs[turn], draw)
            yield Trial(transport, options, programs[turn], case, _complaints(job, numbers[turn], programs[turn], case))
    finally:
        job.close()


def _complaints(job: Job, number: int, program: Program, case: Case) -> list[str]:
    try:
        return complaints(job, number, program, case)
    except EngineError as error:
        return [f"{error.status.name}: {error} {error.blocked}"]


def _random_options(draw: random.Random) -> dict[str, int]:
    options = {}
    if draw.random() < 0.5:
        options["piece_bytes"] = draw.choice((64, 128, 1024, 100_000))
    if draw.random() < 0.5:
        options["buffer_bytes"] = draw.choice((1, 100, 4096, 65_537))
    return options


def check(count: int, seed: int, networks: tuple[str, ...]) -> None:
    done = list(trials(count, seed, networks))
    assert len(done) == count
    assert [trial for trial in done if trial.complaints] == []
    assert {trial.transport for trial in done} == set(TRANSPORTS)
    assert {trial.case.type for trial in done} == set(DataType)
    assert {trial.case.operation for trial in done} == set(ReduceOp)


@pytest.mark.timeout(300)
def test_random_programs_do_what_the_reference_does() -> None:
    check(300, 20, FEW)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_random_programs_do_what_the_reference_does() -> None:
    check(10_000, 21, EIGHT)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_adds_to_what_is_passed_on_waits_until_it_has_left(make_job: MakeJob, transport: str) -> None:
    """A block adds, keeps and sends what arrives; the next adds to the same bytes, of which some are still to leave."""
    job = make_job(8, transport, {"piece_bytes": 64})
    program = lowered("mesh:2x4", "allreduce", method="recursive-doubling", fuse=True, chunks=5)
    number = job.load(program)
    job.connect()
    assert any(step.op is Op.RECV_REDUCE_COPY_SEND for part in program.ranks for step in steps_of(part))
    for run in range(40):
        inputs = [np.arange(507, dtype=np.int32) * (rank + run) for rank in range(8)]
        arrays = [array.copy() for array in inputs]
        job.run([Work(number, *[int(array.ctypes.data)] * 2, 507, DataType.INT32, ReduceOp.SUM) for array in arrays])
        assert all((array == sum(inputs)).all() for array in arrays)


def steps_of(part: RankProgram) -> list[Instruction]:
    return [step for block in part.blocks for step in block.instructions]
