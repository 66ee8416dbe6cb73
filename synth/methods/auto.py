"""The method `auto`: the schedule of lowest proven cost that any method makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.method import Method, Options
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import cost_if_sound

if TYPE_CHECKING:
    from chorale.synth.methods.floors import Cost

AUTO = "auto"
MAX_RANKS_ALL_METHODS = 64
"""Up to that many ranks every method is tried, beyond it those that can reach the optimum."""
MAX_RANKS_SECOND_METHOD = 1024
"""Up to that many ranks a second method is tried where the first has not reached the lower bound."""

_OPTIMAL_METHODS = ("bfb", "forest")


def auto_method(
    methods: Mapping[str, Method],
    max_ranks_all_methods: int = MAX_RANKS_ALL_METHODS,
    max_ranks_second_method: int = MAX_RANKS_SECOND_METHOD,
) -> Method:
    """Return the method that tries `methods` and returns the schedule with the least time per byte, then steps.

    The schedule names the method that made it. Breadth-first broadcast takes the fewest steps that are possible, and
    tree packing reaches the optimum of every network where a rank may hold many trees; so large networks are left to
    these two. Tree packing comes first where breadth-first broadcast is known to miss the optimum before it is made, as
    on meshes. A method that `chorale.synth.methods.floors` proves not to be better than the best so far is left out.
    The schedule is compared by what it costs if it is sound, and verified by whoever asked for it. Raises InvalidInput
    if no method suits. Cost: that of the methods tried, and where several are, of a few lower bounds.
    """

    def make(
        topology: Topology, collective: Collective, options: Options, executor: Executor, progress: Progress | None
    ) -> AnySchedule:
        from chorale.synth.methods.floors import Floors  # noqa: PLC0415 (only who compares methods waits for it)

        best: tuple[Cost, AnySchedule] | None = None
        floors = Floors(topology, collective)
        tries_all = topology.compute_count <= max_ranks_all_methods
        compares = topology.compute_count <= max_ranks_second_method
        candidates = list(_candidates(methods, topology, collective, options, tries_all))
        if len(candidates) == 1:
            return candidates[0].schedule(topology, collective, options, executor, progress)
        for method in candidates:
            if best is not None:
                if not tries_all and floors.is_optimal(best[0][0]):
                    break  # small networks try other methods, for the sake of steps
                if floors.rules_out(method.name, best[0]):
                    continue
            schedule = _schedule_or_none(method, topology, collective, options, executor, progress)
            if schedule is not None and not compares:
                return schedule
            if schedule is not None:
                cost = cost_if_sound(schedule, options.size_bytes)
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
    return next((method.name for method in _candidates(methods, topology, collective, options, tries_all)), None)


def _candidates(
    methods: Mapping[str, Method], topology: Topology, collective: Collective, options: Options, tries_all: bool
) -> Iterator[Method]:
    """Yield the methods that make `collective` and obey all options, those that reach optima first."""
    packs_first = not options.non_default() and _breadth_first_misses(topology, collective)
    optimal: tuple[str, ...] = _OPTIMAL_METHODS[::-1] if packs_first else _OPTIMAL_METHODS
    if collective.name == CollectiveName.ALLTOALL:
        optimal = ("alltoall",)
    for name in (*optimal, *(name for name in methods if tries_all and name not in optimal)):
        method = methods[name]
        if collective.name in method.collectives and set(options.non_default()) <= set(method.options):
            yield method


@lru_cache(maxsize=2)
def _breadth_first_misses(topology: Topology, collective: Collective) -> bool:
    """Whether breadth-first broadcast is known to be slower than trees, before either is made."""
    from chorale.synth.bounds.lower_bound import lower_bound  # noqa: PLC0415 (as above)
    from chorale.synth.methods.bfb.floor import breadth_first_floor  # noqa: PLC0415

    behind = Fraction(0)
    for part in (ALLGATHER, REDUCE_SCATTER) if collective == ALLREDUCE else (collective,):
        floor = breadth_first_floor(topology, part.name)
        if floor is None:
            return False
        behind += floor - min(floor, lower_bound(topology, part, floor).value)
    return behind > 0


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
