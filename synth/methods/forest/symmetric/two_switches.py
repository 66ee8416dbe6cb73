"""Trees for racks such as NVL72, in which ranks have links to two switches. The bottleneck is the rank, not the box.

A rank's links to both switches are always busy, so a root's data enter each box over several of the box's ranks.
Translations map any rank to any other, so all links of one kind carry the same load, and only the number of messages
through each switch matters.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks

Table = NDArray[np.int64]


class BaseRows(NamedTuple):
    """The rows of a base schedule, as int64 columns like those of `Transfers`. `route` is an index into `routes`."""

    step: Integers
    route: Integers
    shard: Integers
    lo: Integers
    hi: Integers
    routes: Routes

    @property
    def steps(self) -> int:
        """Height of the trees."""
        return int(self.step.max(initial=-1)) + 1

    def loads(self, topology: Topology) -> Integers:
        """Return int64 per link: units of data of all rows. O(hops of all rows)."""
        of_route = np.zeros(len(self.routes), dtype=np.int64)
        np.add.at(of_route, self.route, self.hi - self.lo)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        np.add.at(loads, self.routes.link_ids, np.repeat(of_route, np.diff(self.routes.offsets)))
        return loads


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The path from every rank to one of its two switches and back, which may lead through a NIC.

    up, down: int64[ranks, links of the path];  switch: int64 per rank
    room: number of rank 0's messages that these links can carry in addition to all other ranks' messages
    """

    up: Integers
    down: Integers
    switch: Integers
    room: int

    def routes(self, source: Integers, target: Integers) -> Table:
        """Return int64[messages, links]: the links from each source over the switch to the target."""
        return np.asarray(np.concatenate([self.up[source], self.down[target]], axis=1))


def two_switch_rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    """Return the rows of rank 0's k trees within `carried` trees per link, or None if none fit or ranks differ.

    The root spreads its data in its own box. From there, the data enter every other box over so many of its ranks that
    links inside boxes can serve the rest, at the same places in all boxes. The entered ranks take turns in serving.
    O(links log links + ranks).
    """
    if moves.translations.rank_orbits > 1:
        return None
    sides = _sides(topology, moves, carried)
    for inner, outer in (sides, sides[::-1]) if len(sides) == 2 else ():
        places = _places(inner, outer)
        if places is not None and len(places) > 1:
            boxes, width = places.shape
            entries = max(k * (boxes * width - 1) - inner.room, k * (boxes - 1))
            if entries <= min(outer.room, k * (boxes - 1) * width):
                return _trees(places, inner, outer, k, entries)
    return None


def _sides(topology: Topology, moves: TranslatedLinks, carried: Integers) -> list[_Side]:
    """Return the paths of ranks to their switches, as images of rank 0's paths; empty if rank 0 has other links."""
    links, element = topology.links, moves.translations.element[: topology.compute_count, None]
    times = len(moves.translations) // moves.sizes[moves.orbit]
    sides = []
    for link in np.flatnonzero((links.src == 0) & (links.dst != 0)).tolist():
        path = _path_to_switch(topology, link)
        back = [np.flatnonzero((links.src == links.dst[each]) & (links.dst == links.src[each])) for each in path]
        if not path or any(len(each) != 1 for each in back):
            return []
        paths = np.array(path), np.concatenate(back)[::-1]
        up, down = (moves.images(each[None, :], element).astype(np.int64) for each in paths)
        room = min(int((carried[each] // times[each]).min()) for each in paths)
        sides.append(_Side(up, down, links.dst[up[:, -1]].astype(np.int64), room))
    return sides


def _path_to_switch(topology: Topology, link: int) -> list[int]:
    """Return the path from `link` to the first node with more than two links.

    If there is no such node, the path leads to the only other rank, and its first half is returned.
    """
    links, path = topology.links, [link]
    while (node := int(links.dst[path[-1]])) >= topology.compute_count:
        onward = np.flatnonzero(links.src == node)
        if len(onward) > 2:
            return path
        ahead = onward[links.dst[onward] != links.src[path[-1]]]
        if len(ahead) != 1:
            return []
        path.append(int(ahead[0]))
    return path[: len(path) // 2] if len(path) % 2 == 0 else []


def _places(inner: _Side, outer: _Side) -> Table | None:
    """Return int64[boxes, ranks of a box], rank 0 first: ranks in a row share an inner, in a column an outer switch.

    Returns None if the switches are not arranged in this way.
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


def _trees(places: Table, inner: _Side, outer: _Side, k: int, entries: int) -> BaseRows:
    """Return the rows of rank 0. `entries` is the number of times its data enter other boxes, summed over k trees."""
    boxes, width = places.shape
    # entered[box, place]: number of trees (always the first ones) that enter there: all trees at a box's first places,
    # and some trees at the next place.
    share, rest = divmod(entries, boxes - 1)
    of_box = share + (np.arange(boxes) <= rest)
    entered: Table = np.clip(of_box[:, None] - k * np.arange(width), 0, k)
    entered[0] = 0
    # Places at rank 0's outer switch are entered from rank 0 in step 0, all others from the same place in its box.
    later = np.where(outer.switch[places[0]] == outer.switch[0], 0, 1).astype(np.int64)
    others = places[0, 1:]
    nothing = np.zeros_like(others)
    parts = [(nothing, inner.routes(nothing, others), nothing, nothing + k)]  # (step, links, first tree, last tree + 1)
    box, place = np.nonzero(entered)
    source = np.where(later[place] == 0, 0, places[0, place])
    links = outer.routes(source, places[box, place])
    parts.append((later[place], links, np.zeros_like(box), entered[box, place]))
    # Inside the other boxes, ranks that only some trees have entered are served in turn by the fully entered ranks.
    box, place = np.nonzero(entered < k)
    box, place = box[box > 0], place[box > 0]
    server = place % (entered == k).sum(axis=1)[box]
    links = inner.routes(places[box, server], places[box, place])
    parts.append((later[server] + 1, links, entered[box, place], np.full_like(box, k)))
    step, low, high = (np.concatenate([part[column] for part in parts]) for column in (0, 2, 3))
    lengths = np.concatenate([np.full(len(part[0]), part[1].shape[1]) for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    routes = Routes(offsets, np.concatenate([part[1].ravel() for part in parts]).astype(np.int32))
    return BaseRows(step, np.arange(len(step)), np.zeros_like(step), low, high, routes)
