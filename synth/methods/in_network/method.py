"""The method `in-network`: the best of trees over switches that add and multicast, and of those of ranks alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.in_network import in_network_bound
from chorale.synth.bounds.lower_bound import reduce_scatter_allgather_time
from chorale.synth.bounds.optimum import Bound
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.methods.in_network.reversible_trees import (
    ReversibleTrees,
    mates_of,
    schedule_of_trees,
    without_leaf_switches,
)
from chorale.synth.methods.in_network.spreading_trees import spreading_trees
from chorale.synth.methods.in_network.stars import boxes_of, star_plan
from chorale.synth.methods.in_network.tree_columns import column_packing, trees_of_packing
from chorale.synth.methods.in_network.tree_packing import loads_per_unit, packed_trees, whole_units
from chorale.synth.methods.in_network.undirected_split import UndirectedSplit, best_split
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import AnySchedule, Parameter, Schedule
from chorale.synth.topology.relabelling import Relabelled, promoted
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify

_GATHERS = (CollectiveName.ALLGATHER, CollectiveName.BROADCAST)
_SUMS = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A way to build trees, and the rate that it promises."""

    name: str
    rate: Fraction
    build: Callable[[], ReversibleTrees | None]


def in_network_schedule(
    topology: Topology, collective: Collective, options: Options, ranks_alone: Callable[[], AnySchedule]
) -> AnySchedule:
    """Return the fastest schedule that is known, with switches that add and multicast. Not verified.

    ranks_alone: makes the schedule of ranks alone, taken where it is faster.
    Raises InvalidInput where no switch can do anything, and where links are not as wide both ways.
    """
    mates = _mates(topology, collective)
    bound = in_network_bound(topology, collective)
    if bound is None:
        raise AssertionError("able switches have a bound")
    if collective.name != CollectiveName.ALLREDUCE:
        return _one_way(topology, collective, options, mates, bound, ranks_alone)
    best: tuple[Fraction, str, ReversibleTrees] | None = None
    for candidate in _by_promise(topology, mates, options, bound):
        if best is not None and best[0] >= candidate.rate:
            break
        trees = _built(candidate)
        rate = None if trees is None else rate_of(topology, trees, mates)
        if trees is not None and rate is not None and (best is None or rate > best[0]):
            best = rate, candidate.name, trees
    alone = 1 / reduce_scatter_allgather_time(topology)
    if best is None or alone > best[0]:
        return ranks_alone()
    return _schedule(topology, collective, best[2], mates, options, best[1], bound)


def _mates(topology: Topology, collective: Collective) -> NDArray[np.int32]:
    if not topology.abilities:
        way_out = "choose such a fabric, or say what its switches can do: 'able(fattree:4)'"
        raise InvalidInput("in-network schedules need switches that multicast or add", topology.spec, way_out)
    mates = mates_of(topology)
    if mates is not None:
        return mates
    if collective.name in _GATHERS:
        return np.arange(len(topology.links), dtype=np.int32)  # results only go outward: no link back is used
    rule = "in-network sums need links that are as wide one way as the other"
    raise InvalidInput(rule, topology.spec, "leave --in-network out")


def _by_promise(topology: Topology, mates: NDArray[np.int32], options: Options, bound: Bound) -> list[_Candidate]:
    """Return ways to build trees, the fastest first; column generation only where the others miss the bound."""
    enough = 1 / bound.value
    units = _units(topology, options)
    candidates = [*_promotion(topology, options)]
    candidates = [*_star(topology, options, units, candidates), *candidates]
    if all(candidate.rate < enough for candidate in candidates):
        candidates += _columns(topology, mates, units, enough)
    return sorted(candidates, key=lambda candidate: -candidate.rate)


def _star(topology: Topology, options: Options, units: int | None, others: list[_Candidate]) -> Iterator[_Candidate]:
    """Yield stars in boxes, unless already the boxes are slower than `others`."""
    boxes = boxes_of(topology) or []
    limit = min((box.rate for box in boxes if box.rate is not None), default=Fraction(0))
    plan = star_plan(topology, boxes) if limit and all(limit >= other.rate for other in others) else None
    if plan is not None:
        yield _Candidate("star", plan.rate, lambda: plan.trees(topology, options, units))


def _promotion(topology: Topology, options: Options) -> Iterator[_Candidate]:
    able = [
        node
        for node, ability in topology.abilities.items()
        if ability.multicast and ability.reduce and ability.reduce_bandwidth is None
    ]
    if able:
        relabelled = promoted(topology, able)
        split = best_split(relabelled)
        if split is not None and split.rate > 0:
            yield _Candidate("promotion", split.rate, lambda: _promoted_trees(topology, relabelled, split, options))


def _promoted_trees(
    topology: Topology, relabelled: Relabelled, split: UndirectedSplit, options: Options
) -> ReversibleTrees:
    units = _units(topology, options)
    trees = packed_trees(topology, relabelled, whole_units(relabelled, split, units), options)
    return without_leaf_switches(topology, trees)


def _units(topology: Topology, options: Options) -> int | None:
    """Return about how many units of the vector the trees carry: k for each rank; None for as many as it takes."""
    return None if options.k is None else options.k * topology.compute_count


def _columns(topology: Topology, mates: NDArray[np.int32], units: int | None, enough: Fraction) -> Iterator[_Candidate]:
    packing = column_packing(topology, mates, enough)
    if packing is not None and packing.rate > 0:
        yield _Candidate("columns", packing.rate, lambda: trees_of_packing(topology, packing, units))


def _built(candidate: _Candidate) -> ReversibleTrees | None:
    """Return the trees, None where a switch stands in the way or numbers are too large."""
    try:
        return candidate.build()
    except (InvalidInput, Unavailable):
        return None


def rate_of(topology: Topology, trees: ReversibleTrees, mates: NDArray[np.int32]) -> Fraction:
    """Return the rate of `trees` as links and limited adders allow it, exactly."""
    time = topology.links.longest_time(loads_per_unit(topology, trees, mates))
    for switch, ability in topology.abilities.items():
        if ability.reduce_bandwidth is not None:
            time = max(time, _sums_at(trees, switch) / ability.reduce_bandwidth)
    return trees.units / time


def _sums_at(trees: ReversibleTrees, switch: int) -> Fraction:
    """Return how many units a switch adds up: those that it gets from several neighbours."""
    children = np.bincount(trees.tree[trees.src == switch], minlength=len(trees.root))
    return Fraction(int(trees.weight[children > 1].sum()))


def _one_way(
    topology: Topology,
    collective: Collective,
    options: Options,
    mates: NDArray[np.int32],
    bound: Bound,
    ranks_alone: Callable[[], AnySchedule],
) -> AnySchedule:
    """Return trees one way over switches that multicast, or add; those of ranks alone where these are faster."""
    spread = Collective(CollectiveName.BROADCAST, collective.root) if collective.is_rooted else ALLGATHER
    is_sum = collective.name in _SUMS
    switches = [
        node
        for node, ability in topology.abilities.items()
        if (ability.reduce and ability.reduce_bandwidth is None if is_sum else ability.multicast)
    ]
    if not switches:
        return ranks_alone()
    trees, time = spreading_trees(topology, spread, switches, options)
    schedule = _schedule(topology, collective, trees, mates, options, "promotion", bound)
    if time <= bound.value:
        return schedule
    try:
        alone = ranks_alone()
    except InvalidInput:
        return schedule
    return alone if verify(alone).cost.time_per_byte < time else schedule


def _schedule(
    topology: Topology,
    collective: Collective,
    trees: ReversibleTrees,
    mates: NDArray[np.int32],
    options: Options,
    construction: str,
    bound: Bound,
) -> Schedule:
    parameters: dict[str, Parameter] = {
        "construction": construction,
        "k": options.k,
        "objective": options.objective,
        "seed": options.seed,
    }
    return schedule_of_trees(
        topology, collective, trees, mates,
        method="in-network", parameters=parameters, certificate=bound.to_json(topology),
    )  # fmt: skip
