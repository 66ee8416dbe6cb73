"""Groups on boxes with rails in closed form: every root's data take a path through all members, box after box.

A path walks all members of a box, crosses to the next one over the rail of the last, and goes on from there. Paths of
different roots begin at different members, so that all NICs and lanes carry alike. Where NICs or lanes limit everywhere
at once, prices on all of them prove that nothing is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.groups.routing import Commodity, Edge, GroupPacking, Routing, commodities_of, time_in_chunks
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
from chorale.synth.topology.topology import Topology

_CLOSE = Fraction(1, 100)


def pack_over_rails(topology: Topology, groups: tuple[Group, ...]) -> GroupPacking | None:
    """Return paths for all groups if `topology` is boxes with rails and they are within 1 % of the bound, else None."""
    fabric = rail_fabric(topology)
    if fabric is None or not all(_is_even(fabric, group) for group in groups):
        return None
    commodities = commodities_of(groups)
    ways = tuple(_ways(fabric, groups[commodity.group], commodity) for commodity in commodities)
    shares = tuple(np.full(len(each), 1 / len(each)) for each in ways)
    packing = GroupPacking(
        groups, commodities, ways, shares, np.zeros(len(topology.links), dtype=np.int64), Fraction(0)
    )
    time = time_in_chunks(topology, packing, 1)
    for prices in _prices(fabric):
        lower = proven_time(topology, groups, prices.tolist())
        if time <= lower * (1 + _CLOSE):
            return GroupPacking(groups, commodities, ways, shares, prices, lower)
    return None


def _is_even(fabric: RailFabric, group: Group) -> bool:
    """Whether the members are at the same places of each of their boxes."""
    places: dict[int, list[int]] = {}
    for rank in group.ranks:
        places.setdefault(int(fabric.box[rank]), []).append(int(fabric.place[rank]))
    first, *others = places.values()
    return all(each == first for each in others)


def _prices(fabric: RailFabric) -> list[NDArray[np.int64]]:
    """Return prices on all NICs, on all lanes, and on both, into ranks."""
    nics, lanes = (np.zeros(len(fabric.topology.links), dtype=np.int64) for _ in range(2))
    if fabric.boxes > 1:
        nics[fabric.narrowest[1]] = 1
    lanes[fabric.lane_links[1] if fabric.has_switch else fabric.lane_links[fabric.lanes > 0]] = 1
    return [*([nics] if fabric.boxes > 1 else []), lanes, lanes + nics]


def _ways(fabric: RailFabric, group: Group, commodity: Commodity) -> tuple[Routing, ...]:
    name = group.collective.name
    if name == CollectiveName.ALLTOALL:
        sender, receiver = fabric.usual["direct"]
        one = group.ranks[commodity.root]
        edges = [
            Edge(0, commodity.root, place, fabric.path(one, other, int(sender[one, other]), int(receiver[one, other])),
                 target=place)
            for place, other in enumerate(group.ranks)
            if other != one
        ]  # fmt: skip
        return (Routing(tuple(edges)),)
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return (Routing(tuple(_outward(fabric, group, _order(fabric, group, commodity.root), 0))),)
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE):
        return (Routing(tuple(_inward(fabric, group, _order(fabric, group, commodity.root)))),)
    orders = [_order(fabric, group, root) for root in range(len(group.ranks))]
    after = len(group.ranks) - 1
    return tuple(Routing((*_inward(fabric, group, order), *_outward(fabric, group, order, after))) for order in orders)


def _order(fabric: RailFabric, group: Group, root: int) -> list[int]:
    """Return the members, by place in the group, in the order of the path from `root`."""
    boxes = sorted({int(fabric.box[rank]) for rank in group.ranks})
    width = len(group.ranks) // len(boxes)
    number = {(int(fabric.box[rank]), place % width): place for place, rank in enumerate(_by_box(fabric, group))}
    members = _by_box(fabric, group)
    at = members.index(group.ranks[root])
    first_box, start = divmod(at, width)
    order = []
    for turn in range(len(boxes)):
        box = boxes[(first_box + turn) % len(boxes)]
        order += [number[box, (start + step) % width] for step in range(width)]
        start = (start - 1) % width
    return [group.ranks.index(members[place]) for place in order]


def _by_box(fabric: RailFabric, group: Group) -> list[int]:
    return sorted(group.ranks, key=lambda rank: (int(fabric.box[rank]), int(fabric.place[rank])))


def _outward(fabric: RailFabric, group: Group, order: Sequence[int], first: int) -> list[Edge]:
    return [
        Edge(first + step, one, other, _path(fabric, group.ranks[one], group.ranks[other]))
        for step, (one, other) in enumerate(pairwise(order))
    ]


def _inward(fabric: RailFabric, group: Group, order: Sequence[int]) -> list[Edge]:
    back = list(reversed(order))
    return [
        Edge(step, one, other, _path(fabric, group.ranks[one], group.ranks[other]), reduces=True)
        for step, (one, other) in enumerate(pairwise(back))
    ]


def _path(fabric: RailFabric, one: int, other: int) -> tuple[int, ...]:
    return fabric.lane(one, other) if fabric.box[one] == fabric.box[other] else fabric.path(one, other, one, other)
