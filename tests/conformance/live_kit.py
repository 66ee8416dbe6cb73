"""What every Runner must do whose ranks are processes of this machine: tell what happened when one goes wrong.

Parametrise a test over `CHECKS` and call `check(factory)`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from chorale.runners.api.base import FailureKind, Outcome, Runner, RunRequest
from tests.conformance.example_programs import with_work
from tests.conformance.runner_kit import GRACE_S, RING, failed, measured, opened, request_of


class LiveRunner(Runner, Protocol):
    """A runner that says which process is which rank; its ranks stay between requests."""

    @property
    def pids(self) -> list[int]: ...


LiveFactory = Callable[[], LiveRunner]


def long_request() -> RunRequest:
    return request_of(RING, size_bytes=2**20, repeats=5000, timeout_s=60.0)


def submit_and_meanwhile(runner: LiveRunner, request: RunRequest, act: Callable[[list[int]], None]) -> Outcome:
    """Submit `request`; as soon as the ranks run, call `act` with their process ids."""
    measured(runner.submit(request_of(RING)))
    timer = threading.Timer(0.3, act, [runner.pids])
    timer.start()
    try:
        return runner.submit(request)
    finally:
        timer.join()


def a_killed_rank_is_a_crash_that_names_it(factory: LiveFactory) -> None:
    with opened(factory) as runner:
        start = time.monotonic()
        outcome = submit_and_meanwhile(runner, long_request(), lambda pids: os.kill(pids[2], signal.SIGKILL))
        failure = failed(outcome, FailureKind.CRASH)
        assert (failure.rank, failure.message) == (2, "rank 2 was killed by SIGKILL"), failure
        assert time.monotonic() - start < 20
        measured(runner.submit(request_of(RING)))


def a_stopped_rank_is_a_timeout_that_names_it(factory: LiveFactory) -> None:
    with opened(factory) as runner:
        request = replace(long_request(), timeout_s=1.0)
        outcome = submit_and_meanwhile(runner, request, lambda pids: os.kill(pids[1], signal.SIGSTOP))
        failure = failed(outcome, FailureKind.TIMEOUT)
        assert failure.rank == 1
        assert "rank 1 does not answer" in failure.message
        measured(runner.submit(request_of(RING)))


def a_rank_far_too_slow_is_a_timeout_that_names_it(factory: LiveFactory) -> None:
    """Rank 2 copies 8 MiB thirty thousand times before it begins; the others wait for it until the limit."""
    with opened(factory) as runner:
        measured(runner.submit(request_of(RING)))
        start = time.monotonic()
        program = with_work(RING, 2, 30_000, 512)
        outcome = runner.submit(request_of(program, size_bytes=2**16, timeout_s=3.0))
        seconds = time.monotonic() - start
        assert failed(outcome, FailureKind.TIMEOUT).rank == 2, outcome
        assert seconds < 3.0 + GRACE_S
        measured(runner.submit(request_of(RING)))


def a_rank_that_is_slow_takes_its_time_and_is_no_failure(factory: LiveFactory) -> None:
    programs = {"quick": RING, "slow": with_work(RING, 2, 500, 256)}
    with opened(factory) as runner:
        request = replace(request_of(RING, size_bytes=2**16), programs=programs)
        results = measured(runner.submit(request)).results
    assert results["slow"][0].min_s > 1.5 * results["quick"][0].min_s


COMPARING = frozenset({a_rank_that_is_slow_takes_its_time_and_is_no_failure})
"""The checks that compare durations: beside nothing else."""

CHECKS: tuple[Callable[[LiveFactory], None], ...] = (
    a_killed_rank_is_a_crash_that_names_it,
    a_stopped_rank_is_a_timeout_that_names_it,
    a_rank_far_too_slow_is_a_timeout_that_names_it,
    a_rank_that_is_slow_takes_its_time_and_is_no_failure,
)
