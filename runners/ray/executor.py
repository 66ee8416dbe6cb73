"""The Executor on Ray actors: the same map, on the cores of a whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from chorale.runners.api.workers import Future
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.runners.ray.grouped_map import WorkerGroups
from chorale.runners.ray.map_worker import TASKS_PER_WORKER, MapWorker
from chorale.runners.ray.pool import Call, RayPool, wait_for_results
from chorale.synth.executor.base import OnResult, Progress

Result = TypeVar("Result")

MOST_SINGLE = 8
"""Up to so many workers this process calls each: with tasks of 0.1 s it takes 5 % of a core."""
GROUP_SIZE = 32
"""How many workers a leader calls in its place: with tasks of a second it takes 2 % of a core of its node."""


class RayExecutor:
    """Maps over a pool of actors, one CPU each, on a local or an existing cluster.

    workers: size of the pool; by default one per free CPU. Actors start with the first map.
    address: of an existing cluster; see `RayCluster`.
    most_single: above so many workers, groups of at most `group_size` are led by an actor each, which reports results
    once a second (`WorkerGroup`), so that this process exchanges few messages.

    An actor that dies, alone or with its node, is replaced and its tasks are done again; see `RayPool`.
    After an exception or KeyboardInterrupt the pool is thrown away with everything queued in it, and the next
    map starts a new one.
    """

    name = "ray"

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        *,
        group_size: int = GROUP_SIZE,
        most_single: int = MOST_SINGLE,
    ) -> None:
        self._cluster = RayCluster(address, workers)
        self._workers = workers
        self._most_single = most_single
        self._pool: RayPool | None = None
        self._groups = WorkerGroups(group_size)
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
        results: dict[int, Any] = {}

        def arrived(number: int, value: Any) -> None:
            results[number] = value
            if on_result is not None:
                on_result(number, value)
            if progress is not None:
                progress(len(results), len(tasks))

        try:
            size = self._useful_size(len(tasks))
            function_reference = [ray.put((function, shared))]
            if self._groups.size or size > self._most_single:
                self._grown_groups(size).map(self._maps, function_reference, tasks, arrived)
            else:
                self._gather(self._grown_pool(size), function_reference, tasks, arrived)
        except BaseException:
            self._drop_actors()
            raise
        return [results[number] for number in range(len(tasks))]

    def close(self) -> None:
        """Stop the actors, and the cluster if this executor started it."""
        self._closed = True
        self._drop_actors()
        self._cluster.close()

    def _gather(
        self, pool: RayPool, function_reference: list[Any], tasks: Sequence[Any], arrived: Callable[[int, Any], None]
    ) -> None:
        """Collect results and keep the pool fed: what is in flight stays bounded, however many tasks there are."""
        calls = ((number, Call("run", (self._maps, function_reference, task))) for number, task in enumerate(tasks))
        numbers = _submitted(pool, islice(calls, pool.size * TASKS_PER_WORKER))
        while numbers:
            done = wait_for_results([pool])
            for future in done:
                number, completion = numbers.pop(future), future.completion
                if completion.error is not None:
                    raise completion.error
                arrived(number, completion.value)
            numbers |= _submitted(pool, islice(calls, len(done)))

    def _useful_size(self, tasks: int) -> int:
        held = self._groups.size + (self._pool.size if self._pool is not None else 0)
        most = self._workers if self._workers is not None else held + self._cluster.free_cpus
        return max(1, min(most, tasks))

    def _grown_groups(self, size: int) -> WorkerGroups:
        """Return the groups, which take the place of a pool."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._groups.grow(size)
        return self._groups

    def _grown_pool(self, size: int) -> RayPool:
        if self._pool is None:
            self._pool = RayPool(MapWorker, (), size, jobs_per_actor=TASKS_PER_WORKER)
        else:
            self._pool.grow(size)
        return self._pool

    def _drop_actors(self) -> None:
        self._groups.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _submitted(pool: RayPool, numbered: Iterable[tuple[int, Call]]) -> dict[Future[Any], int]:
    """Submit calls; return their numbers by their futures."""
    listed = list(numbered)
    futures = pool.submit_all(call for _, call in listed)
    return {future: number for future, (number, _) in zip(futures, listed, strict=True)}
