"""What runs inside the actors of `RayExecutor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chorale.runners.ray.cluster import ray

TASKS_PER_WORKER = 2  # the second one waits in the actor, which hides the round trip


class MapWorker:
    """Runs inside an actor. Keeps the shared value of the current map, so that it is fetched once per worker.

    Arrays in `shared` and in tasks are read-only views of the object store: a function that must write copies.
    """

    def __init__(self) -> None:
        self._map_number = 0
        self._function: Callable[[Any, Any], Any]
        self._shared: Any = None

    def run(self, map_number: int, function_reference: list[Any], task: Any) -> Any:
        if map_number != self._map_number:
            # The reference comes wrapped in a list, so that Ray does not fetch it again for every task.
            self._function, self._shared = ray.get(function_reference[0])
            self._map_number = map_number
        return self._function(self._shared, task)
