"""What every Runner must do whose ranks are processes of this machine: tell what happened when one goes wrong.

Parametrise a test over `CHECKS` and call `check(factory)`.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil

from chorale.runners.api.base import FailureKind, Outcome, Runner, RunRequest
from tests.conformance.example_programs import with_work
from tests.conformance.runner_kit import GRACE_S, RING, failed, measured, opened, request_of
from tests.waiting import until


class LiveRunner(Runner, Protocol):
    """A runner that says which process is which rank while it measures, if not longer."""

    @property
    def pids(self) -> list[int]: ...


LiveFactory = Callable[[], LiveRunner]
_before: set[psutil.Process] = set()


def note_children() -> None:
    _before.clear()
    _before.update(psutil.Process().children(recursive=True))


def descendants() -> list[psutil.Process]:
    """Return the living descendants of this process that were not there before the test.

    Not the workers of a Ray cluster that other tests started: those come and go by themselves.
    """
    children = psutil.Process().children(recursive=True)
    nodes = [child for child in children if child in _before and _name(child) == "raylet"]
    workers = {worker for node in nodes for worker in node.children(recursive=True)}
    return [child for child in children if child not in _before and child not in workers]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def long_request() -> RunRequest:
    return request_of(RING, size_bytes=2**20, repeats=5000, timeout_s=60.0)


def submit_and_meanwhile(runner: LiveRunner, request: RunRequest, act: Callable[[list[int]], None]) -> Outcome:
    """Submit `request`; as soon as the ranks run, call `act` with their process ids."""
    measured(runner.submit(request_of(RING)))

    def soon() -> None:
        until(lambda: runner.pids)
        time.sleep(0.5)
        act(runner.pids)

    thread = threading.Thread(target=soon)
    thread.start()
    try:
        return runner.submit(request)
    finally:
        thread.join()


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


def ranks_stay_and_runs_leak_nothing(factory: LiveFactory) -> None:
    own = psutil.Process()
    with opened(factory) as runner:
        measured(runner.submit(request_of(RING)))
        before = runner.pids, own.num_fds(), len(descendants())
        for _ in range(8):
            measured(runner.submit(request_of(RING, warmup=0, repeats=1)))
        assert (runner.pids, own.num_fds(), len(descendants())) == before
    assert own.num_fds() < before[1]
    assert not descendants()


def more_data_than_memory_is_unavailable(factory: LiveFactory) -> None:
    with opened(factory) as runner:
        failure = failed(runner.submit(request_of(RING, size_bytes=2**40)), FailureKind.UNAVAILABLE)
    assert "GB of memory" in failure.message


def the_environment_says_what_matters_and_no_host(factory: LiveFactory) -> None:
    with opened(factory) as runner:
        environment = measured(runner.submit(request_of(RING))).environment
        assert environment["runner"] == runner.name
    assert {"cpu_model", "cores", "kernel", "python", "numpy", "load_average"} <= set(environment)
    assert len(str(environment["environment_id"])) == 64
    assert os.uname().nodename not in map(str, environment.values())


COMPARING = frozenset({a_rank_that_is_slow_takes_its_time_and_is_no_failure})
"""The checks that compare durations: beside nothing else."""

CHECKS: tuple[Callable[[LiveFactory], None], ...] = (
    a_killed_rank_is_a_crash_that_names_it,
    a_stopped_rank_is_a_timeout_that_names_it,
    a_rank_far_too_slow_is_a_timeout_that_names_it,
    a_rank_that_is_slow_takes_its_time_and_is_no_failure,
    ranks_stay_and_runs_leak_nothing,
    more_data_than_memory_is_unavailable,
    the_environment_says_what_matters_and_no_host,
)

OWNER = """
from tests.conformance.live_kit import long_request
from tests.conformance.runner_kit import RING, request_of
{}
runner.submit(request_of(RING))
print(*runner.pids, flush=True)
runner.submit(long_request())
"""


def nothing_outlives_its_owner(make: str, folder: Path, cause: signal.Signals, stopped: int | None) -> None:
    """Run the code `make`, which makes a `runner`, in a process that `cause` ends while it measures.

    folder: for temporary files; stopped: a rank that stands still meanwhile
    """
    environment = dict(os.environ, PYTHONPATH=os.getcwd(), TMPDIR=str(folder))
    command = [sys.executable, "-c", OWNER.format(make)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as owner:  # type: ignore[call-overload]
        ranks = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(ranks) == 4
        family = {*ranks, *psutil.Process(owner.pid).children(recursive=True)}
        assert len(family) > len(ranks)
        if stopped is not None:
            ranks[stopped].suspend()
        time.sleep(0.2)
        owner.send_signal(cause)
        owner.wait(30)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
