"""Whether a program ran: what logs and times say."""

from dataclasses import replace

import pytest

from chorale.runners.msccl.commands import EXECUTOR, MSCCL, RCCL, RUNTIMES, runtime_for
from chorale.runners.msccl.results import log_fault, time_fault
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allreduce

PROGRAM: Program = ring_allreduce(range(4))
HEAD = "gpu07:4711:4790 [3] NCCL INFO "
LOADED = {
    "msccl": HEAD + "Parsed MSCCL Algorithm /job/program.xml successfully.\n" + HEAD + "Connected 1 MSCCL algorithms\n",
    "executor": HEAD + "Using MSCCL Algo files from /job/algorithms\n" + HEAD + "MSCCL: Initialization finished\n",
    "rccl": HEAD + "Using MSCCL files from /job/algorithms\n",
}
CALLS = {
    "executor": HEAD + "MSCCL: Setup Kernel finished, smem 4096\n",
    "rccl": HEAD + "MSCCL: typeMask 3 fnIndex 12 Setup Kernel finished\n",
}


@pytest.mark.parametrize("name", RUNTIMES)
def test_logs_of_a_program_that_ran(name: str) -> None:
    log = LOADED[name] + 4 * CALLS.get(name, "")
    assert log_fault(RUNTIMES[name], [log] * 4, 4, calls=4) is None


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_rank_must_have_taken_the_program(name: str) -> None:
    log = LOADED[name] + 4 * CALLS.get(name, "")
    refused = "gpu07:4711:4790 [3] misc/msccl.cc:141 NCCL WARN MSCCL: algorithm /job/a.xml failed to initialize.\n"
    message = log_fault(RUNTIMES[name], [log, log, refused + HEAD + "Connected 0 MSCCL algorithms", log], 4, calls=4)
    assert message == "only 3 of 4 ranks took the program: MSCCL: algorithm /job/a.xml failed to initialize."
    assert log_fault(RUNTIMES[name], [], 4, calls=4) == "only 0 of 4 ranks took the program: its log does not say why"


@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL])
def test_every_rank_must_have_executed_the_calls_of_all_sizes(runtime: object) -> None:
    assert runtime in (EXECUTOR, RCCL)
    name = "executor" if runtime is EXECUTOR else "rccl"
    right, short = LOADED[name] + 4 * CALLS[name], LOADED[name] + 3 * CALLS[name]
    message = log_fault(RUNTIMES[name], [right, short, right, right], 4, calls=4)
    assert message == "the log of a rank has 3 calls that the program executed, of at least 4"


def test_a_launcher_that_logs_too_is_no_rank() -> None:
    log = LOADED["executor"] + 4 * CALLS["executor"]
    assert log_fault(EXECUTOR, [HEAD + "NCCL version 2.23.4", *[log] * 4], 4, calls=4) is None


def test_times_like_the_librarys_at_every_size_are_a_fall_back() -> None:
    library = {2**20: [100.0, 104.0, 98.0], 2**24: [900.0, 910.0, 905.0]}
    own = {2**20: [101.0, 99.0, 102.0], 2**24: [700.0, 900.0, 710.0]}
    assert time_fault(own, library) is None
    same = time_fault({size: [time * 1.01 for time in times] for size, times in library.items()}, library)
    assert same is not None
    assert "apart by 1MiB 1.0%, 16MiB 1.0%" in same


def test_only_the_oldest_runtime_needs_times_as_evidence() -> None:
    assert [one.name for one in RUNTIMES.values() if one.scheduled is None] == [MSCCL.name]
    assert runtime_for("msccl", _of("msccl-xml")) is MSCCL
    assert runtime_for(None, _of("msccl-executor-xml")) is EXECUTOR


@pytest.mark.parametrize(("blocks", "fits"), [(64, True), (65, False)])
def test_a_runtime_takes_as_many_thread_blocks_as_it_says(blocks: int, fits: bool) -> None:
    program = _of("msccl-executor-xml")
    last = program.ranks[-1]
    program = replace(program, ranks=(*program.ranks[:-1], replace(last, blocks=last.blocks[:1] * blocks)))
    assert runtime_for("executor", program) is EXECUTOR
    if fits:
        assert runtime_for("rccl", program) is RCCL
    else:
        with pytest.raises(InvalidInput, match="--sm-count 64"):
            runtime_for("rccl", program)


def _of(target: str) -> Program:
    return replace(PROGRAM, target=target)
