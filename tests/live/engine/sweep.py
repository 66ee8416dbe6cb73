"""Random programs of every method with random sizes, types and operations against a reference.

    python -m tests.live.engine.sweep --count 10000 --seed 1

A job of eight ranks takes a few programs, runs them some times each, in turn, and ends; transports and options change
from job to job.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chorale.runners.engine.library import EngineError
from chorale.synth.programs.program import Program
from tests.live.engine.cases import Case, complaints, random_case
from tests.live.engine.job import TRANSPORTS, Job
from tests.live.engine.programs import EIGHT, random_program

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
    options = {"checksums": draw.randrange(2)}
    if draw.random() < 0.5:
        options["piece_bytes"] = draw.choice((64, 128, 1024, 100_000))
    if draw.random() < 0.5:
        options["buffer_bytes"] = draw.choice((1, 100, 4096, 65_537))
    return options


def main(arguments: Sequence[str]) -> int:
    """Run trials, report failures and progress; return the number of failures, at most 100."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    started_s, cpu_s, failures = time.monotonic(), time.process_time(), 0
    for done, trial in enumerate(trials(asked.count, asked.seed), 1):
        if trial.complaints:
            failures += 1
            _say(f"{trial.transport} {trial.options} {trial.program.name} {trial.case}: {trial.complaints[:2]}")
        if done % 500 == 0 or done == asked.count:
            times = f"{time.monotonic() - started_s:.0f} s, {time.process_time() - cpu_s:.0f} s of processor"
            _say(f"{done} of {asked.count}: {failures} failures, {times}")
    return min(failures, 100)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
