"""Programs give the same bits in every run and over every transport: those that their order of additions says."""

import numpy as np
import pytest

from chorale.runners.engine.library import DataType, ReduceOp, Work
from chorale.synth.programs.additions import OrderOfAdditions, order_of_additions
from chorale.synth.programs.program import Program
from tests.live.engine.conftest import make_job  # noqa: F401 - a fixture
from tests.live.engine.job import TRANSPORTS
from tests.live.engine.reference import many_magnitudes
from tests.unit.synth.lowering.programs import lowered

PER_CHUNK = 1511
RUNS = 8
MADE = (
    ("ring:4", "ring", {"channels": 2}),
    ("hypercube:2", "rabenseifner", {}),
    ("complete:4", "bfb", {"instances": 2, "protocol": "LL", "fuse": True}),
    ("dbt:4", "double-binary-tree", {"chunks": 8}),
    ("ring:8", "swing-latency", {"fuse": True}),
)
*PROGRAMS, DIFFERENT = (lowered(spec, "allreduce", method=method, **options) for spec, method, options in MADE)
"""Of the last, ranks get different bits."""
NAMES = [f"{spec} {method}" for spec, method, _ in MADE]


def predicted(program: Program, elements: int) -> list[np.ndarray]:
    """Return what each rank must have, bit by bit, if the order of additions is what is said of the program."""
    order = order_of_additions(program)
    assert isinstance(order, OrderOfAdditions)
    vectors = [many_magnitudes(rank, elements) for rank in range(len(program.ranks))]
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


@pytest.mark.parametrize("program", [*PROGRAMS, DIFFERENT], ids=NAMES)
def test_all_runs_over_all_transports_have_the_bits_that_the_order_says(make_job, program):  # noqa: F811
    elements = program.chunks * PER_CHUNK
    wanted = [vector.tobytes() for vector in predicted(program, elements)]
    assert (len(set(wanted)) > 1) == (program is DIFFERENT)
    for transport in TRANSPORTS:
        job = make_job(len(program.ranks), transport, {"piece_bytes": 4096})
        number = job.load(program)
        job.connect()
        for run in range(RUNS):
            vectors = [many_magnitudes(rank, elements) for rank in range(len(program.ranks))]
            works = [
                Work(number, *([int(v.ctypes.data)] * 2), elements, DataType.FLOAT32, ReduceOp.SUM, 1 + run % 3)
                for v in vectors
            ]
            job.run(works)
            assert [vector.tobytes() for vector in vectors] == wanted, (transport, run)
