"""Implements Executor with Ray tasks, on all cores of a cluster."""

import uuid
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any, TypeVar

from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import Unavailable
from chorale.synth.executor.base import MapExecutor

Result = TypeVar("Result")

MAX_ATTEMPTS = 4
POLL_S = 1.0
_current: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {}
"""A worker process's cache: id of the last map for which it ran a task -> the map's function and shared value."""


def _call(map_id: str, shared: list[Any], task: Any) -> Any:
    """Run a task of a map. `shared` holds a reference to the map's function and shared value. It is a list, because Ray
    would otherwise fetch them for every task."""
    if map_id not in _current:
        _current.clear()
        _current[map_id] = ray.get(shared[0])
    function, value = _current[map_id]
    return function(value, task)


class RayExecutor(MapExecutor):
    """Implements `Executor` on a local or an existing cluster. Each call is a Ray task with one CPU.

    workers: number of tasks in flight; by default twice the cluster's CPUs, so that no CPU is idle
    address: address of an existing cluster; see `RayCluster`

    If a worker dies, alone or with its node, Ray runs its task again, with at most `MAX_ATTEMPTS` attempts in total.
    Arrays in `shared` and in tasks are read-only views of the object store, so a function must copy an array before it
    changes the array.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        super().__init__()
        self._cluster = RayCluster(address, workers)
        self._workers = workers

    def finished(
        self, function: Callable[[Any, Any], Result], tasks: Sequence[Any], shared: Any
    ) -> Generator[tuple[int, Result], None, None]:
        if not tasks:
            return
        map_id, reference = uuid.uuid4().hex, [ray.put((function, shared))]
        call = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_call)
        calls = ((call.remote(map_id, reference, task), number) for number, task in enumerate(tasks))
        cpus = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        pending = dict(islice(calls, self._workers or 2 * cpus))
        try:
            while pending:
                for reached in ray.wait(list(pending), num_returns=1, timeout=POLL_S)[0]:
                    number, result = pending.pop(reached), _result(reached)
                    pending |= dict(islice(calls, 1))
                    yield number, result
        except BaseException:
            for reached in pending:
                ray.cancel(reached, force=True)
            raise

    def close(self) -> None:
        super().close()
        self._cluster.close()


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        rule = f"a worker must survive its task within {MAX_ATTEMPTS} attempts"
        raise Unavailable(rule, error, "check whether nodes run out of memory, or use fewer workers") from error
