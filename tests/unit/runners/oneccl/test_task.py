"""The text that the interpreter reads; that it reads it right shows in the live tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorale.runners.api.base import StepSpan
from chorale.runners.api.elements import DataPattern
from chorale.runners.engine.library import DataType, encode_rank
from chorale.runners.oneccl.tasks import (
    START_LIMIT_S,
    InjectedFault,
    RunEntry,
    collect_traces,
    most_steps,
    task_text,
)
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allreduce, scratch_allreduce_of_pair, star_broadcast
from tests.conformance.runner_kit import request_of

ORDER = [RunEntry("program", 0, 0, 8, 2, False), RunEntry("library:ring", None, 0, 10, 1, True)]


def test_a_task_has_the_rank_the_programs_and_the_runs() -> None:
    program = scratch_allreduce_of_pair()
    request = request_of(program, "complete:2", timeout_s=7.5, seed=3)
    words = encode_rank(program.collective, 2, program.chunks, False, 2, program.ranks[1])
    first, second = DataPattern(2, 1, 3), DataPattern(2, 2, 3)
    assert (
        task_text(request, ORDER, 1).split()
        == " ".join(
            f"""
        chorale-task-3 1 2 {DataType.FLOAT32.value} allreduce 0 {START_LIMIT_S} 7.5 1 none 0 0 0
        programs 1
        words {len(words)} {" ".join(map(str, words))}
        runs 2
        0 0 0 8 2 {first.offset} {first.bases} {first.slopes} weights 2 {" ".join(map(str, first.weights()))}
        1 0 0 10 1 {second.offset} {second.bases} {second.slopes} weights 2 {" ".join(map(str, second.weights()))}
        end
        """.split()
        ).split()
    )


@pytest.mark.parametrize(
    ("program", "in_place"),
    [(ring_allreduce(range(2)), 1), (ring_allreduce(range(2), in_place=False), 0), (star_broadcast(2, 0), 1)],
)
def test_the_library_shares_buffers_as_the_first_program_does_and_always_to_broadcast(
    program: Program, in_place: int
) -> None:
    text = task_text(request_of(program, "complete:2"), ORDER, 0)
    assert f" 1 0 {in_place} 10 1 " in text


def test_only_the_rank_to_blame_has_the_fault() -> None:
    request = request_of(ring_allreduce(range(2)), "complete:2")
    fault = InjectedFault(1, "slow", run=4, pause_us=50)
    assert " slow 4 50 0 programs" in task_text(request, ORDER, 1, fault)
    assert " none 0 0 0 programs" in task_text(request, ORDER, 0, fault)


def test_element_types_with_a_small_exact_range_have_small_data() -> None:
    request = request_of(ring_allreduce(range(2)), "complete:2", dtype="bfloat16")
    pattern = DataPattern(2, 1, 0, 2**8)
    assert f" {pattern.offset} {pattern.bases} {pattern.slopes} weights 2 " in task_text(request, ORDER, 0)


def test_traces_are_those_of_the_median_repetition() -> None:
    request = replace(request_of(scratch_allreduce_of_pair(), "complete:2", sizes_bytes=(32,)), trace=True)
    order = [RunEntry("program", 0, 0, 8, 1, number > 0) for number in range(4)]
    texts = [
        "".join(f"{run} 1000 {end} 500 0 0 0 0 1000 0 {end}\n" for run, end in enumerate(ends))
        for ends in ((9000, 4000, 2000, 3000), (9000, 1000, 5000, 3500))
    ]
    ((trace,),) = collect_traces(request, order, texts).values()
    assert (trace.name, trace.size_bytes) == ("program", 32)
    assert trace.time_s == pytest.approx(4e-6)  # of 4, 5 and 3.5 microseconds
    assert trace.ranks[0].steps == (StepSpan(0, 0, 0, 0, 1e-6, 0.0, 4e-6),)
    assert f" 0 0 {most_steps(list(request.programs.values()), 1, order)} programs" in task_text(request, order, 1)
    assert collect_traces(replace(request, trace=False), order, ["", ""]) == {}
