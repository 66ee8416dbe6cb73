"""Programs give the same bits in every run, over every transport and at all ranks: those that their order says."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.job.table.verification import table_program
from chorale.runners.engine.library import DataType, ReduceOp, Work
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.additions import OrderOfAdditions, order_of_additions
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from tests.live.engine.conftest import make_job  # noqa: F401 - a fixture
from tests.live.engine.job import TRANSPORTS
from tests.live.job.job_rank import contribution

RANKS = 4
PER_CHUNK = 1511
RUNS = 8
MADE = (
    ("ring:4", "ring", LoweringOptions("oneccl-xml", channels=2)),
    ("hypercube:2", "rabenseifner", LoweringOptions("oneccl-xml")),
    ("complete:4", "bfb", LoweringOptions("oneccl-xml", instances=2, protocol="LL", fuse=True)),
    ("dbt:4", "double-binary-tree", LoweringOptions("oneccl-xml", chunks=8)),
)


def made(spec: str, method: str, options: LoweringOptions) -> Program:
    return lower(synthesize(method, parse_topology(spec), ALLREDUCE, None, SerialExecutor()), options)


PROGRAMS = [made(*arguments) for arguments in MADE]
DIFFERENT = made("ring:8", "swing-latency", LoweringOptions("oneccl-xml", fuse=True))
"""Ranks get different bits."""
NAMES = [f"{spec} {method}" for spec, method, _ in MADE]


def predicted(program: Program, elements: int) -> list[np.ndarray]:
    """Return what each rank must have, bit by bit, if the order of additions is what is said of the program."""
    order = order_of_additions(program)
    assert isinstance(order, OrderOfAdditions)
    vectors = [contribution(rank, elements) for rank in range(len(program.ranks))]
    size = elements // program.chunks
    results = []
    for rank in range(len(program.ranks)):
        result = np.empty(elements, np.float32)
        for chunk, expression in enumerate(order.results[rank]):
            part = slice(chunk * size, (chunk + 1) * size)
            values = [vector[part] for vector in vectors]
            for left, right in order.sums:
                values.append(values[left] + values[right])
            result[part] = values[expression]
        results.append(result)
    return results


@pytest.mark.parametrize("program", [*PROGRAMS, DIFFERENT], ids=[*NAMES, "ring:8 swing-latency"])
def test_all_runs_over_all_transports_have_the_bits_that_the_order_says(make_job, program):  # noqa: F811
    elements = program.chunks * PER_CHUNK
    wanted = [vector.tobytes() for vector in predicted(program, elements)]
    assert (len(set(wanted)) > 1) == (program is DIFFERENT)
    for transport in TRANSPORTS:
        job = make_job(len(program.ranks), transport, {"piece_bytes": 4096})
        number = job.load(program)
        job.connect()
        for run in range(RUNS):
            vectors = [contribution(rank, elements) for rank in range(len(program.ranks))]
            works = [
                Work(number, *([int(v.ctypes.data)] * 2), elements, DataType.FLOAT32, ReduceOp.SUM, 1 + run % 3)
                for v in vectors
            ]
            job.run(works)
            assert [vector.tobytes() for vector in vectors] == wanted, (transport, run)


def the_table() -> Table:
    texts = [target_named("oneccl-xml").emit(program).encode() for program in PROGRAMS]
    programs = [table_program(text, "oneccl-xml", name, {}) for text, name in zip(texts, NAMES, strict=True)]
    entries = tuple(
        JobEntry("allreduce", ANY_DTYPE, None, None, number, number, program.digest)
        for number, program in enumerate(programs)
    )
    return Table({"spec": "ring:4"}, RANKS, entries, {program.digest: program for program in programs})


@contextmanager
def processes(table: Path, elements: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the ranks, each in a process; kill what is left at the end."""
    command = [sys.executable, "-m", "tests.live.job.job_rank", str(table)]
    with ExitStack() as stack:
        started = []
        for rank in range(RANKS):
            words = [*command, str(rank), str(RANKS), str(elements)]
            started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stack.callback(started[-1].kill)
        yield started
        for process in started:
            process.communicate(timeout=60)


def meet(ranks: Sequence[subprocess.Popen[str]]) -> list[list[str]]:
    """Take a line of each rank, give all of them to each, and return them."""
    said = [json.loads(process.stdout.readline()) for process in ranks]
    for process in ranks:
        process.stdin.write(f"{json.dumps(said)}\n")
        process.stdin.flush()
    return said


def test_processes_of_a_job_have_the_bits_that_the_order_says(tmp_path):
    table, path = the_table(), tmp_path / "table"
    path.write_bytes(table_bytes(table))
    elements = 2520 * 8  # what all programs cut without padding
    assert all(elements % program.chunks == 0 for program in PROGRAMS)
    with processes(path, elements) as ranks:
        meet(ranks)
        results = [json.loads(text) for [text] in meet(ranks)]
    for entry, program in zip(table.entries, PROGRAMS, strict=True):
        wanted = [hashlib.sha256(vector.tobytes()).hexdigest() for vector in predicted(program, elements)]
        for rank in range(RANKS):
            assert set(results[rank][entry.program]) == {wanted[rank]}, (program.name, rank)
