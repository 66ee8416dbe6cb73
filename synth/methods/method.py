"""Defines the interface of synthesis methods, and the options that a caller may set."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Literal, TypeAlias

from chorale.synth.collective import Collective, CollectiveName, require_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.topology.topology import Topology

DEFAULT_GAP = Fraction(1, 200)

Objective: TypeAlias = Literal["height", "trees", "balanced"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a synthesis method. By default, the method chooses the numbers of chunks and trees.

    Attributes:
        chunks: chunks per shard; None for the smallest number that reaches the method's best time.
        k: trees per root; None for the smallest number that reaches the optimum.
        objective: whether to prefer low trees, few trees, or a balance of both among equally fast tree packings.
        seed: seed of random choices, 0 to 2^31 - 1.
        warm_start: an older schedule, whose trees are kept where possible.
        gap: acceptable time above the optimum, relative to the optimum, if the optimum needs more than 96 trees per
            root; 0 for the optimum itself.
        size_bytes: size of the complete vector in bytes. If given, auto chooses the fastest method at this size, bfb
            considers link latencies, and verification reports the time.
        link_gbps: bandwidth in Gbit/s of a link of unit capacity, used to compute the time at `size_bytes`.
    """

    chunks: int | None = None
    k: int | None = None
    objective: Objective = "height"
    seed: int = 0
    warm_start: Schedule | None = None
    gap: Fraction = DEFAULT_GAP
    size_bytes: int | None = None
    link_gbps: Fraction | None = None

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise InvalidInput("--k must be at least 1", self.k, "leave out --k for the optimum")
        if not 0 <= self.seed < 2**31:
            raise InvalidInput("a seed must be 0 to 2147483647", self.seed, "choose another number")

    @property
    def balanced_bytes(self) -> int | None:
        """Vector size for which bfb considers link latencies, or None to ignore them.

        Latencies are also ignored if `link_gbps` is set, because schedules do not store that option.
        """
        return self.size_bytes if self.link_gbps is None else None

    def non_default(self) -> tuple[str, ...]:
        """Return the names of non-default options, except `size_bytes` and `link_gbps`, which all methods accept."""
        names = (item.name for item in fields(self) if getattr(self, item.name) != item.default)
        return tuple(name for name in names if name not in ("size_bytes", "link_gbps"))


@dataclass(frozen=True, slots=True)
class SynthesisTask:
    """A request for a schedule, and the executor that runs parts of the work.

    preferred_k: trees per root to use if no other number is faster, e.g. the number in the other phase of an allreduce
    """

    topology: Topology
    collective: Collective
    options: Options
    executor: Executor
    progress: Progress | None = None
    preferred_k: int | None = None


class Method(ABC):
    """Base class of methods that make schedules.

    options: names of the `Options` fields that the method supports; requests that set other fields are rejected
    """

    def __init__(
        self, name: str, summary: str, collectives: tuple[CollectiveName, ...], options: tuple[str, ...]
    ) -> None:
        self.name, self.summary, self.collectives, self.options = name, summary, collectives, options

    def schedule(
        self,
        topology: Topology,
        collective: Collective,
        options: Options,
        executor: Executor,
        progress: Progress | None,
    ) -> AnySchedule:
        """Return the schedule without verifying it. Raises InvalidInput if the method does not support the request."""
        require_collective(self.name, collective, self.collectives)
        if collective.root is not None and not 0 <= collective.root < topology.compute_count:
            raise InvalidInput(
                "the root {} is not a rank", collective.root, f"choose 0 to {topology.compute_count - 1}"
            )
        for option in options.non_default():
            if option not in self.options:
                accepted = " and ".join(_flag(name) for name in self.options) or "no options"
                raise InvalidInput(f"{self.name} supports {accepted}", _flag(option), f"leave out {_flag(option)}")
        return self.make(SynthesisTask(topology, collective, options, executor, progress))

    @abstractmethod
    def make(self, task: SynthesisTask) -> AnySchedule:
        """Return the schedule for a task that this method supports."""


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
