"""Computations on Ray: every end is a value, progress is seen, a dead worker is replaced."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.runners.ray.tasks import RayTaskBackend, TaskFailure, TaskFailureKind
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Progress
from chorale.tuner.service.jobs.job_specs import BoundSpec, SynthesisSpec, memory_estimate
from chorale.tuner.service.jobs.tasks import JobTask, TaskResult, run_task
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]
MEMORY_BYTES = 2**20


def doubled(argument: int, progress: Progress) -> int:
    progress(1, 2)
    return 2 * argument


def refused(argument: str, _progress: Progress) -> None:
    raise InvalidInput("a rule", argument, "a way out")


def broken(_argument: object, _progress: Progress) -> None:
    raise RuntimeError("a bug")


def endless(path: str, _progress: Progress) -> None:
    Path(path).write_text("began")
    while True:
        time.sleep(0.05)


def dies_once(path: str, _progress: Progress) -> str:
    if not Path(path).exists():
        Path(path).write_text("began")
        os._exit(1)
    return "second time"


def in_many_threads(argument: int, progress: Progress) -> int:
    """Reserve much more memory than is used, as busy machines do: stacks of threads, and arrays without content."""
    threading.stack_size(2**26)
    try:
        threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(40)]
        reserved = [np.empty(2**30, np.uint8) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(0)
    return argument + len(reserved)


def too_large(_argument: object, _progress: Progress) -> int:
    held = [np.ones(2**25, np.uint8) for _ in range(64)]
    time.sleep(60)
    return len(held)


@pytest.fixture(scope="module")
def jobs() -> Iterator[RayTaskBackend]:
    jobs = RayTaskBackend(cpus=2)
    yield jobs
    jobs.close()


def value_of(jobs: RayTaskBackend, key: str) -> Any:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if ended := jobs.ended(0.5):
            assert list(ended) == [key]
            return ended[key].value
    raise TimeoutError(key)


@pytest.mark.parametrize(
    ("computation", "argument", "kind", "message"),
    [
        (refused, "value", TaskFailureKind.REFUSED, "a rule, got value; a way out"),
        (broken, None, TaskFailureKind.CRASH, "a bug"),
    ],
)
def test_failures_are_values(
    jobs: RayTaskBackend, computation: Any, argument: Any, kind: TaskFailureKind, message: str
):
    jobs.start("one", computation, argument, MEMORY_BYTES)
    failure = value_of(jobs, "one")
    assert isinstance(failure, TaskFailure)
    assert (failure.kind, str(failure.error)) == (kind, message)


def test_a_result_is_the_value_and_progress_is_pinned_by_key(jobs: RayTaskBackend):
    assert jobs.cpus >= 2
    assert jobs.largest_memory_bytes > 2**28
    jobs.progress()
    jobs.start("seen", doubled, 21, MEMORY_BYTES)
    assert value_of(jobs, "seen") == 42
    seen: dict[str, tuple[int, int]] = {}
    until(lambda: seen or seen.update(jobs.progress()))  # it travels apart from the result, and may come later
    assert seen == {"seen": (1, 2)}


def test_a_running_computation_is_killed_and_one_whose_worker_dies_begins_again(jobs: RayTaskBackend, tmp_path: Path):
    mark = tmp_path / "mark"
    jobs.start("long", endless, str(mark), MEMORY_BYTES)
    until(mark.exists, 60)
    jobs.cancel("long")
    assert value_of(jobs, "long").kind == TaskFailureKind.CANCELLED
    jobs.start("again", dies_once, str(tmp_path / "mark"), MEMORY_BYTES)
    assert value_of(jobs, "again") == "second time"


def test_a_computation_that_takes_too_much_memory_is_stopped_at_once(jobs: RayTaskBackend):
    jobs.start("large", too_large, None, 2**26)
    assert value_of(jobs, "large").kind == TaskFailureKind.MEMORY
    jobs.start("large", doubled, 21, 2**26)
    assert value_of(jobs, "large") == 42


def test_many_mixed_jobs_do_not_fail_by_chance(jobs: RayTaskBackend):
    networks = ("torus:4x4", "circulant:24,3,4", "ring:8", "hypercube:4", "a100:1", "genkautz:3,20", "dbt:8")
    specs = [SynthesisSpec(topology=name, method="auto", collective="allreduce") for name in networks]
    specs += [SynthesisSpec(topology=name, method="bfb") for name in networks[:4]]
    tasks: list[tuple[Any, Any, Any]] = [(run_task, JobTask(spec), TaskResult) for spec in specs]
    tasks += [(run_task, JobTask(BoundSpec(topology=name)), TaskResult) for name in networks]
    tasks += [(in_many_threads, number, int) for number in range(5)]
    expected = {}
    for number in range(200):
        computation, argument, kind = tasks[number % len(tasks)]
        expected[str(number)] = kind
        jobs.start(str(number), computation, argument, memory_estimate(32))
    values: dict[str, Any] = {}

    def all_have_ended() -> bool:
        values.update({key: completion.value for key, completion in jobs.ended(1.0).items()})
        return len(values) == len(expected)

    until(all_have_ended, 500)
    assert {key: value for key, value in values.items() if not isinstance(value, expected[key])} == {}
