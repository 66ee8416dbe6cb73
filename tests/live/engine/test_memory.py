"""Which memory of the callers a call reads and writes."""

import numpy as np
import pytest

from chorale.runners.engine.library import DataType, EngineError, ReduceOp, Status, Work
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Program
from tests.live.engine.conftest import MakeJob
from tests.unit.synth.lowering.programs import block, program, step

NOWHERE = 8
"""An address that nobody may touch."""


def reduce_to_first(in_place: bool) -> Program:
    """Rank 1 copies its input to its output and sends that to rank 0, which adds it to its input."""
    place = "s0" if in_place else "o0"
    sender = block(0, None, step("cpy", "i0", place), step("s", place))
    receiver = block(None, 1, step("rrc", "i0", "o0"))
    return program(CollectiveName.REDUCE, 1, [receiver], [sender], scratch=1, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, True])
def test_reduce_writes_at_the_root_only(make_job: MakeJob, in_place: bool) -> None:
    job = make_job(2, "unix")
    number = job.load(reduce_to_first(in_place))
    job.connect()
    inputs = [np.arange(100, dtype=np.int32) + rank for rank in range(2)]
    output, spared = np.zeros(100, np.int32), np.full(100, -7, np.int32)
    for nowhere in (int(spared.ctypes.data), 0, NOWHERE):
        targets = (int(output.ctypes.data), nowhere)
        pairs = zip(inputs, targets, strict=True)
        job.run([Work(number, int(array.ctypes.data), target, 100, DataType.INT32) for array, target in pairs])
        assert (output == inputs[0] + inputs[1]).all()
        assert (spared == -7).all()
        assert (inputs[1] == np.arange(100) + 1).all()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("input_address", [0, NOWHERE])
def test_broadcast_reads_at_the_root_only(make_job: MakeJob, in_place: bool, input_address: int) -> None:
    job = make_job(2, "shm")
    sender = block(1, None, *([] if in_place else [step("cpy", "i0", "o0")]), step("s", "i0"))
    receiver = block(None, 0, step("r", "o0"))
    number = job.load(program(CollectiveName.BROADCAST, 1, [sender], [receiver], in_place=in_place))
    job.connect()
    source, outputs = np.arange(77, dtype=np.float64), np.zeros((2, 77))
    pairs = zip((int(source.ctypes.data), input_address), outputs, strict=True)
    job.run([Work(number, address, int(output.ctypes.data), 77, DataType.FLOAT64) for address, output in pairs])
    assert (outputs == source).all()


def test_sizes_beyond_all_memory_are_refused_and_do_no_harm(make_job: MakeJob) -> None:
    """Products of sizes must not wrap around; and ranks that were refused go on together."""
    job = make_job(2, "unix")
    idle = block(None, None, step("cpy", "i0", "s0"))
    numbers = [job.load(reduce_to_first(False))]
    numbers.append(job.load(program(CollectiveName.REDUCE, 1, [idle], [idle], scratch=2**40)))
    job.connect()
    data = np.ones(4, np.float64)
    address = int(data.ctypes.data)
    for number, elements in ((numbers[0], 2**61), (numbers[0], 2**63), (numbers[1], 2**24)):
        for failure in job.failures(
            lambda rank: job.engines[rank].execute(Work(number, address, address, elements, DataType.FLOAT64))  # noqa: B023
        ):
            assert isinstance(failure, EngineError)
            assert failure.status == Status.INVALID
    with pytest.raises(EngineError):  # one rank only: it must not count a run that the other did not see
        job.engines[0].execute(Work(999, address, address, 4))
    outputs = np.zeros((2, 4))
    job.run([Work(numbers[0], address, int(output.ctypes.data), 4, DataType.FLOAT64) for output in outputs])
    assert (outputs[0] == 2).all()


@pytest.mark.parametrize(
    "change", [{"type": DataType.INT32}, {"operation": ReduceOp.MAX}, {"elements": 8}, {"parts": 2}]
)
def test_ranks_that_call_differently_end_in_an_error(make_job: MakeJob, change: dict[str, object]) -> None:
    """Never in a wrong sum: messages of the same size say nothing of types and operations."""
    job = make_job(2, "tcp")
    number = job.load(reduce_to_first(False))
    job.connect()
    data = np.ones(16, np.float32)
    address, output = int(data.ctypes.data), np.zeros(16, np.float32)
    works = [
        Work(number, address, int(output.ctypes.data), **{"elements": 4, "limit_s": 2.0} | change_)  # type: ignore[arg-type]
        for change_ in ({}, change)
    ]
    first, _ = job.failures(lambda rank: job.engines[rank].execute(works[rank]))
    assert isinstance(first, EngineError)
    assert first.status == Status.GARBAGE
