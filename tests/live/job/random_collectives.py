"""Random collectives on eight ranks against gloo.

    python -m tests.live.job.random_collectives --count 10000 --seed 1

A job makes PER_JOB calls, a few at a time on several groups, with a table of random programs; the transport changes
from job to job.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import report
from chorale.job.table.layout import TableProgram, table_bytes
from chorale.job.table.verification import table_program
from chorale.job.torch.registration import register
from chorale.runners.engine.library import engine_library
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import target_named
from tests.live.engine.programs import ALLTOALL_METHOD, random_program
from tests.live.job.random_calls import LARGEST_BYTES, Call, Run, random_call
from tests.live.job.torch.tables import SYMMETRIC, Chosen, alltoall_program, program_for, table_of

RANKS = 8
PER_JOB = 1000
LIMIT_S = 120.0
TRANSPORTS = ("engine", "batched")


@dataclass(frozen=True, slots=True)
class Job:
    """One job: where it leaves its files, how many calls it makes, by which transport."""

    folder: Path
    transport: str
    calls: int
    seed: int


def sweep(count: int, seed: int) -> list[str]:
    """Make `count` calls in several jobs; return what went wrong."""
    wrong: list[str] = []
    for turn, first in enumerate(range(0, count, PER_JOB)):
        with tempfile.TemporaryDirectory() as folder:
            transport = TRANSPORTS[(turn + seed) % len(TRANSPORTS)]
            job = Job(Path(folder), transport, min(PER_JOB, count - first), seed * 1000 + turn)
            start = time.monotonic()
            ranks = _played(job, LIMIT_S * 5)
            seconds, place = time.monotonic() - start, f"{transport}, seed {job.seed}"
            wrong += [f"{place}: rank {rank}: {text}" for rank, said in enumerate(ranks) for text in said["complaints"]]
            ran = f"rank 0: {ranks[0].get('programs')} calls by programs, {ranks[0].get('fallbacks')} by gloo"
            _say(f"{first + job.calls} of {count} by {transport}: {len(wrong)} failures, {seconds:.0f} s, {ran}")
    return wrong


def _played(job: Job, limit_s: float) -> list[dict[str, Any]]:
    """Return what each rank leaves; one that does not end in time, or leaves nothing, complains of that."""
    engine_library()  # built once, before there are ranks
    (job.folder / "table").write_bytes(random_table(job.seed))
    processes = [multiprocessing.get_context("fork").Process(target=_rank, args=(job, rank)) for rank in range(RANKS)]
    deadline_s = time.monotonic() + limit_s
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(deadline_s - time.monotonic(), 0))
    finally:
        for process in processes:
            process.kill()
            process.join()
    files = [job.folder / f"{rank}.json" for rank in range(RANKS)]
    nothing = {"complaints": ["does not end, or leaves nothing"]}
    return [json.loads(file.read_text()) if file.exists() else nothing for file in files]


def _rank(job: Job, rank: int) -> None:
    """Be a rank of `job`; leaves FOLDER/RANK.json."""
    torch.set_num_threads(1)
    variables = {"CHORALE_TABLE": str(job.folder / "table"), "CHORALE_TRANSPORT": job.transport}
    os.environ |= variables | {"GLOO_SOCKET_IFNAME": "lo"}
    warnings.simplefilter("ignore", FutureWarning)  # names that torch 2.13 gave up
    register()
    said: dict[str, Any] = {"complaints": []}
    try:
        _calls(job, rank, said["complaints"])
    except Exception as error:  # what a rank says of it is looked at
        said["complaints"].append(f"{type(error).__name__}: {error}")
    counts = report()
    said |= {name: sum(entry["calls"] for entry in counts[name]) for name in ("programs", "fallbacks")}
    (job.folder / f"{rank}.json").write_text(json.dumps(said))


def _calls(job: Job, rank: int, complaints: list[str]) -> None:
    store = dist.FileStore(str(job.folder / "store"), RANKS)
    timeout = timedelta(seconds=LIMIT_S)
    dist.init_process_group("chorale", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    try:
        groups = [dist.new_group(list(members), backend="chorale", timeout=timeout) for members in GROUPS]
        references = [dist.new_group(list(members), backend="gloo", timeout=timeout) for members in GROUPS]
        draw, done = random.Random(job.seed), 0
        while done < job.calls:
            burst = [random_call(draw, GROUPS) for _ in range(min(draw.randint(1, 5), job.calls - done))]
            order = draw.random()
            done += len(burst)
            complaints += _burst([call for call in burst if rank in call.members], rank, groups, references, order)
    finally:
        dist.destroy_process_group()


def _burst(
    calls: Sequence[Call], rank: int, groups: Sequence[Any], references: Sequence[Any], order: float
) -> list[str]:
    """Make calls, wait for them in an order of this rank's own, and compare."""
    runs = [(call, Run(call, rank)) for call in calls]
    for call, run in runs:
        run.start(groups[call.group])
    for _, run in random.Random(f"{order} {rank}").sample(runs, len(runs)):
        run.wait()
    return [f"{call}: {text}" for call, run in runs for text in run.complaints(references[call.group])]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    wrong = sweep(given.count, given.seed)
    for text in wrong[:20]:
        _say(text)
    return min(len(wrong), 100)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


GROUPS = (
    *((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7)),
    *((0, 4), (1, 5), (2, 3, 6)),
)
"""The table has programs for the first ones, and for the last but one; the last is gloo's."""
NETWORKS = ("ring:8", "hypercube:3", "circulant:8,1,3", "torus:4x2")


def random_table(seed: int) -> bytes:
    """Return a table as a file has it, the same for the same seed."""
    draw, chosen = random.Random(seed), list[Chosen]()
    for name in STANDARD:
        border = draw.choice((100, 4000, 30_000))
        first = _of_eight(draw, name)
        chosen.append((first, None, 0, border - 1))
        second = _of_eight(draw, name)
        chosen.append((second, None, border if second.root == first.root else 0, LARGEST_BYTES))
    for group in GROUPS[1:5]:
        chosen += [(program, group, 0, LARGEST_BYTES) for program in _of_four()]
    chosen += [(program, group, 0, LARGEST_BYTES) for group in GROUPS[5:7] for program in _of_two()]
    return table_bytes(table_of("random", 8, chosen))


def _of_eight(draw: random.Random, name: CollectiveName) -> TableProgram:
    methods = [method for method, made in METHODS.items() if name in made.collectives]
    while True:
        program = random_program(draw, NETWORKS, methods or [ALLTOALL_METHOD])
        if program.collective.name == name:
            return table_program(target_named(program.target).emit(program).encode(), program.target, "random", {})


@cache
def _of_four() -> list[TableProgram]:
    symmetric = [program_for(name) for name in SYMMETRIC]
    return [*symmetric, program_for("broadcast", 1), program_for("reduce", 2), alltoall_program()]


@cache
def _of_two() -> list[TableProgram]:
    return [program_for(name, ranks=2) for name in SYMMETRIC]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
