"""Defines `Executor`, an interface for running a function on many tasks, and the executor that uses no processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Shared = TypeVar("Shared")

Progress = Callable[[int, int], None]
"""Called with (finished tasks, total tasks) after each finished task, in the caller's process."""

OnResult = Callable[[int, Any], None]
"""Called with a task's index and result as soon as the task has finished, once per task.

Calls happen in the caller's process, in the order in which tasks finish, and before `progress` is called.
"""


class Executor(Protocol):
    """Runs independent tasks in this process, in a pool of processes, or on a cluster.

    Requirements, checked by `tests/conformance/executor_kit.py`:

    - Results are returned in the order of `tasks`, regardless of the order in which tasks finish.
    - `function` is a module-level function that is called as `function(shared, task)`.
    - `shared` is sent once per worker, not once per task, and must not be modified.
    - An exception raised by `function` is raised in the caller with the same type.
    - A worker that dies is replaced and its tasks are repeated, so `function` must be pure.
    - KeyboardInterrupt cancels tasks that have not started. Afterwards, the executor is either usable or closed; it
      never hangs.
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
        """Release the workers. The executor must not be used afterwards. Calling this twice is allowed."""
        ...


class MapExecutor(ABC):
    """Base class of executors. Subclasses implement `finished` to run tasks; `map` returns results in task order."""

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
        """Return `[function(shared, task) for task in tasks]`; see `Executor` for the requirements."""
        if self._closed:
            raise RuntimeError("a closed executor cannot map")
        results: dict[int, Result] = {}
        with closing(self.finished(function, tasks, shared)) as finished:
            for number, result in finished:
                results[number] = result
                if on_result is not None:
                    on_result(number, result)
                if progress is not None:
                    progress(len(results), len(tasks))
        return [results[number] for number in range(len(tasks))]

    @abstractmethod
    def finished(
        self, function: Callable[[Any, Any], Result], tasks: Sequence[Any], shared: Any
    ) -> Generator[tuple[int, Result], None, None]:
        """Yield (index, result) of each task as soon as the task has finished. Ctrl-C closes the generator early."""

    def close(self) -> None:
        """Close the executor: further calls to `map` fail."""
        self._closed = True


class SerialExecutor(MapExecutor):
    """Runs tasks one after another in the caller's process. All other executors must give the same results."""

    name = "serial"

    def finished(
        self, function: Callable[[Any, Any], Result], tasks: Sequence[Any], shared: Any
    ) -> Generator[tuple[int, Result], None, None]:
        for number, task in enumerate(tasks):
            yield number, function(shared, task)
