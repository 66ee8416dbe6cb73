"""Defines the method `auto`, which tries other methods and chooses the schedule with the lowest cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.bfb.bfb import breadth_first_floor
from chorale.synth.methods.closed_forms import ALGORITHMS, Algorithm
from chorale.synth.methods.method import Method, Options, SynthesisTask
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import Traffic, traffic_of
from chorale.synth.simulation.simulate import Congestion, NetworkModel, congestion_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import cost_if_sound

AUTO = "auto"
MAX_RANKS_ALL_METHODS = 64
"""Up to this number of ranks, every method is tried. Above it, only methods that can reach the optimum are tried."""
MAX_RANKS_SECOND_METHOD = 1024
"""Up to this number of ranks, a second method is tried if the first one does not reach the lower bound."""

_OPTIMAL_METHODS = ("bfb", "forest")
Cost = tuple[Fraction, int]
"""Cost of a schedule: (time per byte, number of steps). Costs are compared in this order."""


class Auto(Method):
    """Tries `methods` and returns the schedule with the least time per byte; in case of a tie, with the fewest steps.

    If the option `size_bytes` is set, the method with the least predicted time for this size is chosen instead. The
    schedule contains the name of the method that made it. On large networks, only two methods are considered:
    breadth-first broadcast, which takes the fewest possible steps, and tree packing, which is optimal on every network
    if each rank may be the root of many trees. Tree packing comes first if breadth-first broadcast is known not to
    reach the optimum, for example on meshes. The second method is skipped if the first one reaches a lower bound, and
    on very large networks if the first one is applicable. Algorithms with a closed form are compared by their traffic;
    a schedule is made only for the chosen one. Raises InvalidInput if no method is suitable.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        max_ranks_all_methods: int = MAX_RANKS_ALL_METHODS,
        max_ranks_second_method: int = MAX_RANKS_SECOND_METHOD,
    ) -> None:
        collectives = tuple(dict.fromkeys(name for method in methods.values() for name in method.collectives))
        options = tuple(dict.fromkeys(name for method in methods.values() for name in method.options))
        super().__init__(AUTO, "the best of all methods: least time per byte, then fewest steps", collectives, options)
        self._methods = methods
        self._most_all, self._most_second = max_ranks_all_methods, max_ranks_second_method

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._methods)

    def make(self, task: SynthesisTask) -> AnySchedule:
        topology, collective, options = task.topology, task.collective, task.options
        if options.size_bytes is not None:
            return self.timed(task, NetworkModel.usual(topology, options.link_gbps)).at(options.size_bytes).schedule()
        tries_all = topology.compute_count <= self._most_all
        candidates = list(self._candidates(topology, collective, options, tries_all))
        if len(candidates) == 1:
            return candidates[0].schedule(topology, collective, options, task.executor, task.progress)
        best: tuple[Cost, Callable[[], AnySchedule]] | None = None
        for method in candidates:
            make = partial(method.schedule, topology, collective, options, task.executor, task.progress)
            if topology.compute_count > self._most_second:
                try:
                    return make()
                except InvalidInput:  # the method does not support this network
                    continue
            if best is not None and not tries_all:  # on small networks, other methods may need fewer steps
                time = best[0][0]
                if lower_bound(topology, collective, time).value >= time:
                    break
            try:
                if isinstance(method, Algorithm) and not options.non_default():
                    traffic = method.pattern(topology, collective).traffic()
                    times = (congestion_of(stream).time_per_byte for stream in traffic.streams())
                    cost = sum(times, Fraction(0)), len(traffic.steps)
                else:
                    schedule = make()
                    verified = cost_if_sound(schedule)
                    cost, make = (verified.time_per_byte, verified.steps), partial(_same, schedule)
            except InvalidInput:
                continue
            best = (cost, make) if best is None or cost < best[0] else best
        if best is None:
            raise _no_method(topology, collective)
        return best[1]()

    def timed(self, task: SynthesisTask, model: NetworkModel, among: Collection[str] | None = None) -> TimedChoices:
        """Return an object that predicts the fastest method for `task` at any vector size, with costs from `model`.

        among: names of the methods to consider; None for all methods that make schedules in reasonable time
        """
        collective, options, ranks = task.collective, task.options, task.topology.compute_count
        names: tuple[str, ...] = _OPTIMAL_METHODS
        if ranks <= self._most_second:
            names += tuple(name for name in self._methods if ranks <= self._most_all or name in ALGORITHMS)
        if collective.name == CollectiveName.ALLTOALL:
            names = ("alltoall",)
        names = names if among is None else tuple(name for name in among if name in self._methods)
        methods = [self._methods[name] for name in dict.fromkeys(names)]
        wanted = set(options.non_default())
        suited = [one for one in methods if collective.name in one.collectives and wanted <= set(one.options)]
        return TimedChoices(task, model, suited)

    def first(self, topology: Topology, collective: Collective, options: Options) -> str | None:
        """Return the name of the method to try first, or None if no method is suitable."""
        tries_all = topology.compute_count <= self._most_all
        return next((each.name for each in self._candidates(topology, collective, options, tries_all)), None)

    def _candidates(
        self, topology: Topology, collective: Collective, options: Options, tries_all: bool
    ) -> Iterator[Method]:
        """Yield the methods that support `collective` and all options, starting with those that reach the optimum."""
        packs_first = not options.non_default() and _breadth_first_misses(topology, collective)
        optimal: tuple[str, ...] = _OPTIMAL_METHODS[::-1] if packs_first else _OPTIMAL_METHODS
        if collective.name == CollectiveName.ALLTOALL:
            optimal = ("alltoall",)
        for name in (*optimal, *(name for name in self._methods if tries_all and name not in optimal)):
            method = self._methods[name]
            if collective.name in method.collectives and set(options.non_default()) <= set(method.options):
                yield method


@lru_cache(maxsize=2)
def _breadth_first_misses(topology: Topology, collective: Collective) -> bool:
    """Return whether breadth-first broadcast is proven to be slower than trees. Makes no schedule."""
    behind = Fraction(0)
    for part in (ALLGATHER, REDUCE_SCATTER) if collective == ALLREDUCE else (collective,):
        floor = breadth_first_floor(topology, part.name)
        if floor is None:
            return False
        behind += floor - min(floor, lower_bound(topology, part, floor).value)
    return behind > 0


def _same(schedule: AnySchedule) -> AnySchedule:
    return schedule


def _no_method(topology: Topology, collective: Collective) -> InvalidInput:
    value = f"{collective.name.value} on {topology.spec}"
    return InvalidInput("no method fits this network, collective and options: {}", value, "name a method")


@dataclass(frozen=True, slots=True, eq=False)
class TimedChoice:
    """A method that `TimedChoices` can choose, and the data needed to predict its time.

    method:   name of the method
    traffic:  the data that the method's schedule sends over each link in each step
    streams:  congestion in each stream of `traffic`, from which the time for any vector size is computed
    schedule: function that makes the schedule
    seconds:  predicted time of the collective at the requested size
    """

    method: str
    traffic: Traffic
    streams: Sequence[Congestion]
    schedule: Callable[[], AnySchedule]
    seconds: Fraction = Fraction(0)


class TimedChoices:
    """Predicts which of `methods` is the fastest for a vector size. Each method's traffic is cached for other sizes.

    Times are predicted with the congestion model, which verification uses too. If two methods have equal times and
    numbers of steps, one with a closed form is preferred.
    """

    def __init__(self, task: SynthesisTask, model: NetworkModel, methods: Sequence[Method]) -> None:
        self._task, self._model = task, model
        self._methods = sorted(methods, key=lambda method: method.name not in ALGORITHMS)
        self._known: dict[tuple[str, int | None], TimedChoice | None] = {}

    def at(self, size_bytes: int, without: Collection[str] = ()) -> TimedChoice:
        """Return the fastest method for vectors of `size_bytes`. Raises InvalidInput if no method is suitable.

        without: names of methods to ignore
        """
        suited = (self._of(method, size_bytes) for method in self._methods if method.name not in without)
        choices = [
            replace(one, seconds=sum((part.seconds(self._model, size_bytes) for part in one.streams), Fraction(0)))
            for one in suited
            if one is not None
        ]
        if not choices:
            raise _no_method(self._task.topology, self._task.collective)
        return min(choices, key=lambda choice: (choice.seconds, len(choice.traffic.steps)))

    def _of(self, method: Method, size_bytes: int) -> TimedChoice | None:
        """Return a choice for `method`, with `seconds` not yet set, or None if the method does not support the task."""
        weighs_size = method.name == "bfb" and self._task.topology.bandwidth_unit != "link"
        key = (method.name, size_bytes if weighs_size else None)
        if key in self._known:
            return self._known[key]
        self._known[key] = None
        task, options = self._task, replace(self._task.options, size_bytes=key[1], link_gbps=None)
        make = partial(method.schedule, task.topology, task.collective, options, task.executor, task.progress)
        with suppress(InvalidInput):  # the method does not support the task
            if isinstance(method, Algorithm) and not options.non_default():
                traffic = method.pattern(task.topology, task.collective).traffic()
            else:
                schedule = make()
                make, traffic = partial(_same, schedule), traffic_of(schedule)
            streams = [congestion_of(stream) for stream in traffic.streams()]
            self._known[key] = TimedChoice(method.name, traffic, streams, make)
        return self._known[key]
