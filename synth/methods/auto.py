"""The method `auto`: the schedule of lowest proven cost that any method makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.method import Method, Options
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

AUTO = "auto"
MAX_RANKS_ALL_METHODS = 64
"""Up to that many ranks every method is tried, beyond it those that can reach the optimum."""
MAX_RANKS_SECOND_METHOD = 1024
"""Up to that many ranks a second method is tried where the first has not reached the lower bound."""

_OPTIMAL_METHODS = ("bfb", "forest")

Cost = tuple[Fraction, int]


def auto_method(
    methods: Mapping[str, Method],
    max_ranks_all_methods: int = MAX_RANKS_ALL_METHODS,
    max_ranks_second_method: int = MAX_RANKS_SECOND_METHOD,
) -> Method:
    """Return the method that tries `methods` and returns the schedule with the least time per byte, then steps.

    The schedule names the method that made it. Breadth-first broadcast takes the fewest steps that are possible, and
    tree packing reaches the optimum of every network where a rank may hold many trees; so large networks are left to
    these two, and the second is tried only where the first misses the lower bound. Raises InvalidInput if no method
    suits. Cost: that of the methods tried, and where several are, of verifying each and of one lower bound.
    """

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> AnySchedule:
        best: tuple[Cost, AnySchedule] | None = None
        tries_all = topology.compute_count <= max_ranks_all_methods
        compares = topology.compute_count <= max_ranks_second_method
        for method in _candidates(methods, collective, options, tries_all):
            if best is not None and not tries_all and _is_optimal(topology, collective, best[0]):
                break  # small networks try all methods, for the sake of steps
            schedule = _schedule_or_none(method, topology, collective, options, executor, progress)
            if schedule is not None and not compares:
                return schedule
            if schedule is not None:
                cost = verify(schedule, options.size_bytes).cost
                key = (cost.time_per_byte, cost.steps)
                best = (key, schedule) if best is None or key < best[0] else best
        if best is None:
            value = f"{collective.name.value} on {topology.spec}"
            raise InvalidInput("some method must suit the network, collective and options", value, "name a method")
        return best[1]

    collectives = tuple(dict.fromkeys(name for method in methods.values() for name in method.collectives))
    options = tuple(dict.fromkeys(name for method in methods.values() for name in method.options))
    return Method(AUTO, "the best of all methods: least time per byte, then fewest steps", collectives, options, make)


def first_method(
    methods: Mapping[str, Method], topology: Topology, collective: Collective, options: Options
) -> str | None:
    """Return the name of the method that is tried first, and wins on large networks; None if no method suits."""
    tries_all = topology.compute_count <= MAX_RANKS_ALL_METHODS
    return next((method.name for method in _candidates(methods, collective, options, tries_all)), None)


def _candidates(
    methods: Mapping[str, Method], collective: Collective, options: Options, tries_all: bool
) -> Iterator[Method]:
    """Yield the methods that make `collective` and obey all options, those that reach optima first."""
    for name in (*_OPTIMAL_METHODS, *(name for name in methods if tries_all and name not in _OPTIMAL_METHODS)):
        method = methods[name]
        if collective.name in method.collectives and set(options.non_default()) <= set(method.options):
            yield method


def _is_optimal(topology: Topology, collective: Collective, cost: Cost) -> bool:
    return lower_bound(topology, collective, cost[0]).value == cost[0]


def _schedule_or_none(
    method: Method,
    topology: Topology,
    collective: Collective,
    options: Options,
    executor: Executor,
    progress: Progress | None,
) -> AnySchedule | None:
    """Return the schedule, None where the method says that it does not suit the network."""
    try:
        return method.schedule(topology, collective, options, executor, progress)
    except InvalidInput:
        return None
