"""Defines the interfaces of runners and of a campaign's workers, and the requests and results that they exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from chorale.synth.build.request import BuildFailure, BuildRequest, BuildResult
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.topology.topology import Topology

StuckInstruction = tuple[int, int, str]
"""(thread block, instruction, reason): a stuck thread block, its current instruction, and what it is waiting for."""
LIBRARY = "library:"
"""Prefix of the names by which results and a campaign's baselines refer to a runtime's own algorithms."""
POLL_S = 0.5
Value = TypeVar("Value")


class StepSpan(NamedTuple):
    """Records when a thread block of a rank executed one step of a program. Times are seconds since all ranks started.

    block:   number of the thread block
    part:    0, or if chunks are cut into parts, the part's index; blocks run the step once for each part
    ready_s: when the block had reached the step and everything that the step waits for had happened
    start_s: when the step's first byte moved; 0 if no byte moved
    end_s:   when the step was finished
    """

    rank: int
    block: int
    step: int
    part: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Race:
    """A rule that stops measuring a program at the sizes at which it is clearly slower than the best earlier program.

    Programs are compared by their ratios: a program's time divided by the time of the fastest reference.

    name:             name of the program in the measurement
    references:       names of the reference results, which are measured together with the program
    ratios:           for each size, the lowest ratio of all programs measured so far
    first_repeats:    number of repetitions to measure before the program is compared
    margin:           measuring stops at a size if the ratios of all repetitions exceed the lowest ratio by more than
                      this fraction
    reference_s:      for each size, the fastest reference's time in an earlier measurement; used if this measurement
                      has no references
    """

    name: str
    references: tuple[str, ...]
    ratios: tuple[float, ...]
    first_repeats: int
    margin: float = 0.05
    reference_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request for the resources of a cluster node that one worker occupies during its lifetime.

    cpus, gpus: number of CPUs and of GPUs
    resources:  custom Ray resources, name -> amount, for example {"fabric": 1} if only one worker can use the fabric
    labels:     labels that the node must have
    patience_s: maximum number of seconds to wait until a suitable node is free or joins the cluster
    """

    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 30.0

    @property
    def amounts(self) -> dict[str, float]:
        """Return all requested resources: Ray's name (CPU, GPU or a custom one) -> amount."""
        return {"CPU": self.cpus, "GPU": self.gpus, **self.resources}

    def fits(self, amounts: Mapping[str, float], labels: Mapping[str, str]) -> bool:
        """Return whether a node with these free resources (name -> amount) and labels satisfies the request."""
        enough = all(amounts.get(name, 0) >= amount for name, amount in self.amounts.items())
        return enough and all(labels.get(name) == value for name, value in self.labels.items())

    def __str__(self) -> str:
        amounts = [f"{amount:g} {name}" for name, amount in self.amounts.items() if amount]
        return ", ".join([*amounts, *(f"{name}={value}" for name, value in self.labels.items())])


class FailureKind(StrEnum):
    """The reasons why a run produced no measurement."""

    TIMEOUT = "timeout"  # the run hung or was far too slow, so the watchdog ended it
    WRONG_RESULT = "wrong_result"  # at least one element is wrong
    CRASH = "crash"  # a rank or the runtime died
    UNAVAILABLE = "unavailable"  # something that the runner needs is missing
    REJECTED = "rejected"  # the runtime refused the program or fell back to another algorithm
    NOT_APPLIED = "not_applied"  # the library did not use a setting, or its log does not show that it did
    IMPOSSIBLE = "impossible"  # faster than the links allow: the assumed link rates or the clock are wrong


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """Facts that a program's instructions do not show: how it was generated, and how its runtime is configured.

    k:            trees per root; None if there are none or the number is unknown
    instances:    number of copies of the schedule, each on its own channels
    buffer_bytes: size of each connection's buffer; None for the runtime's default
    """

    k: int | None = None
    instances: int = 1
    buffer_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to measure programs together on the network `topology`.

    programs:    name -> program (or plan, if the runner supports plans). All have the same collective and number of
                 ranks. Each repetition runs them in a new random order, so that drift affects all equally.
    sizes_bytes: sizes of the whole vector, as nccl-tests counts them. A size is rounded up if some program cannot
                 divide it into its chunks (see `chorale.runners.api.units`).
    repeats:     measured repetitions of each (program, size), after `warmup` unmeasured ones
    timeout_s:   time limit of the whole request, at most 10^6 s
    dtype:       name of the element type, one of `chorale.runners.api.elements.ELEMENT_TYPES`
    seed:        seed for the random orders of the programs and for the test data
    library:     the runtime's own algorithms for the same collective (see `Runner.library`), measured in the same
                 rounds as the programs; `library_result` returns the name of an algorithm's result
    settings:    program name -> its `ProgramSettings`, for runners that need them
    trace:       whether to record the times of all instructions; ignored by runners that cannot record them
    race:        rule for stopping early; applied by `chorale.runners.workers`, ignored by runners
    """

    topology: Topology
    programs: Mapping[str, AnyProgram]
    sizes_bytes: tuple[int, ...]
    repeats: int = 5
    warmup: int = 1
    timeout_s: float = 60.0
    dtype: str = "float32"
    seed: int = 0
    library: tuple[str, ...] = ()
    settings: Mapping[str, ProgramSettings] = field(default_factory=dict)
    race: Race | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        if not self.timeout_s <= 10**6:  # refuses NaN, too
            raise InvalidInput("a time limit must be at most 1000000 seconds", self.timeout_s, "choose another number")

    @property
    def without_plans(self) -> dict[str, Program]:
        """Return the programs that are not plans. If the runner refuses plans, these are all programs."""
        return {name: program for name, program in self.programs.items() if isinstance(program, Program)}

    @property
    def has_plans(self) -> bool:
        """Return whether one of the programs is a plan of one-sided operations."""
        return any(program.one_sided for program in self.programs.values())


@dataclass(frozen=True, slots=True)
class SizeMeasurement:
    """The times of all repetitions of one program at one size, in seconds.

    size_bytes: measured size, which is `requested_bytes` rounded up so that all programs can divide it into chunks
    correct:    whether every element was correct; None if results were not checked, as in some recorded runs
    """

    size_bytes: int
    requested_bytes: int
    times_s: tuple[float, ...]
    correct: bool | None

    @property
    def median_s(self) -> float:
        return float(np.median(self.times_s))

    @property
    def iqr_s(self) -> float:
        """Return the interquartile range (Q3 - Q1) in seconds."""
        first, third = np.percentile(self.times_s, [25, 75])
        return float(third - first)

    @property
    def min_s(self) -> float:
        return min(self.times_s)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A runner's measurement of one request.

    results:     name of a program or library algorithm -> one entry per size, in the request's order
    environment: facts about the machine, the network and the run that may affect times
    traces:      name of a program -> for each size the steps of all ranks in the repetition with the median time, if
                 the request asked for traces and the runner can record them
    """

    runner: str
    results: Mapping[str, tuple[SizeMeasurement, ...]]
    environment: Mapping[str, str | int | float | None] = field(default_factory=dict)
    traces: Mapping[str, tuple[tuple[StepSpan, ...], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Says why a request has no measurement. `message` is one line for users; `rank` is the rank at fault, if known.

    blocked: after a timeout, (rank, block, instruction) of every block known to be stuck
    """

    kind: FailureKind
    message: str
    rank: int | None = None
    environment: Mapping[str, str | int | float | None] = field(default_factory=dict)
    blocked: tuple[tuple[int, int, int], ...] = ()


Outcome = Measurement | RunFailure


class Runner(Protocol):
    """Executes programs on some machine and times them. `tests/conformance/runner_kit.py` checks this contract:

    `submit` returns within `timeout_s` plus a short grace period, whatever happens. It never raises because of a
    program or a rank: such errors become a RunFailure. A failed run leaves nothing behind, and the next request
    works. A Measurement is returned only if every element of every result of every program was correct. Runners are not
    thread-safe: submit one request at a time.
    """

    name: str

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; return its measurement, or a failure if there is none."""
        ...

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the names of the runtime's own algorithms for `collective`. Most runners have none."""
        ...

    def close(self) -> None:
        """End processes and close sockets. Safe to call twice."""
        ...


def library_result(algorithm: str) -> str:
    """Return the name under which a Measurement holds the results of a library algorithm."""
    return LIBRARY + algorithm


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it."""
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("allgather", "reduce_scatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Completion(Generic[Value]):
    """The result of a worker's build or measurement, and the time that it took.

    value:   the result, or an object that describes the failure
    seconds: how long a worker was busy with the build or measurement
    """

    value: Value
    seconds: float = 0.0


class Workers(Protocol):
    """Builds programs in parallel and, at the same time, measures programs in the order of the requests.

    Every future gets a `Completion`. If workers die, its value is a BuildFailure or a RunFailure. Not thread-safe.
    """

    def build(self, request: BuildRequest) -> Future[Completion[BuildResult | BuildFailure]]: ...

    def measure(self, request: RunRequest) -> Future[Completion[Outcome]]: ...

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        """Wait until at least one of `futures` is done, but at most about `timeout_s`. Return those that are done, in
        the order of `futures`.

        Raises Unavailable if no worker can start or the cluster is lost.
        """
        ...

    def close(self) -> None:
        """Discard all work and release the workers; unfinished futures may never complete. Safe to call twice."""
        ...


def completions(workers: Workers, futures: Sequence[Future[Completion[Value]]]) -> list[Completion[Value]]:
    """Wait until all `futures` are done; return their completions in the same order."""
    waiting = set(futures)
    while waiting:
        waiting.difference_update(workers.wait(waiting, POLL_S))
    return [future.result() for future in futures]
