"""Groups of workers, each led by an actor: it hands out tasks and reports what ended once a second, many at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chorale.runners.api.workers import Future
from chorale.runners.ray.map_worker import TASKS_PER_WORKER, MapWorker
from chorale.runners.ray.pool import Call, RayPool, wait_for_results

REPORT_S = 1.0
"""How long a group gathers results while its workers have enough to do."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupReport:
    """What a group says at the end of an exchange.

    incarnation: names the process of the leader; another one knows nothing of what was handed to this one
    started:     how many workers have started
    is_hungry:   whether workers wait for tasks, or will as soon as they have ended those that they have
    results:     numbers of tasks, and what each returned: no objects but theirs, as there are many
    error:       of a task, if one had an error, or always killed its worker
    returned:    numbers of tasks for which no worker is left
    """

    incarnation: str
    started: int
    is_hungry: bool
    results: list[tuple[int, Any]]
    error: BaseException | None
    returned: list[int]


class WorkerGroup:
    """Runs inside an actor and leads `size` workers, which are actors of one CPU each and end with it.

    The second task of each worker waits in the worker, further ones here.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._incarnation = uuid.uuid4().hex
        self._pool: RayPool | None = None
        self._numbers: dict[Future[Any], int] = {}

    def exchange(
        self, map_number: int, function_reference: list[Any], tasks: Sequence[tuple[int, Any]], has_more: bool
    ) -> GroupReport:
        """Take numbered tasks; report what has ended, after `REPORT_S` or earlier.

        Earlier: when all has ended or an error has, and if the coordinator `has_more` tasks, when workers are short of
        them. Without tasks, when all workers have started.
        """
        if self._pool is None:
            self._pool = RayPool(MapWorker, (), self._size, jobs_per_actor=TASKS_PER_WORKER)
        pool = self._pool
        futures = pool.submit_all(Call("run", (map_number, function_reference, task)) for _, task in tasks)
        self._numbers |= {future: number for future, (number, _) in zip(futures, tasks, strict=True)}
        ended: list[Future[Any]] = []
        until_s = time.monotonic() + REPORT_S
        while (remaining_s := until_s - time.monotonic()) > 0 and self._has_to_wait(pool, has_more):
            ended += wait_for_results([pool], remaining_s)
            if any(future.completion.error is not None for future in ended):
                break
        errors = [future.completion.error for future in ended if future.completion.error is not None]
        results = [(self._numbers.pop(future), future.completion.value) for future in ended]
        is_hungry = has_more and _is_short_of_tasks(pool)
        error = errors[0] if errors else None
        return GroupReport(self._incarnation, pool.started, is_hungry, results, error, self._returned(pool))

    def _has_to_wait(self, pool: RayPool, has_more: bool) -> bool:
        if not pool.pending:
            return not pool.has_all_started and not (has_more and pool.started)
        return not (has_more and _is_short_of_tasks(pool))

    def _returned(self, pool: RayPool) -> list[int]:
        """Give up the tasks that wait while no worker is left, and the pool with them."""
        if not pool.is_starved:
            return []
        pool.close()
        self._pool = None
        returned = list(self._numbers.values())
        self._numbers.clear()
        return returned


def _is_short_of_tasks(pool: RayPool) -> bool:
    return pool.pending < TASKS_PER_WORKER * pool.started
