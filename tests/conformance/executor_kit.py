"""What every Executor must do. Parametrise a test over `CHECKS` and call `check(factory)`.

`factory()` returns a new executor with at least two workers where it has workers; each check closes what it opens.
`WORKER_CHECKS` are for executors whose tasks run in other processes.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor

Factory = Callable[[], Executor]


def add_shared(shared: int, task: int) -> int:
    return shared + task


def late_first(_: None, task: int) -> int:
    """The first tasks take longest, so they finish last where there are several workers."""
    time.sleep(0.2 if task < 2 else 0.0)
    return task


def sum_rows(shared: np.ndarray, task: slice) -> np.ndarray:
    return shared[task].sum(axis=0)


def refuse_negative(_: None, task: int) -> int:
    if task < 0:
        raise InvalidInput("a task must not be negative", task, "use its absolute value")
    return task


def sleep_s(_: None, task: float) -> float:
    time.sleep(task)
    return task


class Counted:
    """Counts in each process how often it was rebuilt there from its pickle."""

    rebuilt = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        Counted.rebuilt += 1
        self.__dict__.update(state)

    def __getstate__(self) -> dict[str, Any]:
        return {"filler": 1}


def times_rebuilt(_: Counted, task: int) -> tuple[int, int]:
    time.sleep(0.01)
    return os.getpid(), Counted.rebuilt


def die_once(shared: tuple[str, set[int]], task: int) -> int:
    """Kill the own process in the middle of the tasks in the set, the first time each is done."""
    folder, fatal = shared
    mark = Path(folder) / str(task)
    if task in fatal and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def check_results_come_in_the_order_of_tasks(factory: Factory) -> None:
    with closing(factory()) as executor:
        assert executor.map(late_first, range(12)) == list(range(12))


def check_every_map_has_its_own_shared_and_arrays_travel(factory: Factory) -> None:
    table = np.arange(300_000).reshape(1000, 300)
    with closing(factory()) as executor:
        for shared in (100, 200, 100):
            assert executor.map(add_shared, range(6), shared) == [shared + task for task in range(6)]
        parts = executor.map(sum_rows, [slice(0, 400), slice(400, 1000)], table)
    assert np.array_equal(sum(parts), table.sum(axis=0))


def check_every_result_arrives_once_before_it_is_counted(factory: Factory) -> None:
    heard: list[tuple[int, int]] = []
    arrived = lambda number, result: heard.append((number, result))  # noqa: E731 (a callback)
    progress = lambda done, total: heard.append((done, total))  # noqa: E731 (a callback)
    with closing(factory()) as executor:
        assert executor.map(add_shared, [], 1, progress, arrived) == heard == []
        assert executor.map(add_shared, range(7), 10, progress, arrived) == list(range(10, 17))
    assert sorted(heard[::2]) == [(number, 10 + number) for number in range(7)]
    assert heard[1::2] == [(done, 7) for done in range(1, 8)]


def check_exception_keeps_its_type_and_the_executor_works_on(factory: Factory) -> None:
    with closing(factory()) as executor:
        with pytest.raises(InvalidInput) as caught:
            executor.map(refuse_negative, [1, 2, -3, 4])
        assert str(caught.value) == "a task must not be negative, got -3; use its absolute value"
        assert executor.map(refuse_negative, [1, 2]) == [1, 2]


def check_interrupt_ends_the_map_soon(factory: Factory) -> None:
    """KeyboardInterrupt cancels what has not started: 100 tasks of 0.3 s must not be waited for."""

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    start_s = time.monotonic()
    with closing(factory()) as executor, pytest.raises(KeyboardInterrupt):
        executor.map(sleep_s, [0.3] * 100, progress=interrupt)
    assert time.monotonic() - start_s < 15


def check_close_twice_and_no_map_afterwards(factory: Factory) -> None:
    with closing(factory()) as executor:
        executor.map(add_shared, [1], 1)
        executor.close()
    with pytest.raises(RuntimeError):
        executor.map(add_shared, [1], 1)


def check_shared_is_sent_once_per_worker(factory: Factory) -> None:
    with closing(factory()) as executor:
        for maps in (1, 2):
            counts = dict(executor.map(times_rebuilt, range(20), Counted()))
            assert os.getpid() not in counts
            assert all(count <= maps for count in counts.values())


def check_killed_workers_are_replaced(factory: Factory) -> None:
    """Workers that kill themselves with SIGKILL in the middle of three tasks change nothing in the results."""
    heard: list[tuple[int, int]] = []
    arrived = lambda number, result: heard.append((number, result))  # noqa: E731 (a callback)
    squares = [task * task for task in range(10)]
    with tempfile.TemporaryDirectory() as folder, closing(factory()) as executor:
        assert executor.map(die_once, range(10), (folder, {0, 4, 9}), on_result=arrived) == squares
        assert sorted(path.name for path in Path(folder).iterdir()) == ["0", "4", "9"]
    assert sorted(heard) == list(enumerate(squares))


CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_results_come_in_the_order_of_tasks,
    check_every_map_has_its_own_shared_and_arrays_travel,
    check_every_result_arrives_once_before_it_is_counted,
    check_exception_keeps_its_type_and_the_executor_works_on,
    check_interrupt_ends_the_map_soon,
    check_close_twice_and_no_map_afterwards,
)
WORKER_CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_shared_is_sent_once_per_worker,
    check_killed_workers_are_replaced,
)
