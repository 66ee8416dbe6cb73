"""Backends for tests: tasks run in this process, when the test says so."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chorale.runners.api.workers import Completion
from chorale.runners.ray.tasks import TaskFailure, TaskFailureKind
from chorale.synth.errors import CheckFailed, ChoraleError


class FakeTaskBackend:
    """A fake of `RayTaskBackend`: computes at once in the caller's thread, or holds all back while `held` is set."""

    cpus = 2
    largest_memory_bytes = 8 * 2**30

    def __init__(self) -> None:
        self.held = threading.Event()
        self.started: list[str] = []
        self._tasks: dict[str, tuple[Callable[..., Any], Any]] = {}
        self._cancelled: list[str] = []

    def start(self, key: str, computation: Callable[..., Any], argument: Any, memory_bytes: int) -> None:
        self.started.append(key)
        self._tasks[key] = (computation, argument)

    def cancel(self, key: str) -> None:
        self._cancelled.append(key)

    def progress(self) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(self._tasks, (1, 2))

    def ended(self, timeout_s: float) -> dict[str, Completion[Any]]:
        cancelled = TaskFailure(TaskFailureKind.CANCELLED)
        ended = {key: Completion(cancelled) for key in self._cancelled if self._tasks.pop(key, None)}
        self._cancelled.clear()
        if self.held.is_set():
            threading.Event().wait(0.01)
            return ended
        tasks, self._tasks = self._tasks, {}
        return ended | {key: Completion(self._value_of(*task)) for key, task in tasks.items()}

    def close(self) -> None:
        self._tasks.clear()

    @staticmethod
    def _value_of(computation: Callable[..., Any], argument: Any) -> Any:
        try:
            return computation(argument, lambda done, total: None)
        except ChoraleError as error:
            return TaskFailure(TaskFailureKind.REFUSED, error)
        except Exception as error:
            return TaskFailure(TaskFailureKind.CRASH, error)


class FakeLaunches:
    """A fake of `DetachedLaunches`: notes what is asked; tests write the journals."""

    def __init__(self) -> None:
        self.started: list[tuple[Mapping[str, Any], str | None]] = []
        self.states: dict[str, tuple[str, str | None]] = {}

    def start(self, campaign: Mapping[str, Any], home: Path, launch_id: str | None) -> None:
        self.started.append((campaign, launch_id))
        self.states[campaign["name"]] = ("running", None)

    def state(self, name: str) -> tuple[str, str | None]:
        return self.states.get(name, ("stored", None))

    def stop(self, name: str) -> None:
        if name not in self.states:
            raise CheckFailed("is not running", name, "leave it")
        self.states[name] = ("ended", None)
