"""Turns a grid algorithm into a schedule or, if that would be too large, only into the traffic on each link.

The algorithm consists of subcollectives, which run in parallel on equal parts of the data. Each message uses a shortest
path, or two disjoint shortest paths. On a torus, paths follow the order of dimensions. On other networks, they are
found by search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.steps import SendStep, SubCollective, grid_shape
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Kind, Parameter, Routes, Schedule
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology

_TARGETS_AT_ONCE = 512
_CHOICES_AT_ONCE = 2**24


def minimal_paths(topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[Routes, Routes]:
    """Return two tables with one shortest path for each pair of nodes. If a pair has only one path, both contain it.

    If m links lead nearer to dst, the first path uses link dst modulo m of these, which spreads destinations over
    equally short paths like static routing on fat trees. The second path uses the next link. O(targets * links + hops *
    degree).
    """
    links, nodes = topology.links, topology.node_count
    keys, pair_keys = links.dst.astype(np.int64) * nodes + links.src, dst * nodes + src
    link = np.searchsorted(keys, pair_keys)
    if (np.searchsorted(keys, pair_keys, side="right") - link == 1).all():  # each pair has exactly one link
        direct = Routes(np.arange(len(link) + 1), link.astype(np.int32))
        return direct, direct
    order = np.argsort(dst, kind="stable")
    degree = np.bincount(links.src, minlength=nodes)
    out_links = np.full((nodes, int(degree.max())), -1, dtype=np.int64)  # links that leave each node, padded with -1
    out_links[np.arange(out_links.shape[1]) < degree[:, None]] = np.argsort(links.src, kind="stable")
    blocks: list[list[NDArray[np.int64]]] = [[], []]
    targets = np.unique(dst)
    for first in range(0, len(targets), _TARGETS_AT_ONCE):
        block = targets[first : first + _TARGETS_AT_ONCE]
        hops = distances_to(topology, block)
        pairs = order[np.searchsorted(dst[order], block[0]) : np.searchsorted(dst[order], block[-1], side="right")]
        at_once = max(1, _CHOICES_AT_ONCE // out_links.shape[1])
        for low in range(0, len(pairs), at_once):
            some = pairs[low : low + at_once]
            row = np.searchsorted(block, dst[some])
            for choice in (0, 1):
                blocks[choice] += _walk(topology, out_links, np.asarray(hops), row, src[some], dst[some], some, choice)
    return _routes(blocks[0], len(src)), _routes(blocks[1], len(src))


def _walk(
    topology: Topology,
    out_links: NDArray[np.int64],
    hops: NDArray[np.unsignedinteger],
    row: NDArray[np.int64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    pair: NDArray[np.int64],
    choice: int,
) -> list[NDArray[np.int64]]:
    """Return shortest paths from `src` to `dst`. Each array in the result has the rows (pair, hop number, link).

    All paths are followed in parallel, and each hop adds an array. `hops[row[i], v]` is the distance from node v to
    `dst[i]`.
    """
    steps = []
    node = src
    distance = hops.astype(np.int64)
    number = 0
    while len(node):
        candidates = out_links[node]
        nearer = distance[row[:, None], topology.links.dst[candidates]] == distance[row, node][:, None] - 1
        nearer &= candidates >= 0
        target_rank = (dst + choice) % nearer.sum(axis=1)
        column = np.argmax(np.cumsum(nearer, axis=1) > target_rank[:, None], axis=1)
        link = candidates[np.arange(len(node)), column]
        steps.append(np.stack([pair, np.full_like(pair, number), link]))
        node = topology.links.dst[link].astype(np.int64)
        going = node != dst
        node, row, dst, pair = node[going], row[going], dst[going], pair[going]
        number += 1
    return steps


def _routes(parts: list[NDArray[np.int64]], pairs: int) -> Routes:
    pair, number, link = np.concatenate([np.zeros((3, 0), dtype=np.int64), *parts], axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=pairs))]).astype(np.int64)
    link_ids = np.empty(len(link), dtype=np.int32)
    link_ids[offsets[pair] + number] = link
    return Routes(offsets, link_ids)


@dataclass(frozen=True, slots=True, eq=False)
class TorusLinks:
    """The links of a torus of `shape`. Rank r's links along dimension d are `forward[d][r]` and `backward[d][r]`."""

    shape: tuple[int, ...]
    forward: tuple[NDArray[np.int64], ...]
    backward: tuple[NDArray[np.int64], ...]

    @staticmethod
    def of(topology: Topology, shape: tuple[int, ...]) -> TorusLinks | None:
        """Return the links of `topology` if it is exactly the torus of this `shape`, otherwise None.

        In a dimension of size 2, there must be one link in each direction between two ranks.
        """
        links, ranks = topology.links, topology.compute_count
        if topology.switch_count or len(links) != ranks * sum(1 if size == 2 else 2 for size in shape):
            return None
        rank, keys = np.arange(ranks).reshape(shape), links.dst.astype(np.int64) * ranks + links.src
        by_sign: list[tuple[NDArray[np.int64], ...]] = []
        for sign in (1, -1):
            wanted = [np.roll(rank, -sign, axis).ravel() * ranks + rank.ravel() for axis in range(len(shape))]
            found = [np.minimum(np.searchsorted(keys, pairs), len(keys) - 1) for pairs in wanted]
            if any((keys[index] != pairs).any() for index, pairs in zip(found, wanted, strict=True)):
                return None
            by_sign.append(tuple(found))
        return TorusLinks(shape, *by_sign)

    def paths(self, src: NDArray[np.int64], dst: NDArray[np.int64], backward_ties: bool = False) -> Routes:
        """Return the path of each pair in the order of dimensions, in the shorter direction of each dimension.

        If both directions are equally short, the path goes forward, or backward with `backward_ties`. O(hops).
        """
        hops, sign = [], []
        for axis, size in enumerate(self.shape):
            stride = prod(self.shape[axis + 1 :])
            ahead = (dst // stride - src // stride) % size
            forward = 2 * ahead < size + (not backward_ties)
            hops.append(np.where(forward, ahead, size - ahead))
            sign.append(np.where(forward, 1, -1))
        before = np.cumsum([np.zeros_like(src), *hops], axis=0)
        offsets = np.concatenate([[0], np.cumsum(before[-1])]).astype(np.int64)
        link_ids = np.empty(offsets[-1], dtype=np.int32)
        node = src
        for axis, size in enumerate(self.shape):
            stride = prod(self.shape[axis + 1 :])
            pair = np.repeat(np.arange(len(src)), hops[axis])
            done = np.arange(len(pair)) - np.repeat(np.cumsum(hops[axis]) - hops[axis], hops[axis])
            start = node[pair] // stride % size
            here = node[pair] + ((start + sign[axis][pair] * done) % size - start) * stride
            chosen = np.where(sign[axis][pair] > 0, self.forward[axis][here], self.backward[axis][here])
            link_ids[offsets[pair] + before[axis][pair] + done] = chosen
            node = node + (dst // stride % size - node // stride % size) * stride
        return Routes(offsets, link_ids)


@dataclass(frozen=True, slots=True, eq=False)
class PairRoutes:
    """Routes between pairs of ranks: one per pair, or two of equal length that each carry half of a message.

    keys:   int64, src * N + dst of each pair, ascending, where N is `ranks`
    first:  int64, index in `routes` of the first route of each pair
    second: int64, index in `routes` of the second route of each pair, or -1 if the pair has only one route
    """

    ranks: int
    routes: Routes
    keys: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    def find(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up the two routes of each pair (src[i], dst[i]); all pairs must be in `keys`. O(pairs log pairs)."""
        index = np.searchsorted(self.keys, src * self.ranks + dst)
        return self.first[index], self.second[index]


def pair_routes(topology: Topology, shape: tuple[int, ...], keys: NDArray[np.int64]) -> PairRoutes:
    """Return minimal routes for pairs of ranks, given as ascending, unique `keys` = src * N + dst with src != dst.

    Like minimal adaptive routing, this sends half of a message over each of two shortest paths if these are disjoint.
    On a torus of `shape`, paths follow the order of dimensions. There, two paths are disjoint if, in every dimension in
    which the ranks differ, their distance is exactly half of the size, and the size is above 2. O(hops) on a torus.
    """
    torus = TorusLinks.of(topology, shape)
    src, dst = np.divmod(keys, topology.compute_count)
    if torus is None:
        first, second = minimal_paths(topology, src, dst)
    else:
        first, second = torus.paths(src, dst), torus.paths(src, dst, backward_ties=True)
    # Two paths of a pair are disjoint if they share no link. Most pairs have no second path.
    two: NDArray[np.bool_] = np.logical_or.reduceat(first.link_ids != second.link_ids, first.offsets[:-1])
    lengths = np.diff(first.offsets)
    candidate = np.repeat(two, lengths)
    pair = np.repeat(np.arange(len(first)), lengths)[candidate]
    span = int(max(first.link_ids.max(), second.link_ids.max())) + 1
    first_links, second_links = (pair * span + path.link_ids[candidate] for path in (first, second))
    two[pair[np.isin(second_links, first_links, assume_unique=True)]] = False  # a minimal path uses no link twice
    index = np.arange(len(keys), dtype=np.int64)
    other = np.where(two, len(keys) + np.cumsum(two) - 1, -1)
    hops = np.diff(second.offsets)
    split = Routes(np.concatenate([[0], np.cumsum(hops[two])]), second.link_ids[np.repeat(two, hops)])
    routes = Routes(
        np.concatenate([first.offsets, split.offsets[1:] + first.offsets[-1]]).astype(np.int64),
        np.concatenate([first.link_ids, split.link_ids]),
    )
    if topology.switch_count == 0 and len(routes.link_ids) == len(routes):
        links = routes.link_ids.astype(np.int64)  # each route is a single link, as in other schedules
        return PairRoutes(
            topology.compute_count, Routes.direct(len(topology.links)), keys, links[index],
            np.where(two, links[np.maximum(other, 0)], -1),
        )  # fmt: skip
    return PairRoutes(topology.compute_count, routes, keys, index, other)


@dataclass(frozen=True)
class CollectivePattern:
    """A collective that consists of `subcollectives`, which run in parallel on equal parts of every shard.

    `schedule` and `traffic` use the same subcollectives and routes, but `traffic` does not consider individual shards,
    so it takes only O(messages). Steps without messages are left out.

    method, parameters: method name and parameters that the schedule contains
    kind:  "stepped" or "pipelined"
    lanes: if above 0, each message uses a single link, and subcollective i uses link i modulo `lanes` of the parallel
           links between two ranks; if 0, messages use the routes from `pair_routes`
    """

    topology: Topology
    collective: Collective
    method: str
    parameters: Mapping[str, Parameter]
    subcollectives: tuple[SubCollective, ...]
    kind: Kind = "stepped"
    lanes: int = 0

    def schedule(self, chunks: int | None = None) -> Schedule:
        """Return the schedule with `chunks` chunks per shard; by default, the smallest number that gives equal parts.

        Raises InvalidInput if there would be more than 2^27 transfers. O(transfers log messages).
        """
        chunk_count = self._parts if chunks is None else chunks
        if chunk_count < 1:
            raise InvalidInput("chunks per shard must be at least 1", chunks, "choose a larger number")
        count = sum(int(part.messages()[2].sum()) for step in self._steps for part in self._at(step))
        if count > MAX_TRANSFERS:
            rule = f"a schedule of {self.method} holds at most {MAX_TRANSFERS} transfers"
            raise InvalidInput(rule, f"{count} for {self.topology.spec}", "use fewer nodes, or simulate the method")
        ranks = self.topology.compute_count
        bounds = ColumnBounds(len(self._steps), len(self._pairs.routes), ranks, chunk_count)
        columns = [
            bounds.pack(columns).columns
            for number, step in enumerate(self._steps)
            for columns in self._rows(number, step, chunk_count)
        ]
        transfers = bounds.pack([np.concatenate(parts) for parts in zip(*columns, strict=True)])
        parameters = {**self.parameters, "chunks": chunks}
        return Schedule(
            self.topology, self.collective, self.kind, len(self._steps), chunk_count, transfers, self._pairs.routes,
            self.method, parameters,
        )  # fmt: skip

    def traffic(self) -> Traffic:
        """Return the traffic of `schedule()` without making the schedule. Equal steps share an object. O(messages)."""
        by_signature: dict[tuple[Hashable, ...], TrafficStep] = {}
        steps = []
        for step in self._steps:
            signature = self._signature(step)
            if signature not in by_signature:
                routes, amounts = [], []
                for index, part in self._numbered(step):
                    src, dst, shards = part.messages()
                    first, second = self._routes_of(index, src, dst)
                    amount = shards * (self._units // part.pieces)
                    two = second >= 0
                    routes += [first, second[two]]
                    amounts += [np.where(two, amount // 2, amount), amount[two] // 2]
                by_signature[signature] = merged_step(np.concatenate(routes), np.concatenate(amounts))
            steps.append(by_signature[signature])
        denominator = self.topology.compute_count * self._parts
        return Traffic(self.topology, self.collective, self.kind, tuple(steps), denominator, self._pairs.routes)

    @cached_property
    def _steps(self) -> list[int]:
        """Indices of the steps in which at least one subcollective sends data."""
        count = max(map(len, self.subcollectives))
        return [step for step in range(count) if any(len(part.messages()[0]) for part in self._at(step))]

    @cached_property
    def _pairs(self) -> PairRoutes:
        ranks = self.topology.compute_count
        keys: list[NDArray[np.int64]] = []
        signatures = set()
        for step in self._steps:
            if (signature := self._signature(step)) in signatures:
                continue
            signatures.add(signature)
            for part in self._at(step):
                src, dst, _ = part.messages()
                keys.append(src * ranks + dst)
        used = np.unique(np.concatenate(keys))
        if not self.lanes:
            return pair_routes(self.topology, grid_shape(self.topology), used)
        links, nodes = self.topology.links, self.topology.node_count
        first = np.searchsorted(links.dst.astype(np.int64) * nodes + links.src, used % ranks * nodes + used // ranks)
        none = np.full(len(used), -1)
        if not self.topology.switch_count:
            return PairRoutes(ranks, Routes.direct(len(links)), used, first, none)
        lanes = (first[:, None] + np.arange(self.lanes)).ravel()  # a table of all links would include switch links
        routes = Routes(np.arange(len(lanes) + 1), lanes.astype(np.int32))
        return PairRoutes(ranks, routes, used, np.arange(len(used)) * self.lanes, none)

    def _routes_of(
        self, index: int, src: NDArray[np.int64], dst: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and second route of each message in subcollective `index`. The second is -1 if unused."""
        first, second = self._pairs.find(src, dst)
        return first + index % max(1, self.lanes), second

    @cached_property
    def _parts(self) -> int:
        return len(self.subcollectives) * self._units

    @cached_property
    def _units(self) -> int:
        """Number of equal parts into which messages divide a subcollective's data. Two routes double it."""
        pieces = lcm(*{part.pieces for step in self._steps for part in self._at(step)})
        return pieces * (2 if (self._pairs.second >= 0).any() else 1)

    def _at(self, step: int) -> Iterator[SendStep]:
        return (part for _, part in self._numbered(step))

    def _numbered(self, step: int) -> Iterator[tuple[int, SendStep]]:
        """Yield (index of the subcollective, its step number `step`) for all subcollectives that have this step."""
        return ((index, part[step]) for index, part in enumerate(self.subcollectives) if step < len(part))

    def _signature(self, step: int) -> tuple[Hashable, ...]:
        return tuple(part[step].signature() if step < len(part) else None for part in self.subcollectives)

    def _rows(self, number: int, step: int, chunks: int) -> Iterator[list[NDArray[np.int64]]]:
        """Yield the transfer columns of `step`. In the schedule, which has no empty steps, this is step `number`."""
        for index, part in self._numbered(step):
            pieces, position = len(self.subcollectives) * part.pieces, index * part.pieces + part.piece
            lo, hi = chunks * position // pieces, chunks * (position + 1) // pieces
            if lo == hi:
                continue
            src, dst, shard = part.sends()
            first, second = self._routes_of(index, src, dst)
            middle = np.where(second >= 0, (lo + hi) // 2, hi)
            for route, start, end in (
                (first, np.full_like(middle, lo), middle),
                (second, middle, np.full_like(middle, hi)),
            ):
                used = start < end
                same = np.ones(int(used.sum()), dtype=np.int64)
                yield [number * same, route[used], shard[used], start[used], end[used], part.reduces * same]
