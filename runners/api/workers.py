"""The interface of a campaign's workers."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from chorale.runners.api.base import Outcome, RunRequest
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult

POLL_S = 0.5

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class Completion(Generic[Value]):
    """Result of a build or a measurement by a worker.

    value:   the result, or a failure as a value
    seconds: time that a worker was busy; cpu_s: its process's CPU time during that time
    """

    value: Value
    seconds: float = 0.0
    cpu_s: float = 0.0


class Workers(Protocol):
    """Builds several programs at a time, and meanwhile measures programs in the order in which they were requested.

    Every future gets a completion, even if workers die: failures are values (BuildFailure, RunFailure).
    Not thread-safe.
    """

    def build(self, request: BuildRequest) -> Future[Completion[BuildResult | BuildFailure]]: ...

    def measure(self, request: RunRequest) -> Future[Completion[Outcome]]: ...

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        """Return the `futures` that are done, in their order; wait at most about `timeout_s` for the first.

        Raises Unavailable if no worker can start or the cluster is lost.
        """
        ...

    def close(self) -> None:
        """Discard all work and release the workers; unfinished futures may never complete. Safe to call twice."""
        ...


def completions(workers: Workers, futures: Sequence[Future[Completion[Value]]]) -> list[Completion[Value]]:
    """Return the completions of all `futures`, in their order, once the last of them is done."""
    waiting = set(futures)
    while waiting:
        waiting.difference_update(workers.wait(waiting, POLL_S))
    return [future.result() for future in futures]
