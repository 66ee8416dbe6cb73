"""Trees where every rank has links to two switches and its own bandwidth decides, not that of its box: NVL72 racks.

There both switches of a rank are busy all the time, so that the data of a root enter each box over several of its
ranks. As translations take any rank to any other, the loads of all links of a kind are equal, and only the numbers of
messages through either switch count.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks


class BaseRows(NamedTuple):
    """Columns as in `chorale.synth.schedule.schedule.Transfers`, int64, over `routes`."""

    step: Integers
    route: Integers
    shard: Integers
    lo: Integers
    hi: Integers
    routes: Routes

    @property
    def steps(self) -> int:
        """The height of the trees."""
        return int(self.step.max(initial=-1)) + 1

    def loads(self, topology: Topology) -> Integers:
        """Return int64 per link: units of all rows. O(hops of all rows)."""
        of_route = np.zeros(len(self.routes), dtype=np.int64)
        np.add.at(of_route, self.route, self.hi - self.lo)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        np.add.at(loads, self.routes.link_ids, np.repeat(of_route, np.diff(self.routes.offsets)))
        return loads


def two_switch_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return the rows of k trees of rank 0 within `carried` trees per link; None where none fit, or ranks differ.

    The root spreads its data in its own box. From there they enter each other box over as many of its ranks as links
    inside boxes cannot serve, all at the same places in their boxes, and each of these serves the others by turns.
    O(links log links + ranks).
    """
    if moves.translations.rank_orbits > 1:
        return None
    sides = _sides(topology, moves, carried)
    for inner, outer in (sides, sides[::-1]) if len(sides) == 2 else ():
        places = _places(inner, outer)
        if places is None or len(places) < 2:
            continue
        boxes, width = places.shape
        entries = max(k * (boxes * width - 1) - inner.room, k * (boxes - 1))
        if entries <= min(outer.room, k * (boxes - 1) * width):
            return _Trees(places, inner, outer, k, entries).rows()
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The way of every rank to one of its switches, which may lead through a NIC, and back.

    up, down: int64[ranks, links of the way];  switch: int64 per rank
    room: messages of rank 0 that these links can carry, with those of all other ranks
    """

    up: Integers
    down: Integers
    switch: Integers
    room: int

    def routes(self, source: Integers, target: Integers) -> Integers:
        """Return int64[messages, links]: the links from each source over the switch to its target."""
        routes: NDArray[np.int64] = np.concatenate([self.up[source], self.down[target]], axis=1)
        return routes


def _sides(topology: Topology, moves: TranslatedLinks, carried: Integers) -> list[_Side]:
    """Return the ways to the switches of each rank, as translations move those of rank 0; none where it has others."""
    links, element = topology.links, moves.translations.element[: topology.compute_count, None]
    times = len(moves.translations) // moves.sizes[moves.orbit]
    sides = []
    for link in np.flatnonzero((links.src == 0) & (links.dst != 0)).tolist():
        way = _way_to_switch(topology, link)
        back = [np.flatnonzero((links.src == links.dst[one]) & (links.dst == links.src[one])) for one in way]
        if not way or any(len(one) != 1 for one in back):
            return []
        ways = np.array(way), np.concatenate(back)[::-1]
        up, down = (moves.images(one[None, :], element).astype(np.int64) for one in ways)
        room = min(int((carried[one] // times[one]).min()) for one in ways)
        sides.append(_Side(up, down, links.dst[up[:, -1]].astype(np.int64), room))
    return sides


def _way_to_switch(topology: Topology, link: int) -> list[int]:
    """Return `link` and those after it up to a node of more links than two, or half the way to the only other rank."""
    links, way = topology.links, [link]
    while (node := int(links.dst[way[-1]])) >= topology.compute_count:
        onward = np.flatnonzero(links.src == node)
        if len(onward) > 2:
            return way
        ahead = onward[links.dst[onward] != links.src[way[-1]]]
        if len(ahead) != 1:
            return []
        way.append(int(ahead[0]))
    return way[: len(way) // 2] if len(way) % 2 == 0 else []


def _places(inner: _Side, outer: _Side) -> NDArray[np.int64] | None:
    """Return int64[boxes, ranks of a box], rank 0 first: a box has one inner switch, a place in all boxes one outer.

    None where that is not so.
    """
    order = np.lexsort((outer.switch, inner.switch))
    boxes = len(set(inner.switch.tolist()))
    if len(order) % boxes:
        return None
    table = order.reshape(boxes, -1)
    inners, outers = inner.switch[table], outer.switch[table]
    if not ((inners == inners[:, :1]).all() and (outers == outers[:1]).all()):
        return None
    box, place = np.argwhere(table == 0)[0].tolist()
    return np.roll(table, (-box, -place), axis=(0, 1))


class _Messages(NamedTuple):
    """Rows of rank 0: by the step, the links of each, int64[messages, links], and trees from `low` to `high`."""

    step: Integers
    links: NDArray[np.int64]
    low: Integers
    high: Integers


@dataclass(frozen=True, slots=True, eq=False)
class _Trees:
    """The trees of rank 0, which enter other boxes `entries` times, counted for each of k trees."""

    places: NDArray[np.int64]
    inner: _Side
    outer: _Side
    k: int
    entries: int

    def rows(self) -> BaseRows:
        """Return what goes through the own box, into the others, and through these. O(ranks)."""
        entered = self._entered()
        parts = [self._own_box(), self._across(entered), self._inside(entered)]
        step, low, high = (
            np.concatenate(columns)
            for columns in zip(*((part.step, part.low, part.high) for part in parts), strict=True)
        )
        lengths = np.concatenate([np.full(len(part.step), part.links.shape[1]) for part in parts])
        links = np.concatenate([part.links.ravel() for part in parts]).astype(np.int32)
        routes = Routes(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), links)
        return BaseRows(step, np.arange(len(step)), np.zeros_like(step), low, high, routes)

    def _entered(self) -> NDArray[np.int64]:
        """Return int64[boxes, ranks of a box]: by how many trees, the first ones, data enter the box there.

        All trees enter at the first places of a box, and some at the next one.
        """
        boxes, width = self.places.shape
        share, rest = divmod(self.entries, boxes - 1)
        of_box = share + (np.arange(boxes) <= rest)
        entered: NDArray[np.int64] = np.clip(of_box[:, None] - self.k * np.arange(width), 0, self.k)
        entered[0] = 0
        return entered

    def _own_box(self) -> _Messages:
        others = self.places[0, 1:]
        nothing = np.zeros_like(others)
        return _Messages(nothing, self.inner.routes(nothing, others), nothing, nothing + self.k)

    def _across(self, entered: NDArray[np.int64]) -> _Messages:
        """Return the entries, from the same place of the own box, or from the root where that has the same switch."""
        box, place = np.nonzero(entered)
        step = self._step_of_entry(place)
        source = np.where(step == 0, 0, self.places[0, place])
        links = self.outer.routes(source, self.places[box, place])
        return _Messages(step, links, np.zeros_like(box), entered[box, place])

    def _inside(self, entered: NDArray[np.int64]) -> _Messages:
        """Return what ranks get that data of all trees have not entered at, by turns of those where they have."""
        box, place = np.nonzero(entered < self.k)
        box, place = box[box > 0], place[box > 0]
        server = place % (entered == self.k).sum(axis=1)[box]
        links = self.inner.routes(self.places[box, server], self.places[box, place])
        return _Messages(self._step_of_entry(server) + 1, links, entered[box, place], np.full_like(box, self.k))

    def _step_of_entry(self, place: Integers) -> Integers:
        """Return 0 for places at the outer switch of rank 0, 1 for others: data go there inside its box first."""
        is_at_switch = self.outer.switch[self.places[0, place]] == self.outer.switch[0]
        return np.where(is_at_switch, 0, 1).astype(np.int64)
