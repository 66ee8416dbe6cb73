"""What every Runner must do. Parametrise a test over `CHECKS` and call `check(factory)`.

`factory()` returns a runner, fast enough that 4 KiB on four ranks take well under a second; each check closes what it
opens. Where ranks stay between requests and take long to start, `Lent` lets all checks but `closing_twice_is_harmless`
share one runner: then each also shows that those before it left nothing behind.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, Runner, RunRequest
from chorale.synth.programs.program import Op, Program, ThreadBlock
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import (
    rank_of,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scratch_allreduce_of_pair,
    star_broadcast,
    step,
    with_deadlock,
    with_swapped_offset,
)

Factory = Callable[[], Runner]

RING = ring_allreduce(range(4))
GRACE_S = 30.0


def request_of(program: Program, spec: str = "ring:4", size_bytes: int = 4096, **others: object) -> RunRequest:
    settings = RunRequest(parse_topology(spec), {"program": program}, (size_bytes,), repeats=2, timeout_s=20.0)
    return replace(settings, **others)  # type: ignore[arg-type]


class Lent:
    """A runner that others use after whoever closes it: what it is asked goes on, its closing does not."""

    def __init__(self, runner: Runner) -> None:
        self.name = runner.name
        self.submit, self.library = runner.submit, runner.library

    def close(self) -> None:
        """Leave the runner to the next."""


@contextlib.contextmanager
def opened(factory: Factory) -> Iterator[Runner]:
    runner = factory()
    try:
        yield runner
    finally:
        runner.close()


def measured(outcome: Outcome) -> Measurement:
    assert isinstance(outcome, Measurement), outcome
    return outcome


def failed(outcome: Outcome, kind: FailureKind) -> RunFailure:
    assert isinstance(outcome, RunFailure), outcome
    assert outcome.kind is kind, outcome
    assert outcome.message
    assert "\n" not in outcome.message
    return outcome


def right_programs_give_times(factory: Factory) -> None:
    programs = {
        "in place": (RING, "ring:4"),
        "out of place": (ring_allreduce((0, 1, 2, 3), in_place=False), "ring:4"),
        "allgather": (ring_allgather(4, in_place=True), "ring:4"),
        "allgather out of place": (ring_allgather(4, in_place=False), "ring:4"),
        "reduce_scatter": (ring_reduce_scatter(4), "ring:4"),
        "local steps and scratch": (scratch_allreduce_of_pair(), "complete:2"),
        "messages through other nodes": (star_broadcast(5, root=2), "mesh:5"),
    }
    with opened(factory) as runner:
        for name, (program, spec) in programs.items():
            (result,) = measured(runner.submit(request_of(program, spec))).results["program"]
            assert result.correct, name
            assert len(result.times_s) == 2
            assert result.min_s > 0, name


def every_element_type_is_exact(factory: Factory) -> None:
    """Short types may be rejected."""
    with opened(factory) as runner:
        for dtype in ("float32", "float64", "int32", "int64", "bfloat16", "float16"):
            outcome = runner.submit(request_of(RING, dtype=dtype))
            if isinstance(outcome, RunFailure) and "float16" in dtype:
                assert dtype in failed(outcome, FailureKind.REJECTED).message
            else:
                measured(outcome)


def sizes_that_chunks_do_not_divide_are_rounded_up_and_right(factory: Factory) -> None:
    sizes = {1: 16, 15: 16, 16: 16, 17: 32, 4099: 4112, 65535: 65536}
    with opened(factory) as runner:
        for program in (RING, ring_allgather(4, in_place=False)):
            request = replace(request_of(program), sizes_bytes=tuple(sizes), repeats=1)
            results = measured(runner.submit(request)).results["program"]
            assert {one.requested_bytes: one.size_bytes for one in results} == sizes
            assert all(one.correct for one in results)


def programs_are_measured_side_by_side_at_every_size(factory: Factory) -> None:
    programs = {"forwards": RING, "backwards": ring_allreduce((3, 2, 1, 0)), "double": RING}
    request = replace(request_of(RING), programs=programs, sizes_bytes=(4096, 5000), repeats=3)
    with opened(factory) as runner:
        results = measured(runner.submit(request)).results
    assert list(results) == list(programs)
    for sizes in results.values():
        assert [(one.requested_bytes, one.size_bytes) for one in sizes] == [(4096, 4096), (5000, 5008)]
        assert all(len(one.times_s) == 3 for one in sizes)


def twice_the_data_take_longer(factory: Factory) -> None:
    with opened(factory) as runner:
        request = replace(request_of(RING), sizes_bytes=(2**12, 2**22), repeats=4)
        small, large = measured(runner.submit(request)).results["program"]
    assert large.min_s > 2 * small.min_s


def a_wrong_result_is_noticed(factory: Factory) -> None:
    with opened(factory) as runner:
        failure = failed(runner.submit(request_of(with_swapped_offset(RING, 2))), FailureKind.WRONG_RESULT)
    assert failure.rank == 2


def a_changed_input_is_noticed(factory: Factory) -> None:
    ruin = ThreadBlock(None, None, 0, (step(Op.COPY, "i", 0, source="s"),))
    program = ring_allgather(4, in_place=False)
    first = replace(program.ranks[1], scratch_chunks=1, blocks=(*program.ranks[1].blocks, ruin))
    changed = replace(program, ranks=(program.ranks[0], first, *program.ranks[2:]))
    with opened(factory) as runner:
        failed(runner.submit(request_of(changed)), FailureKind.WRONG_RESULT)


def a_hang_is_a_timeout_that_names_the_blocks(factory: Factory) -> None:
    with opened(factory) as runner:
        measured(runner.submit(request_of(RING)))  # so that ranks that stay have started
        start = time.monotonic()
        outcome = runner.submit(request_of(with_deadlock(RING, 1), timeout_s=3.0))
        seconds = time.monotonic() - start
    failure = failed(outcome, FailureKind.TIMEOUT)
    assert {(1, 1, 0), (1, 2, 0)} <= set(failure.blocked)
    assert "rank 1 block 1 instruction 0" in failure.message
    assert seconds < 3.0 + GRACE_S


def what_cannot_run_is_rejected(factory: Factory) -> None:
    alone = replace(RING, ranks=(*RING.ranks[:3], rank_of()))
    requests = [
        request_of(RING, "ring:5"),
        request_of(RING, dtype="complex64"),
        request_of(alone),
        request_of(replace(RING, max_bytes=1024)),
        request_of(ring_allreduce(range(4)), "uniring:1,4", sizes_bytes=()),
        request_of(RING, library=("no such algorithm",)),
    ]
    with opened(factory) as runner:
        for request in requests:
            failed(runner.submit(request), FailureKind.REJECTED)


def the_next_request_works_after_a_failure(factory: Factory) -> None:
    with opened(factory) as runner:
        for bad in (with_swapped_offset(RING, 0), with_deadlock(RING, 3), replace(RING, ranks=RING.ranks[:3])):
            assert isinstance(runner.submit(request_of(bad, timeout_s=1.0)), RunFailure)
            measured(runner.submit(request_of(RING)))


def another_topology_may_follow(factory: Factory) -> None:
    with opened(factory) as runner:
        measured(runner.submit(request_of(RING)))
        measured(runner.submit(request_of(ring_allreduce(range(3)), "complete:3")))
        measured(runner.submit(request_of(RING)))


def closing_twice_is_harmless(factory: Factory) -> None:
    runner = factory()
    measured(runner.submit(request_of(RING)))
    runner.close()
    runner.close()


COMPARING = frozenset({twice_the_data_take_longer, a_hang_is_a_timeout_that_names_the_blocks})
"""The checks that compare durations or allow a second for a start: with real processes beside nothing else."""

CHECKS: tuple[Callable[[Factory], None], ...] = (
    right_programs_give_times,
    every_element_type_is_exact,
    sizes_that_chunks_do_not_divide_are_rounded_up_and_right,
    programs_are_measured_side_by_side_at_every_size,
    twice_the_data_take_longer,
    a_wrong_result_is_noticed,
    a_changed_input_is_noticed,
    a_hang_is_a_timeout_that_names_the_blocks,
    what_cannot_run_is_rejected,
    the_next_request_works_after_a_failure,
    another_topology_may_follow,
    closing_twice_is_harmless,
)


def traces_say_what_every_step_took(factory: Factory) -> None:
    steps = [
        {(b, s) for b, block in enumerate(part.blocks) for s in range(len(block.instructions))} for part in RING.ranks
    ]
    with opened(factory) as runner:
        request = request_of(RING, repeats=3, sizes_bytes=(4096, 2**16), trace=True)
        outcome = measured(runner.submit(request))
        plain = measured(runner.submit(request_of(RING)))
    assert plain.traces == {}
    (sizes,) = outcome.traces.values()
    for spans, result in zip(sizes, outcome.results["program"], strict=True):
        assert [{(span.block, span.step) for span in spans if span.rank == rank} for rank in range(4)] == steps
        assert sorted(result.times_s)[0] * 0.5 < max(span.end_s for span in spans) <= sorted(result.times_s)[-1]
        assert all(0 < span.ready_s <= span.end_s for span in spans)
        assert all(span.ready_s <= span.start_s <= span.end_s for span in spans if span.start_s)


CHECKS_WITH_TRACES = (*CHECKS, traces_say_what_every_step_took)
"""For runners that execute programs with the engine; others trace nothing."""
