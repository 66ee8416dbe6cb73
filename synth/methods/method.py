"""What a method of synthesis declares about itself, and the options that a caller may set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName, require_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.schedule.transforms import concatenate, reverse_allgather
from chorale.synth.topology.topology import Topology, transpose_with_links

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
    size_bytes: bytes of the whole vector: bfb weighs link latencies at it, and verification tells the time
    """

    chunks: int | None = None
    k: int | None = None
    objective: Objective = "height"
    seed: int = 0
    seeds: int = 1
    warm_start: Schedule | None = None
    size_bytes: int | None = None

    def non_default(self) -> tuple[str, ...]:
        """Return the names of the options that differ from the default, but for the size, which suits every method."""
        names = (item.name for item in fields(self) if getattr(self, item.name) != item.default)
        return tuple(name for name in names if name != "size_bytes")


MakeSchedule: TypeAlias = Callable[[Topology, Collective, Options, Executor, Progress | None], AnySchedule]
Spread: TypeAlias = Callable[[Topology, Collective, Options, Executor, Progress | None], Schedule]
MakeAllgather: TypeAlias = Callable[[Topology, Options, Executor, Progress | None], Schedule]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to make schedules. `options` names the fields of Options that it obeys; asking for others is refused."""

    name: str
    summary: str
    collectives: tuple[CollectiveName, ...]
    options: tuple[str, ...]
    make: MakeSchedule

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
        return self.make(topology, collective, options, executor, progress)


def method_from_allgather(name: str, summary: str, options: tuple[str, ...], gather: MakeAllgather) -> Method:
    """Return the method whose allgather is made by `gather`, its reverse and both one after the other."""

    def spread(
        topology: Topology, _collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> Schedule:
        return gather(topology, options, executor, progress)

    return method_from_outward(name, summary, (ALLGATHER.name,), options, spread)


def method_from_outward(
    name: str, summary: str, spreads: tuple[CollectiveName, ...], options: tuple[str, ...], spread: Spread
) -> Method:
    """Return the method that makes `spreads`, of allgather and broadcast, by `spread`, and what follows from them.

    reduce_scatter is allgather on the transpose run backwards in time, reduce likewise broadcast; allreduce is one
    after the other: by way of rank 0 if the method only knows broadcast.
    """
    reverses = {
        CollectiveName.ALLGATHER: CollectiveName.REDUCE_SCATTER,
        CollectiveName.BROADCAST: CollectiveName.REDUCE,
    }
    backwards = tuple(reverses[collective] for collective in spreads)

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> Schedule:
        if collective.name in spreads:
            return spread(topology, collective, options, executor, progress)
        rooted = Collective(CollectiveName.BROADCAST, collective.root or 0)
        outward = rooted if collective.is_rooted or ALLGATHER.name not in spreads else ALLGATHER
        transposed, original_link = transpose_with_links(topology)
        there = spread(transposed, outward, options, executor, progress)
        back = reverse_allgather(there, topology, original_link)
        if collective.name in backwards:
            return back
        # A network that equals its transpose spreads in the same way; no need to find it twice.
        is_same = transposed.id == topology.id
        forwards = there.on(topology) if is_same else spread(topology, outward, options, executor, progress)
        return concatenate(back, forwards)

    return Method(name, summary, (*spreads, *backwards, CollectiveName.ALLREDUCE), options, make)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
