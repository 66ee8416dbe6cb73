"""Makes schedules with the method `in-network`: trees use switches that reduce and multicast if that is faster."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from chorale.synth.bounds.lower_bound import in_network_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.optimum import COARSE_K, Bound
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.methods.forest.reversible_trees import PairedTrees, packed_trees, schedule_of_pairs, there_and_back
from chorale.synth.methods.in_network.pair_packing import pair_packing, pairs_of_packing
from chorale.synth.methods.in_network.trees import (
    best_split,
    mates_of,
    rate_of_pairs,
    spreading_trees,
    whole_units,
    with_equal_widths,
)
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import AnySchedule, Parameter
from chorale.synth.topology.expansions import promoted
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.verify.verify import verify

_MANY_UNITS = 1024
"""Above this number of units per rank, smaller numbers are tried. Measured bandwidths often need very many units."""


_Builder = tuple[str, Fraction, Callable[[int | None], PairedTrees], Mapping[str, Any] | None]
"""A way to build trees: its name; the allreduce rate that its linear program promises; a function that makes trees for
a vector of about the given number of units (None: enough units to lose no speed); and a certificate that no pairs of
trees are faster, or None."""


def in_network_schedule(
    topology: Topology, collective: Collective, options: Options, ranks_alone: Callable[[], AnySchedule]
) -> AnySchedule:
    """Return the fastest known schedule for switches that reduce and multicast, without verifying it.

    `ranks_alone` makes a schedule in which switches only forward data; if that is faster, it is returned. Raises
    InvalidInput if no switch can reduce or multicast.
    """
    bound = in_network_bound(topology, collective)
    if bound is None:
        advice = "choose such a network, or describe what its switches can do: 'able(fattree:4)'"
        raise InvalidInput("no switch of {} can multicast or add", topology.spec, advice)
    if collective.name != CollectiveName.ALLREDUCE:
        return _one_way(topology, collective, options, bound, ranks_alone)
    best: tuple[Fraction, str, PairedTrees] | None = None
    certificate = bound.to_json(topology)
    for name, promised, build, proof in _builders(topology, options, 1 / bound.value):
        if proof is not None and Fraction(proof["time_per_byte"]) > Fraction(certificate["time_per_byte"]):
            certificate = proof
        if best is None or best[0] < promised:
            pairs = _built(build, promised, topology, options)
            rate = Fraction(0) if pairs is None else rate_of_pairs(topology, pairs)
            if pairs is not None and (best is None or rate > best[0]):
                best = rate, name, pairs
    if best is None or 1 / reduce_scatter_allgather_time(topology) > best[0]:
        return ranks_alone()
    parameters = _parameters(options, best[1])
    return schedule_of_pairs(
        topology, collective, best[2], method="in-network", parameters=parameters, certificate=certificate
    )


def _parameters(options: Options, construction: str) -> Mapping[str, Parameter]:
    return {"construction": construction, "k": options.k, "objective": options.objective, "seed": options.seed}


def _builders(topology: Topology, options: Options, enough: Fraction) -> Iterator[_Builder]:
    """Yield up to three ways to build trees, in this order, until one promises the rate `enough`:

    - "promotion": trees that visit all switches that can multicast and can reduce at an unlimited rate;
    - "columns": column generation over trees that are used in both directions;
    - "pairs": column generation over pairs of different trees.
    """
    equal = with_equal_widths(topology)
    mates = None if equal is None else mates_of(equal)
    if equal is not None and mates is not None:
        able = [
            node
            for node, ability in equal.abilities.items()
            if ability.multicast and ability.reduce and ability.reduce_bandwidth is None
        ]
        relabelled = promoted(equal, able) if able else None
        split = None if relabelled is None else best_split(relabelled)
        if relabelled is not None and split is not None and split.rate > 0:

            def build(units: int | None) -> PairedTrees:
                return there_and_back(
                    packed_trees(equal, relabelled, whole_units(relabelled, split, units), options), mates
                )

            yield "promotion", split.rate, build, None
            if split.rate >= enough:
                return
        packing = pair_packing(equal, enough, mates)
        if packing is not None and packing.rate > 0:
            # Prices prove a bound only for the topology itself, not for one with narrower links.
            proof = packing.certificate if equal is topology else None
            yield "columns", packing.rate, lambda units: pairs_of_packing(packing, units), proof
            if packing.rate >= enough:
                return
    if equal is not topology or any(each.multicast != each.reduce for each in topology.abilities.values()):
        pairs = pair_packing(topology, enough)
        if pairs is not None and pairs.rate > 0:
            yield "pairs", pairs.rate, lambda units: pairs_of_packing(pairs, units), pairs.certificate


def _built(
    build: Callable[[int | None], PairedTrees], promised: Fraction, topology: Topology, options: Options
) -> PairedTrees | None:
    """Build trees that reach the rate `promised`; return None if a switch cannot be removed or numbers are too large.

    With `options.k`, the vector has k units per rank. Otherwise, it has as many units as the promised rate needs. If
    these are over `_MANY_UNITS` per rank, the first of `COARSE_K` that comes within `options.gap` is used instead.
    """

    def built(units: int | None) -> PairedTrees | None:
        try:
            return build(units)
        except (InvalidInput, Unavailable):
            return None

    ranks = topology.compute_count
    if options.k is not None:
        return built(options.k * ranks)
    whole = built(None)
    most = 0 if whole is None else whole.outward.units
    for k in COARSE_K if most > _MANY_UNITS * ranks and options.gap > 0 else ():
        coarse = built(k * ranks) if k * ranks < most else None
        if coarse is not None and rate_of_pairs(topology, coarse) * (1 + options.gap) >= promised:
            return coarse
    return whole


def _one_way(
    topology: Topology, collective: Collective, options: Options, bound: Bound, ranks_alone: Callable[[], AnySchedule]
) -> AnySchedule:
    """Return a schedule of trees over switches that multicast (or reduce), or the faster one from `ranks_alone`."""
    spread = Collective(CollectiveName.BROADCAST, collective.root) if collective.is_rooted else ALLGATHER
    is_sum = collective.name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE)
    switches = [
        node
        for node, ability in topology.abilities.items()
        if (ability.reduce and ability.reduce_bandwidth is None if is_sum else ability.multicast)
    ]
    if not switches:
        return ranks_alone()
    back, network = mates_of(topology) if is_sum else None, topology
    if is_sum and back is None:  # sums run backwards along trees on the transposed network
        network, back = transpose_with_links(topology)
    trees, time = spreading_trees(network, spread, switches, options)
    pairs = PairedTrees(trees, trees) if back is None else there_and_back(trees, back)
    parameters, proof = _parameters(options, "promotion"), bound.to_json(topology)
    schedule = schedule_of_pairs(
        topology, collective, pairs, method="in-network", parameters=parameters, certificate=proof
    )
    if time <= bound.value:
        return schedule
    try:
        alone = ranks_alone()
    except InvalidInput:
        return schedule
    return alone if verify(alone).cost.time_per_byte < time else schedule
