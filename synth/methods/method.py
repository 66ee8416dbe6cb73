"""What a method of synthesis declares about itself, and the options that a caller may set."""

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
    """What may be asked of a method; the defaults leave it to the method.

    chunks:    chunks per shard; None for the smallest number that reaches the method's best time
    k:         trees per root; None for the smallest number that reaches the optimum
    objective: which of equally fast tree packings to prefer: low trees, few trees, or something between
    seed:      of whatever choices a method makes by chance
    seeds:     how many seeds to try, from that one on, each a task of the executor
    warm_start: a schedule of which to keep what still holds
    gap:       how much longer than the optimum trees may take, as a part of it, where the optimum needs more than 96
               trees per root; 0 for the optimum itself
    size_bytes: bytes of the whole vector: auto chooses by the time at it, bfb weighs link latencies at it, and
                verification tells the time
    link_gbps: Gbit/s of a link of unit capacity, for the time at that size
    """

    chunks: int | None = None
    k: int | None = None
    objective: Objective = "height"
    seed: int = 0
    seeds: int = 1
    warm_start: Schedule | None = None
    gap: Fraction = DEFAULT_GAP
    size_bytes: int | None = None
    link_gbps: Fraction | None = None

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise InvalidInput("--k must be at least 1", self.k, "leave out --k for the optimum")

    @property
    def verified_bytes(self) -> int | None:
        """The size for which verification computes the time; None if links have no rate but `link_gbps`."""
        return self.size_bytes if self.link_gbps is None else None

    def non_default(self) -> tuple[str, ...]:
        """Return the names of the options that differ from the default; size and rate suit all methods."""
        names = (item.name for item in fields(self) if getattr(self, item.name) != item.default)
        return tuple(name for name in names if name not in ("size_bytes", "link_gbps"))


@dataclass(frozen=True, slots=True)
class SynthesisTask:
    """What is to be made, on which network, and where the parts of the work run.

    preferred_k: trees per root to take if no other number is faster, as of the other half of an allreduce
    """

    topology: Topology
    collective: Collective
    options: Options
    executor: Executor
    progress: Progress | None = None
    preferred_k: int | None = None


class Method(ABC):
    """A way to make schedules. `options` names the fields of Options that it obeys; asking for others is refused."""

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
        """Return the schedule, not yet verified; raise InvalidInput for what this method cannot do."""
        require_collective(self.name, collective, self.collectives)
        if collective.root is not None and not 0 <= collective.root < topology.compute_count:
            raise InvalidInput("a root must be a rank", collective.root, f"choose 0 to {topology.compute_count - 1}")
        for option in options.non_default():
            if option not in self.options:
                accepted = " and ".join(_flag(name) for name in self.options) or "no options"
                raise InvalidInput(f"{self.name} obeys {accepted}", _flag(option), f"leave out {_flag(option)}")
        return self.make(SynthesisTask(topology, collective, options, executor, progress))

    @abstractmethod
    def make(self, task: SynthesisTask) -> AnySchedule:
        """Return the schedule of a task that this method can do."""


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
