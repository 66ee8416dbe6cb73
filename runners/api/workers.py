"""Work that is done elsewhere: futures, what came of them, and the port of the workers of a campaign."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from chorale.runners.api.base import Outcome, RunRequest
from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.topology.topology import Topology

POLL_S = 0.5

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class Completion(Generic[Value]):
    """What came of work that was done elsewhere: its value, which may be a failure.

    error:   why there is no value, where no failure is defined as a value: what the work raised, with its own type;
             TimeoutError when it ran into its limit; Unavailable when every attempt killed its worker
    seconds: how long a worker was busy, and `cpu_s` the CPU time of its process meanwhile
    """

    value: Value
    error: BaseException | None = None
    seconds: float = 0.0
    cpu_s: float = 0.0


class Future(Generic[Value]):
    """Work that may not be finished. Whoever took it on completes it, once; it is driven by waiting for it."""

    __slots__ = ("_completion",)

    def __init__(self) -> None:
        self._completion: Completion[Value] | None = None

    @property
    def done(self) -> bool:
        return self._completion is not None

    @property
    def completion(self) -> Completion[Value]:
        """What came of it; RuntimeError before it is done."""
        if self._completion is None:
            raise RuntimeError("a future must be done before it is asked what came of it")
        return self._completion

    def complete(self, completion: Completion[Value]) -> None:
        """Say what came of it; RuntimeError for a second time."""
        if self._completion is not None:
            raise RuntimeError("a future is completed once")
        self._completion = completion


class Builder(Protocol):
    """Builds programs, several at a time."""

    def submit(self, request: BuildRequest) -> Future[BuildResult | BuildFailure]: ...


class Measurer(Protocol):
    """Measures in the order in which requests come, as many at a time as there are runners."""

    def submit(self, request: RunRequest) -> Future[Outcome]: ...


class Workers(Protocol):
    """Builds programs and measures them somewhere.

    Every future is completed with a value, whatever happens to workers: failures are values (BuildFailure,
    RunFailure). Programs are built beside measurements. Not thread-safe.
    """

    @property
    def builder(self) -> Builder: ...

    @property
    def measurer(self) -> Measurer: ...

    @property
    def is_settled(self) -> bool:
        """Whether nothing starts beside the measurements that begin now and may show in their times."""
        ...

    def share(self, topology: Topology, programs: Iterable[AnyProgram]) -> None:
        """Say what many requests will hold, these very objects, so that it need not travel with each of them."""
        ...

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        """Return those of `futures` that are done, in their order, after at most about `timeout_s` for the first.

        [] if none is. Raises Unavailable if no worker can start.
        """
        ...

    def close(self) -> None:
        """Drop all work and let go of workers; futures that are not done stay so. Safe to call twice."""
        ...


def completions(workers: Workers, futures: Sequence[Future[Value]]) -> list[Completion[Value]]:
    """Return what came of all `futures`, in their order, once the last of them is done."""
    waiting = set(futures)
    while waiting:
        waiting.difference_update(workers.wait(waiting, POLL_S))
    return [future.completion for future in futures]
