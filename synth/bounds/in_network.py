"""Lower bounds on collectives where switches multicast and add, with certificates.

What crosses a cut is the same whoever adds, so that bounds of cuts stay. That of groups changes: contract each group to
one process; p processes that copy and add need 2 (p - 1) receipts, if every switch that adds is part of a process
(the first process that knows a sum has p - 1 receipts in its past, and each other one gets one more). Switches that
only multicast may stay outside, since every receipt is counted; turned around in time, sends are counted and switches
that only add may stay outside. An adder outside that makes at most s sums takes part in s of the vector at most, for
which each of the p processes still receives once: 2 (p - 1) (rate - s) + p s receipts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import lower_bound, tight_parts
from chorale.synth.bounds.optimum import Bound, improving_cuts, node_set, search_for
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.topology import Topology

_MOST_WIDTHS = 16

_DIRECTIONS = (
    ("received", "into", ALLGATHER, CollectiveName.BROADCAST),
    ("sent", "out-of", REDUCE_SCATTER, CollectiveName.REDUCE),
)


def in_network_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound | None:
    """Return the best bound known on `collective` where switches do what they can; None where none does anything.

    Cuts hold for any schedule, groups for every schedule that copies and adds. Only for allreduce does the bound differ
    from that of ranks alone (`lower_bound`): the others are bounded by cuts. With `achieved`, the time of a verified
    schedule, the search ends as soon as a bound meets it.

    >>> from synth import parse_collective, parse_topology
    >>> allreduce = parse_collective("allreduce")
    >>> [str(1 / in_network_bound(parse_topology(spec), allreduce).value) for spec in ("h100:1", "h100:2", "h100:5")]
    ['450', '400', '250']
    """
    if not topology.abilities:
        return None
    if collective.name != CollectiveName.ALLREDUCE:
        return lower_bound(topology, collective, achieved)
    best: Bound | None = None
    for bound in _allreduce_bounds(topology):
        if best is None or bound.value > best.value:
            best = bound
        if achieved is not None and best.value >= achieved:
            break
    return best


def bound_of_ranks(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best bound known on ranks alone; see `lower_bound`.

    What holds where switches act holds for ranks alone, too, and is sometimes more.
    """
    alone = lower_bound(topology, collective, achieved)
    if achieved is not None and alone.value >= achieved:
        return alone
    acting = in_network_bound(topology, collective, achieved)
    return alone if acting is None else stronger(alone, acting)


def stronger(first: Bound, second: Bound) -> Bound:
    """Return the bound that proves more, the first of equal ones."""
    return second if second.value > first.value else first


def bound_of_schedule(schedule: AnySchedule, achieved: Fraction) -> Bound:
    """Return the best bound for schedules like this one, in which switches act or ranks alone; see `lower_bound`.

    An all-to-all brings prices of links that prove more than cuts do.
    """
    priced = _by_prices(schedule)
    if priced is not None and priced.value >= achieved:
        return priced
    bound = in_network_bound(schedule.topology, schedule.collective, achieved) if schedule.is_in_network else None
    bound = bound or bound_of_ranks(schedule.topology, schedule.collective, achieved)
    return bound if priced is None else stronger(priced, bound)


def _by_prices(schedule: AnySchedule) -> Bound | None:
    """Return what the certificate of an all-to-all says, still to be checked; None where there is none to be read."""
    certificate = schedule.certificate
    if schedule.collective.name != CollectiveName.ALLTOALL or certificate.get("kind") != "alltoall-prices":
        return None
    try:
        prices, upper = tuple(certificate["prices"]), Fraction(certificate["rate_upper"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not prices or upper <= 0:
        return None
    return Bound("alltoall-prices", (), 1 / (upper * schedule.topology.compute_count), prices=prices)


def _allreduce_bounds(topology: Topology) -> Iterator[Bound]:
    directions = _DIRECTIONS[:1] if topology.is_eulerian else _DIRECTIONS
    for _, kind, _, rooted in directions:
        for time, cut in improving_cuts(search_for(topology, Collective(rooted, 0))):
            yield Bound(kind, node_set(cut), time, in_network=True)
    for kind, _, spread, _ in directions if _is_bidirectional(topology) else _DIRECTIONS:
        yield from _group_bounds(topology, kind, spread)


def _is_bidirectional(topology: Topology) -> bool:
    return topology.is_eulerian and all(
        ability.multicast and ability.reduce and ability.reduce_bandwidth is None
        for ability in topology.abilities.values()
    )


def _group_bounds(topology: Topology, kind: str, spread: Collective) -> Iterator[Bound]:
    from chorale.synth.bounds.actor_groups import FEW_ACTORS, GroupedFabric  # noqa: PLC0415 (few networks need it)

    fabric = GroupedFabric.of(topology, outward=kind == "sent")
    limited = [node for node in fabric.limits if node in fabric.processing]
    for outside in ([], limited) if limited else ([],):
        members = fabric.processing - set(outside)
        labels = list(_partitions(topology, members, spread))
        if topology.compute_count + len(members) <= FEW_ACTORS:
            labels += [fabric.improved(label, members, outside) for label in labels]
        for label in labels:
            groups = fabric.grouped(label, members)
            value = fabric.proven_time(groups, outside)
            if value is not None:
                parts = tuple(tuple(sorted(group)) for group in groups if len(group) > 1)
                yield Bound(kind, (), value, parts=parts, in_network=True)


def _partitions(topology: Topology, members: set[int], spread: Collective) -> Iterator[list[int]]:
    """Yield labels per node, -1 for none: ranks alone; joined by wide links; the bottlenecks of ranks alone."""
    ranks = topology.compute_count
    alone = [*range(ranks), *([-1] * topology.switch_count)]
    yield list(alone)
    acting = np.zeros(topology.node_count, dtype=np.bool_)
    acting[:ranks] = True
    acting[list(members)] = True
    links = topology.links
    direct = acting[links.src] & acting[links.dst] & (links.src != links.dst)
    widths = sorted({links.bandwidths[index] for index in set(links.bandwidth_class[direct].tolist())}, reverse=True)
    for width in widths[:_MOST_WIDTHS]:
        wide = np.array([value >= width for value in links.bandwidths])[links.bandwidth_class] & direct
        yield _components(topology, links.src[wide].tolist(), links.dst[wide].tolist(), acting)
    for parts in [tight_parts(search_for(topology, spread))]:
        label = list(alone)
        for part in parts:
            inside = [int(node) for node in part]
            first = min(inside)
            for node in inside:
                if node < ranks or node in members:
                    label[node] = first
        yield label


def _components(topology: Topology, src: Iterable[int], dst: Iterable[int], acting: NDArray[np.bool_]) -> list[int]:
    """Return for each node that acts the smallest one that links join it with, -1 for the others."""
    parent = list(range(topology.node_count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for one, other in zip(src, dst, strict=True):
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    return [root(node) if acting[node] else -1 for node in range(topology.node_count)]
