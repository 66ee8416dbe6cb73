"""Runs long computations as Ray tasks: starts them, reports their progress, cancels them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chorale.runners.api.base import Completion
from chorale.runners.process_launch.processes import memory_guard
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import ChoraleError
from chorale.synth.executor.base import Progress

MEMORY_SLACK = 2
"""A computation's worker is stopped if it uses more than this multiple of its reserved memory."""
MAX_TASK_RETRIES = 2
"""Maximum number of times that a computation is restarted because its worker died."""

Computation = Callable[[Any, Progress], Any]


class TaskFailureKind(StrEnum):
    """The reasons why a computation has no result."""

    REFUSED = "refused"  # a ChoraleError: the request cannot be fulfilled
    CRASH = "crash"  # a bug, or every worker died
    MEMORY = "memory"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, eq=False)
class TaskFailure:
    """Says why a computation ended without a result. `error` is the exception; None after a cancellation."""

    kind: TaskFailureKind
    error: BaseException | None = None


class _Board:
    """An actor that collects reports from computations: their progress, and whether they exceeded their memory."""

    def __init__(self) -> None:
        self._progress: dict[str, tuple[int, int]] = {}
        self._too_large: set[str] = set()

    def pin(self, key: str, done: int, total: int) -> None:
        self._progress[key] = (done, total)

    def take(self) -> dict[str, tuple[int, int]]:
        progress, self._progress = self._progress, {}
        return progress

    def mark_too_large(self, key: str) -> None:
        self._too_large.add(key)

    def take_too_large(self, key: str) -> bool:
        """Return whether the computation was marked as too large, and remove the mark."""
        is_marked = key in self._too_large
        self._too_large.discard(key)
        return is_marked


def _run(computation: Computation, argument: Any, board: Any, key: str, memory_bytes: int) -> Any:
    if ray.get(board.take_too_large.remote(key)):  # the previous worker was stopped because it used too much memory
        raise MemoryError

    def stop() -> None:
        ray.get(board.mark_too_large.remote(key))
        os._exit(1)

    with memory_guard(MEMORY_SLACK * memory_bytes, stop):
        return computation(argument, lambda done, total: board.pin.remote(key, done, total))


class RayTaskBackend:
    """Runs computations as Ray tasks. Each task reserves one CPU and the memory that is passed to `start`.

    A task whose worker dies is restarted, so computations must not have side effects. Not thread-safe.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._cluster = RayCluster(address, cpus)
        self._board: Any = ray.remote(num_cpus=0)(_Board).remote()
        self._run = ray.remote(num_cpus=1, max_retries=MAX_TASK_RETRIES)(_run)
        self._references: dict[str, Any] = {}

    @property
    def cpus(self) -> int:
        return int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]

    @property
    def largest_memory_bytes(self) -> int:
        """Return the memory in bytes of the node with the most memory. No task can use more."""
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return max((int(node["Resources"].get("memory", 0)) for node in nodes if node["Alive"]), default=0)

    def start(self, key: str, computation: Computation, argument: Any, memory_bytes: int) -> None:
        """Queue `computation(argument, progress)`. It starts as soon as a node has a free CPU and enough memory."""
        task = self._run.options(memory=memory_bytes)
        self._references[key] = task.remote(computation, argument, self._board, key, memory_bytes)

    def cancel(self, key: str) -> None:
        """Kill the worker of computation `key`. `ended` then reports `key` as cancelled unless it was already done."""
        if key in self._references:
            ray.cancel(self._references[key], force=True)

    def progress(self) -> dict[str, tuple[int, int]]:
        """Return key -> (done, total) for computations whose progress has changed since the last call."""
        return dict(ray.get(self._board.take.remote()))

    def ended(self, timeout_s: float) -> dict[str, Completion[Any]]:
        """Wait at most `timeout_s` until a computation ends; return key -> completion for all that have ended.

        A completion's value is the computation's result or a TaskFailure.
        """
        keys = {reference: key for key, reference in self._references.items()}
        if not keys:
            return {}
        ray.wait(list(keys), num_returns=1, timeout=timeout_s)
        ready, _ = ray.wait(list(keys), num_returns=len(keys), timeout=0)
        for reference in ready:
            del self._references[keys[reference]]
        return {keys[reference]: Completion(_value_of(reference)) for reference in ready}

    def close(self) -> None:
        """Cancel everything and leave the cluster. Safe to call twice."""
        if ray.is_initialized():
            for key in list(self._references):
                self.cancel(key)
            ray.kill(self._board)
        self._references.clear()
        self._cluster.close()


def _value_of(reference: Any) -> Any:
    """Return the result of a task that has ended, or its TaskFailure."""
    try:
        return ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return TaskFailure(TaskFailureKind.CANCELLED)
    except ray.exceptions.OutOfMemoryError as error:
        return TaskFailure(TaskFailureKind.MEMORY, error)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MemoryError):
            return TaskFailure(TaskFailureKind.MEMORY, error.cause)
        is_refusal = isinstance(error.cause, ChoraleError)
        return TaskFailure(TaskFailureKind.REFUSED if is_refusal else TaskFailureKind.CRASH, error.cause)
    except ray.exceptions.RayError as error:
        return TaskFailure(TaskFailureKind.CRASH, error)
