"""The Executor that runs every task here, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from chorale.synth.executor.base import OnResult, Progress

Result = TypeVar("Result")


class SerialExecutor:
    """Runs tasks in the caller's process; the reference that the others must agree with."""

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
