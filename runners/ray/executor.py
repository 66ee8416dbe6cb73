"""The Executor on Ray actors: the same map, on the cores of a whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from chorale.runners.api.workers import Future
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.runners.ray.pool import Call, RayPool, wait_for_results
from chorale.synth.executor.base import OnResult, Progress

Result = TypeVar("Result")

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


class RayExecutor:
    """Maps over a pool of actors, one CPU each, on a local or an existing cluster.

    workers: size of the pool; by default one per free CPU. Actors start with the first map.
    address: of an existing cluster; see `RayCluster`.

    An actor that dies, alone or with its node, is replaced and its tasks are done again; see `RayPool`.
    After an exception or KeyboardInterrupt the pool is thrown away with everything queued in it, and the next
    map starts a new one.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._cluster = RayCluster(address, workers)
        self._workers = workers
        self._pool: RayPool | None = None
        self._maps = 0
        self._closed = False

    def map(
        self,
        function: Callable[[Any, Any], Result],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
        on_result: OnResult | None = None,
    ) -> list[Result]:
        """Return `[function(shared, task) for task in tasks]`; see the port for the contract."""
        if self._closed:
            raise RuntimeError("a closed executor cannot map")
        if not tasks:
            return []
        self._maps += 1
        try:
            pool = self._pool_for(len(tasks))
            function_reference = [ray.put((function, shared))]
            return self._gather(pool, function_reference, tasks, progress, on_result)
        except BaseException:
            self._drop_pool()
            raise

    def close(self) -> None:
        """Stop the actors, and the cluster if this executor started it."""
        self._closed = True
        self._drop_pool()
        self._cluster.close()

    def _gather(
        self,
        pool: RayPool,
        function_reference: list[Any],
        tasks: Sequence[Any],
        progress: Progress | None,
        arrived: OnResult | None,
    ) -> list[Any]:
        """Collect results and keep the pool fed: what is in flight stays bounded, however many tasks there are."""
        calls = ((number, Call("run", (self._maps, function_reference, task))) for number, task in enumerate(tasks))
        numbers = _submitted(pool, islice(calls, pool.size * TASKS_PER_WORKER))
        results: dict[int, Any] = {}
        while len(results) < len(tasks):
            done = wait_for_results([pool])
            for future in done:
                number, completion = numbers.pop(future), future.completion
                if completion.error is not None:
                    raise completion.error
                results[number] = completion.value
                if arrived is not None:
                    arrived(number, completion.value)
                if progress is not None:
                    progress(len(results), len(tasks))
            numbers |= _submitted(pool, islice(calls, len(done)))
        return [results[number] for number in range(len(tasks))]

    def _pool_for(self, useful: int) -> RayPool:
        held = self._pool.size if self._pool is not None else 0
        most = self._workers if self._workers is not None else held + self._cluster.free_cpus
        size = max(1, min(most, useful))
        if self._pool is None:
            self._pool = RayPool(MapWorker, (), size, jobs_per_actor=TASKS_PER_WORKER)
        else:
            self._pool.grow(size)
        return self._pool

    def _drop_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _submitted(pool: RayPool, numbered: Iterable[tuple[int, Call]]) -> dict[Future[Any], int]:
    """Submit calls; return their numbers by their futures."""
    listed = list(numbered)
    futures = pool.submit_all(call for _, call in listed)
    return {future: number for future, (number, _) in zip(futures, listed, strict=True)}
