"""The executor that runs tasks here and now, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from synth.executor.port import Progress

Result = TypeVar("Result")


class SerialExecutor:
    """Runs every task in the caller's process; the reference for all other executors."""

    name = "serial"

    def map(
        self,
        function: Callable[[Any, Any], Result],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
    ) -> list[Result]:
        """Return `[function(shared, task) for task in tasks]`."""
        results = []
        for done, task in enumerate(tasks, start=1):
            results.append(function(shared, task))
            if progress is not None:
                progress(done, len(tasks))
        return results

    def close(self) -> None:
        """Hold nothing, so let go of nothing."""
