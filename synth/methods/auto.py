"""The method `auto`: the schedule of lowest proven cost that any method makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.bfb.bfb import breadth_first_floor
from chorale.synth.methods.closed_forms import ALGORITHMS, Algorithm
from chorale.synth.methods.method import Method, Options, SynthesisTask
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.distance import Distances, diameter, distances_to, sole_links
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import cost_if_sound

if TYPE_CHECKING:
    from chorale.synth.methods.grid.pattern import CollectivePattern
    from chorale.synth.schedule.traffic import Traffic
    from chorale.synth.simulation.congestion import Congestion


AUTO = "auto"
MAX_RANKS_ALL_METHODS = 64
"""Up to that many ranks every method is tried, beyond it those that can reach the optimum."""
MAX_RANKS_SECOND_METHOD = 1024
"""Up to that many ranks a second method is tried where the first has not reached the lower bound."""

_OPTIMAL_METHODS = ("bfb", "forest")


class Auto(Method):
    """The method that tries `methods` and returns the schedule with the least time per byte, then steps.

    The schedule names the method that made it. Breadth-first broadcast takes the fewest steps that are possible, and
    tree packing reaches the optimum of every network where a rank may hold many trees; so large networks are left to
    these two. Tree packing comes first where breadth-first broadcast is known to miss the optimum before it is made, as
    on meshes. A method that `chorale.synth.methods.auto` proves not to be better than the best so far is left out.
    The schedule is compared by what it costs if it is sound, and verified by whoever asked for it. Raises InvalidInput
    if no method suits. Cost: that of the methods tried, and where several are, of a few lower bounds.
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
        """The methods that it chooses from."""
        return tuple(self._methods)

    def make(self, task: SynthesisTask) -> AnySchedule:

        topology, collective, options = task.topology, task.collective, task.options
        if options.size_bytes is not None:
            return self.timed(task, NetworkModel.usual(topology, options.link_gbps)).at(options.size_bytes).schedule()
        tries_all = topology.compute_count <= self._most_all
        candidates = list(self._candidates(topology, collective, options, tries_all))
        if len(candidates) == 1:
            return candidates[0].schedule(topology, collective, options, task.executor, task.progress)
        best: tuple[Cost, AnySchedule] | None = None
        floors = Floors(topology, collective)
        for method in candidates:
            if best is not None:
                if not tries_all and floors.is_optimal(best[0][0]):
                    break  # small networks try other methods, for the sake of steps
                if floors.rules_out(method.name, best[0]):
                    continue
            try:
                schedule = method.schedule(topology, collective, options, task.executor, task.progress)
            except InvalidInput:  # the method does not suit the network
                continue
            if topology.compute_count > self._most_second:
                return schedule
            cost = cost_if_sound(schedule, options.size_bytes)
            key = (cost.time_per_byte, cost.steps)
            best = (key, schedule) if best is None or key < best[0] else best
        if best is None:
            value = f"{collective.name.value} on {topology.spec}"
            raise InvalidInput("some method must suit the network, collective and options", value, "name a method")
        return best[1]

    def timed(self, task: SynthesisTask, model: NetworkModel, among: Collection[str] | None = None) -> TimedChoices:
        """Return what chooses the method with the least predicted time at a size, on a network that costs `model`.

        among: the methods to choose from, None for all that are made in reasonable time
        """
        collective, options, ranks = task.collective, task.options, task.topology.compute_count
        names: tuple[str, ...] = _OPTIMAL_METHODS
        if ranks <= self._most_second:
            is_fast = {*ALGORITHMS, *_AROUND_ALL_RANKS}
            names += tuple(name for name in self._methods if ranks <= self._most_all or name in is_fast)
        if collective.name == CollectiveName.ALLTOALL:
            names = ("alltoall",)
        names = names if among is None else tuple(name for name in among if name in self._methods)
        methods = [self._methods[name] for name in dict.fromkeys(names)]
        wanted = set(options.non_default())
        suited = [one for one in methods if collective.name in one.collectives and wanted <= set(one.options)]
        return TimedChoices(task, model, suited)

    def first(self, topology: Topology, collective: Collective, options: Options) -> str | None:
        """Return the name of the method that is tried first, and wins on large networks; None if no method suits."""
        tries_all = topology.compute_count <= self._most_all
        return next((each.name for each in self._candidates(topology, collective, options, tries_all)), None)

    def _candidates(
        self, topology: Topology, collective: Collective, options: Options, tries_all: bool
    ) -> Iterator[Method]:
        """Yield the methods that make `collective` and obey all options, those that reach optima first."""
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
    """Whether breadth-first broadcast is known to be slower than trees, before either is made."""
    from chorale.synth.bounds.lower_bound import lower_bound  # noqa: PLC0415 (as above)
    from chorale.synth.methods.bfb.bfb import breadth_first_floor  # noqa: PLC0415

    behind = Fraction(0)
    for part in (ALLGATHER, REDUCE_SCATTER) if collective == ALLREDUCE else (collective,):
        floor = breadth_first_floor(topology, part.name)
        if floor is None:
            return False
        behind += floor - min(floor, lower_bound(topology, part, floor).value)
    return behind > 0


Cost = tuple[Fraction, int]
"""Time per byte, steps."""

_WHOLE_VECTORS = ("swing-latency", "recursive-doubling", "mirrored-recursive-doubling")
"""In log2 N steps each rank sends all that it has summed. No other method adds on both sides of an exchange."""
_BY_RANK_0 = ("blink",)
_TREES_OF_ANY_ROOTS = ("forest", "double-binary-tree")
"""Sums and results take trees of the same roots, which need not be all ranks. All others scatter sums to all ranks."""
_AROUND_ALL_RANKS = ("ring", "biring")
_A_LITTLE = Fraction(1_000_001, 1_000_000)


@dataclass(frozen=True, slots=True, eq=False)
class TimedChoice:
    """A method with its predicted seconds and time per byte, its traffic, and what gives its schedule."""

    method: str
    seconds: Fraction
    time_per_byte: Fraction
    traffic: Traffic
    schedule: Callable[[], AnySchedule]

    @property
    def key(self) -> tuple[Fraction, int]:
        """What is compared: seconds, then steps."""
        return self.seconds, len(self.traffic.steps)


class TimedChoices:
    """Which of `methods` is predicted to be the fastest at a size; what is known of a method serves all sizes.

    Algorithms with a closed form come first: their traffic is known without a schedule. Of the others only those are
    made that a lower bound leaves a chance: the bandwidth time that is proven, and the latency of the links between
    the two ranks that are farthest apart. Times are those of the congestion model, which verification finds, too.
    """

    def __init__(self, task: SynthesisTask, model: NetworkModel, methods: Sequence[Method]) -> None:
        self._task, self._model = task, model
        self._methods = sorted(methods, key=lambda method: method.name not in ALGORITHMS)
        self._floors = Floors(task.topology, task.collective)
        self._known: dict[tuple[str, int | None], tuple[TimedChoice, list[Congestion]] | None] = {}
        self._achieved: Fraction | None = None

    def at(self, size_bytes: int, without: Collection[str] = ()) -> TimedChoice:
        """Return the fastest choice for a vector of so many bytes; InvalidInput if no method suits.

        without: methods that are left out
        """
        best: TimedChoice | None = None
        for method in self._methods:
            if method.name in without:
                continue
            is_slower = best is not None and method.name not in ALGORITHMS and self._is_slower(method, size_bytes, best)
            known = None if is_slower else self._of(method, size_bytes)
            if known is not None:
                seconds = sum((part.seconds(self._model, size_bytes) for part in known[1]), Fraction(0))
                choice = replace(known[0], seconds=seconds)
                if best is None or choice.key < best.key:
                    best = choice
        if best is None:
            value = f"{self._task.collective.name.value} on {self._task.topology.spec}"
            raise InvalidInput("some method must suit the network, collective and options", value, "name a method")
        return best

    def _is_slower(self, method: Method, size_bytes: int, best: TimedChoice) -> bool:
        """Whether `method` cannot be faster than `best`."""
        topology = self._task.topology
        self._achieved = self._achieved or best.time_per_byte
        byte_s = self._floors.least_time(method.name, self._achieved) / self._model.unit_bytes_per_s(topology)
        hops = self._farthest
        if method.name in _AROUND_ALL_RANKS:
            hops = max(hops, topology.compute_count - 1)
        if self._task.collective == ALLREDUCE and method.name not in (*_BY_RANK_0, *_TREES_OF_ANY_ROOTS):
            hops *= 2
        hop_s = min(topology.links.latencies_s, default=Fraction(0)) + self._model.per_hop_s
        return byte_s * size_bytes + hops * hop_s + self._model.alpha_s > best.seconds

    @cached_property
    def _farthest(self) -> int:
        ranks = self._task.topology.compute_count
        return int(distances_to(self._task.topology, np.arange(ranks))[:, :ranks].max())

    def _of(self, method: Method, size_bytes: int) -> tuple[TimedChoice, list[Congestion]] | None:
        """Return the choice, without seconds, and what its streams cost; None if the method does not suit."""
        weighs_size = method.name == "bfb" and self._task.topology.bandwidth_unit != "link"
        key = (method.name, size_bytes if weighs_size else None)
        if key not in self._known:
            try:
                self._known[key] = self._predicted(method, key[1])
            except InvalidInput:
                self._known[key] = None
        return self._known[key]

    def _predicted(self, method: Method, size_bytes: int | None) -> tuple[TimedChoice, list[Congestion]]:
        from chorale.synth.schedule.traffic import traffic_of  # noqa: PLC0415 (only who names a size waits for it)
        from chorale.synth.simulation.congestion import congestion_of  # noqa: PLC0415 (as above)

        task, options = self._task, replace(self._task.options, size_bytes=size_bytes, link_gbps=None)
        arguments = (task.topology, task.collective, options, task.executor, task.progress)
        made: AnySchedule | None = None
        if isinstance(method, Algorithm) and not options.non_default():
            traffic = method.pattern(task.topology, task.collective).traffic()
        else:
            made = method.schedule(*arguments)
            traffic = traffic_of(made)
        streams = [congestion_of(stream) for stream in traffic.streams()]
        time_per_byte = sum((stream.time_per_byte for stream in streams), Fraction(0))
        choice = TimedChoice(
            method.name, Fraction(0), time_per_byte, traffic, lambda: made or method.schedule(*arguments)
        )
        return choice, streams


class Floors:
    """Lower bounds for the methods that make `collective` on `topology`, each computed when it is first asked for."""

    def __init__(self, topology: Topology, collective: Collective) -> None:
        self._topology = topology
        self._collective = collective
        self._bound = lru_cache(self._lower_bound)

    def rules_out(self, method: str, best: Cost) -> bool:
        """Whether `method` is neither faster than `best`, which some schedule takes, nor as fast in fewer steps."""
        time, steps = best
        if self.is_optimal(time) and self.least_steps(method, time) >= steps:
            return True
        least = self.least_time(method, time)
        if least > time or (least == time and self.least_steps(method, time) >= steps):
            return True
        return method in ALGORITHMS and self._sends_too_much(method, best)

    def is_optimal(self, time: Fraction) -> bool:
        """Whether no schedule takes less than `time` per byte, which a verified one takes."""
        return self._least(time) >= time

    def least_time(self, method: str, achieved: Fraction) -> Fraction:
        """Return a bound on the time of `method`; the search for one ends at `achieved`, which a schedule takes."""
        least = min(self._least(achieved), achieved)
        if self._collective == ALLREDUCE:
            return max(least, self._least_allreduce(method))
        if method == "bfb":
            return max(least, breadth_first_floor(self._topology, self._collective.name) or least)
        return least

    def _least(self, achieved: Fraction) -> Fraction:
        return self._bound(self._collective, achieved)

    def _lower_bound(self, collective: Collective, achieved: Fraction | None = None) -> Fraction:
        return lower_bound(self._topology, collective, achieved).value

    def _least_allreduce(self, method: str) -> Fraction:
        if method in _TREES_OF_ANY_ROOTS:
            return Fraction(0)
        if method in _BY_RANK_0:
            parts = [Collective(name, 0) for name in (CollectiveName.REDUCE, CollectiveName.BROADCAST)]
            return sum(map(self._bound, parts), Fraction(0))
        if method in _WHOLE_VECTORS:
            return (self._topology.compute_count.bit_length() - 1) / self._widest_rank
        phases = [self._bound(part) for part in (REDUCE_SCATTER, ALLGATHER)]
        if method == "bfb":
            floors = [breadth_first_floor(self._topology, part.name) for part in (REDUCE_SCATTER, ALLGATHER)]
            phases = [max(phase, floor or phase) for phase, floor in zip(phases, floors, strict=True)]
        return sum(phases, Fraction(0))

    @cached_property
    def _widest_rank(self) -> Fraction:
        """The most bandwidth that leaves a rank."""
        links, leaving = self._topology.links, [Fraction(0)] * self._topology.node_count
        for source, kind in zip(links.src.tolist(), links.bandwidth_class.tolist(), strict=True):
            leaving[source] += Fraction(links.bandwidths[kind])
        return max(leaving[: self._topology.compute_count])

    def least_steps(self, method: str, time: Fraction) -> int:
        """Return a bound on the steps of a schedule by `method` that takes `time` per byte.

        On direct networks methods without a closed form send to neighbours only, and the others where time is short.
        """
        if self._collective not in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE):
            return 0
        phases = 2 if self._collective == ALLREDUCE else 1
        if method in _AROUND_ALL_RANKS:
            return (self._topology.compute_count - 1) * phases
        if phases == 1:
            if self._topology.switch_count:
                return self._steps_to_all(time)
            return 1 if method in ALGORITHMS and not self._is_tight(time) else self._diameter
        if method in _WHOLE_VECTORS:
            return self._topology.compute_count.bit_length() - 1
        if self._topology.switch_count == 0:
            return self._steps_by_one_rank if self._is_tight(time) else 0
        if method in (*_BY_RANK_0, *_TREES_OF_ANY_ROOTS):
            return 2
        others = [time - self._bound(part) for part in (REDUCE_SCATTER, ALLGATHER)]
        return sum(map(self._steps_to_all, others))

    def _steps_to_all(self, time: Fraction) -> int:
        """Return 2 where every rank cannot send its shard to each other rank itself within `time`, else 1.

        Between every two ranks that is as much as of an all-to-all of the same vector.
        """
        return 2 if self._bound(ALLTOALL, time * _A_LITTLE) > time else 1

    @cached_property
    def _diameter(self) -> int:
        return diameter(self._topology)

    def _is_tight(self, time: Fraction) -> bool:
        """Whether within `time` the links of a direct network carry no more than the fewest messages, over a link each.

        These are one of the whole vector for each rank but one, of an allreduce (without an exchange) two.
        """
        fewest = {ALLGATHER: 1, REDUCE_SCATTER: 1, ALLREDUCE: 2}.get(self._collective, 0)
        return time * self._total_bandwidth <= fewest * (self._topology.compute_count - 1)

    @cached_property
    def _total_bandwidth(self) -> Fraction:
        links = self._topology.links
        count = np.bincount(links.bandwidth_class[links.src != links.dst], minlength=len(links.bandwidths))
        counted = zip(links.bandwidths, count.tolist(), strict=True)
        return sum((Fraction(value) * many for value, many in counted), Fraction(0))

    def _sends_too_much(self, method: str, best: Cost) -> bool:
        """Whether the closed form of `method` is not better than `best`, by its steps and by how far messages go."""
        try:
            pattern = ALGORITHMS[method].pattern(self._topology, self._collective)
        except InvalidInput:
            return True
        if self.is_optimal(best[0]) and pattern.step_count >= best[1]:
            return True
        time = self._least_time_of(pattern)
        return time > best[0] or (time == best[0] and pattern.step_count >= best[1])

    def _least_time_of(self, pattern: CollectivePattern) -> Fraction:
        """Return a bound on the time of `pattern`, whose messages take shortest paths, from what they must load.

        All links together carry each message over as many links as it is far; and a link by which all shortest paths
        leave a rank carries all messages that take them.
        """
        volume, time = 0, Fraction(0)
        for src, dst, amount in pattern.messages():
            carried = int((self._hops[dst, src].astype(np.int64) * amount).sum())
            volume += carried
            load = np.zeros(len(self._topology.links) + 1, dtype=np.int64)
            np.add.at(load, self._sole_links[dst, src], amount)  # what has several ways goes to the last element
            time += max(carried / self._total_bandwidth, self._topology.links.longest_time(load[:-1]))
        if pattern.kind == "pipelined":
            time = volume / self._total_bandwidth  # steps take place at the same time
        return time / pattern.denominator

    @cached_property
    def _hops(self) -> Distances:
        return distances_to(self._topology, np.arange(self._topology.compute_count))

    @cached_property
    def _sole_links(self) -> NDArray[np.int64]:
        return sole_links(self._hops, self._topology.links.src, self._topology.links.dst)

    @cached_property
    def _steps_by_one_rank(self) -> int:
        """The fewest steps in which all ranks can reach one that reaches all ranks then."""
        hops = self._hops.astype(np.int64)
        return int((hops.max(axis=1) + hops.max(axis=0)).min())
