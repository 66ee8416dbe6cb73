"""The method `in-network`: the best of trees over switches that add and multicast, and of those of ranks alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import in_network_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.optimum import COARSE_K, Bound
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.methods.in_network.pair_packing import pair_packing, pairs_of_packing
from chorale.synth.methods.in_network.paired_trees import (
    PairedTrees,
    ReversibleTrees,
    mates_of,
    rate_of_pairs,
    schedule_of_pairs,
    there_and_back,
    turned_around,
    with_equal_widths,
    without_leaf_switches,
)
from chorale.synth.methods.in_network.splits import (
    UndirectedSplit,
    best_split,
    packed_trees,
    spreading_trees,
    whole_units,
)
from chorale.synth.methods.in_network.stars import boxes_of, star_plan
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import AnySchedule, Parameter, Schedule
from chorale.synth.topology.relabelling import Relabelled, promoted
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.verify.verify import verify

_MANY_UNITS = 1024
"""Units per rank from which fewer are tried, since measured bandwidths are the likely reason for so many."""

_SUMS = (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A way to build trees, the rate that it promises, and a proof, if any, that no pairs of trees are better.

    build: takes the number of units of the vector that trees carry, about; None for as many as lose nothing
    """

    name: str
    rate: Fraction
    build: Callable[[int | None], PairedTrees | None]
    proof: Mapping[str, Any] | None = None


def in_network_schedule(
    topology: Topology, collective: Collective, options: Options, ranks_alone: Callable[[], AnySchedule]
) -> AnySchedule:
    """Return the fastest schedule that is known, with switches that add and multicast. Not verified.

    ranks_alone: makes the schedule of ranks alone, taken where it is faster.
    Raises InvalidInput where no switch can do anything.
    """
    bound = in_network_bound(topology, collective)
    if bound is None:
        way_out = "choose such a fabric, or say what its switches can do: 'able(fattree:4)'"
        raise InvalidInput("in-network schedules need switches that multicast or add", topology.spec, way_out)
    if collective.name != CollectiveName.ALLREDUCE:
        return _one_way(topology, collective, options, bound, ranks_alone)
    candidates = _by_promise(topology, options, bound)
    best: tuple[Fraction, str, PairedTrees] | None = None
    for candidate in candidates:
        if best is not None and best[0] >= candidate.rate:
            break
        pairs = _built(candidate, topology, options)
        rate = None if pairs is None else rate_of_pairs(topology, pairs)
        if pairs is not None and rate is not None and (best is None or rate > best[0]):
            best = rate, candidate.name, pairs
    alone = 1 / reduce_scatter_allgather_time(topology)
    if best is None or alone > best[0]:
        return ranks_alone()
    return _schedule(topology, collective, best[2], options, best[1], _certificate(topology, bound, candidates))


def _certificate(topology: Topology, bound: Bound, candidates: Sequence[_Candidate]) -> Mapping[str, Any]:
    """Return the proof about pairs of trees that says most, if it says more than `bound`."""
    proofs = [candidate.proof for candidate in candidates if candidate.proof is not None]
    best = max(proofs, key=lambda proof: Fraction(proof["time_per_byte"]), default=None)
    return bound.to_json(topology) if best is None or Fraction(best["time_per_byte"]) <= bound.value else best


def _by_promise(topology: Topology, options: Options, bound: Bound) -> list[_Candidate]:
    """Return ways to build trees, the fastest first; column generation only where the others miss the bound."""
    enough = 1 / bound.value
    candidates: list[_Candidate] = []
    equal = with_equal_widths(topology)
    mates = None if equal is None else mates_of(equal)
    if equal is not None and mates is not None:
        candidates += _promotion(equal, mates, options)
        candidates += _star(equal, mates, options, candidates)
        if all(candidate.rate < enough for candidate in candidates):
            # Prices speak of the topology itself only, not of a narrower one.
            found = _pairs("columns", equal, enough, mates)
            candidates += [each if equal is topology else replace(each, proof=None) for each in found]
    are_alike = all(ability.multicast == ability.reduce for ability in topology.abilities.values())
    if (equal is not topology or not are_alike) and all(candidate.rate < enough for candidate in candidates):
        candidates += _pairs("pairs", topology, enough)
    return sorted(candidates, key=lambda candidate: (-candidate.rate, candidate.name != "star"))


def _star(
    topology: Topology, mates: NDArray[np.int32], options: Options, others: Sequence[_Candidate]
) -> Iterator[_Candidate]:
    """Yield stars in boxes, unless already the boxes are slower than `others`."""
    boxes = boxes_of(topology) or []
    limit = min((box.rate for box in boxes if box.rate is not None), default=Fraction(0))
    plan = star_plan(topology, boxes) if limit and all(limit >= other.rate for other in others) else None
    if plan is not None:
        yield _Candidate("star", plan.rate, lambda units: there_and_back(plan.trees(topology, options, units), mates))


def _promotion(topology: Topology, mates: NDArray[np.int32], options: Options) -> Iterator[_Candidate]:
    able = [
        node
        for node, ability in topology.abilities.items()
        if ability.multicast and ability.reduce and ability.reduce_bandwidth is None
    ]
    if able:
        relabelled = promoted(topology, able)
        split = best_split(relabelled)
        if split is not None and split.rate > 0:
            yield _Candidate(
                "promotion",
                split.rate,
                lambda units: there_and_back(_promoted_trees(topology, relabelled, split, options, units), mates),
            )


def _promoted_trees(
    topology: Topology, relabelled: Relabelled, split: UndirectedSplit, options: Options, units: int | None
) -> ReversibleTrees:
    trees = packed_trees(topology, relabelled, whole_units(relabelled, split, units), options)
    return without_leaf_switches(topology, trees)


def _pairs(
    name: str, topology: Topology, enough: Fraction, mates: NDArray[np.int32] | None = None
) -> Iterator[_Candidate]:
    packing = pair_packing(topology, enough, mates)
    if packing is not None and packing.rate > 0:
        yield _Candidate(name, packing.rate, lambda units: pairs_of_packing(packing, units), packing.certificate)


def _built(candidate: _Candidate, topology: Topology, options: Options) -> PairedTrees | None:
    """Return the trees, None where a switch stands in the way or numbers are too large.

    They carry k units for each rank, or the fewest with which at most the gap of `options` is lost.
    """

    def built(units: int | None) -> PairedTrees | None:
        try:
            return candidate.build(units)
        except (InvalidInput, Unavailable):
            return None

    ranks = topology.compute_count
    if options.k is not None:
        return built(options.k * ranks)
    whole = built(None)
    most = 0 if whole is None else whole.outward.units
    for k in COARSE_K if most > _MANY_UNITS * ranks and options.gap > 0 else ():
        coarse = built(k * ranks) if k * ranks < most else None
        if coarse is not None and rate_of_pairs(topology, coarse) * (1 + options.gap) >= candidate.rate:
            return coarse
    return whole


def _one_way(
    topology: Topology, collective: Collective, options: Options, bound: Bound, ranks_alone: Callable[[], AnySchedule]
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
    mates = mates_of(topology) if is_sum else None
    if is_sum and mates is None:
        turned, origin = transpose_with_links(topology)
        trees, time = spreading_trees(turned, spread, switches, options)
        pairs = turned_around(trees, origin)
    else:
        trees, time = spreading_trees(topology, spread, switches, options)
        pairs = PairedTrees(trees, trees) if mates is None else there_and_back(trees, mates)
    schedule = _schedule(topology, collective, pairs, options, "promotion", bound.to_json(topology))
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
    pairs: PairedTrees,
    options: Options,
    construction: str,
    certificate: Mapping[str, Any],
) -> Schedule:
    parameters: dict[str, Parameter] = {
        "construction": construction,
        "k": options.k,
        "objective": options.objective,
        "seed": options.seed,
    }
    return schedule_of_pairs(
        topology, collective, pairs, method="in-network", parameters=parameters, certificate=certificate
    )
