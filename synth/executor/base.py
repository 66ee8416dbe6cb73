"""The interface `Executor`, which maps a function over picklable tasks, and `SerialExecutor` for this process."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Shared = TypeVar("Shared")

Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all) after each finished task, in the caller's process."""

OnResult = Callable[[int, Any], None]
"""Called with the index of a task in `tasks` and its result as soon as the result is there, in the caller's process and
before `progress`: each task once, in the order in which they finish."""


class Executor(Protocol):
    """Runs independent tasks somewhere: here, in a pool of processes, on a cluster.

    Contract, checked by `tests/conformance/executor_kit.py`:
    results come in the order of `tasks`, whatever order they finish in; `function` is a module-level
    function called as `function(shared, task)`; `shared` travels once per worker, not once per task, and
    must not be written to; an exception raised by `function` reaches the caller with its type; a worker
    that dies is replaced and its tasks are done again, so `function` must be pure; KeyboardInterrupt
    cancels what has not started, and the executor stays usable or is closed, never hangs.
    """

    name: str

    def map(
        self,
        function: Callable[[Any, Any], Result],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
        on_result: OnResult | None = None,
    ) -> list[Result]:
        """Return `[function(shared, task) for task in tasks]`."""
        ...

    def close(self) -> None:
        """Release the workers; the executor must not be used afterwards. Safe to call twice."""
        ...


class SerialExecutor:
    """Runs tasks in the caller's process; other executors must give the same results."""

    name = "serial"

    def __init__(self) -> None:
        self._closed = False

    def map(
        self,
        function: Callable[[Any, Any], Result],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
        on_result: OnResult | None = None,
    ) -> list[Result]:
        """Return `[function(shared, task) for task in tasks]`; see `Executor` for the contract."""
        if self._closed:
            raise RuntimeError("a closed executor cannot map")
        results: list[Result] = []
        for number, task in enumerate(tasks):
            results.append(function(shared, task))
            if on_result is not None:
                on_result(number, results[number])
            if progress is not None:
                progress(len(results), len(tasks))
        return results

    def close(self) -> None:
        """Refuse further calls of `map`."""
        self._closed = True
