"""From subcollectives on a grid to a schedule, or to its traffic where the schedule would be too large to write out.

Routes between pairs of ranks are minimal paths, split over two where the network offers two: on a torus in dimension
order, in closed form and all at once; on any other network by search, through switches too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.methods.grid.steps import SendStep, SubCollective
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Kind, Parameter, Routes, Schedule
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

if TYPE_CHECKING:
    from chorale.synth.schedule.traffic import Traffic, TrafficStep


_TARGETS_AT_ONCE = 512
_CHOICES_AT_ONCE = 2**24


def minimal_paths(topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[Routes, Routes]:
    """Return two tables with a path of fewest links for each pair (equal where there is one only).

    Where several links lead nearer, the first path takes the one of number dst modulo their count, so that
    destinations are spread over equal ways as static routing on fat trees does it, and the second path the next
    one. O(targets * links + hops * degree).
    """
    links = _single_links(topology, src, dst)
    if links is not None:
        return links, links
    order = np.argsort(dst, kind="stable")
    out_links = _out_links(topology)
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


def _out_links(topology: Topology) -> NDArray[np.int64]:
    """Return int64[nodes, largest out-degree]: the links that leave each node, then -1."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    degree = np.bincount(links.src, minlength=topology.node_count)
    table = np.full((topology.node_count, int(degree.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < degree[:, None]] = order
    return table


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
    """Return arrays (pair, hop number, link) [3, …], one per hop, of all walks from `src` to `dst` at once.

    `hops[row[i], v]` is the distance from node v to `dst[i]`.
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


def _single_links(topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]) -> Routes | None:
    """Return the links from src to dst themselves if each pair has exactly one, else None."""
    links = topology.links
    keys = links.dst.astype(np.int64) * topology.node_count + links.src
    pair_keys = dst * topology.node_count + src
    first = np.searchsorted(keys, pair_keys)
    if not (np.searchsorted(keys, pair_keys, side="right") - first == 1).all():
        return None
    return Routes(np.arange(len(first) + 1), first.astype(np.int32))


def _routes(parts: list[NDArray[np.int64]], pairs: int) -> Routes:
    pair, number, link = np.concatenate([np.zeros((3, 0), dtype=np.int64), *parts], axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=pairs))]).astype(np.int64)
    link_ids = np.empty(len(link), dtype=np.int32)
    link_ids[offsets[pair] + number] = link
    return Routes(offsets, link_ids)


@dataclass(frozen=True, slots=True, eq=False)
class TorusLinks:
    """A network that is a torus of `shape`: `forward[d][r]` and `backward[d][r]` are the links of rank r along d."""

    shape: tuple[int, ...]
    forward: tuple[NDArray[np.int64], ...]
    backward: tuple[NDArray[np.int64], ...]

    @staticmethod
    def of(topology: Topology, shape: tuple[int, ...]) -> TorusLinks | None:
        """Return the links of `topology` if it is just the torus of `shape` (one pair for a size of 2), else None."""
        ranks = topology.compute_count
        links = ranks * sum(1 if size == 2 else 2 for size in shape)
        if topology.switch_count or len(topology.links) != links:
            return None
        rank = np.arange(ranks).reshape(shape)
        neighbours = [[np.roll(rank, -sign, axis).ravel() for axis in range(len(shape))] for sign in (1, -1)]
        by_sign = [[_link_ids(topology.links, ranks, rank.ravel(), end) for end in ends] for ends in neighbours]
        if any((link_ids < 0).any() for axes in by_sign for link_ids in axes):
            return None
        return TorusLinks(shape, tuple(by_sign[0]), tuple(by_sign[1]))

    def paths(self, src: NDArray[np.int64], dst: NDArray[np.int64], backward_ties: bool = False) -> Routes:
        """Return the path of each pair, first dimension first, the shorter way around each.

        Where both directions are equally long it goes forward, or backward with `backward_ties`. O(hops).
        """
        hops, sign = zip(*(self._turns(axis, src, dst, backward_ties) for axis in range(len(self.shape))), strict=True)
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

    def _turns(
        self, axis: int, src: NDArray[np.int64], dst: NDArray[np.int64], backward_ties: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (hops, +1 or -1) of each pair along `axis`."""
        size, stride = self.shape[axis], prod(self.shape[axis + 1 :])
        ahead = (dst // stride - src // stride) % size
        forward = 2 * ahead < size + (not backward_ties)
        return np.where(forward, ahead, size - ahead), np.where(forward, 1, -1)


def _link_ids(links: Links, ranks: int, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the id of the first link of each pair, -1 where there is none."""
    keys = links.dst.astype(np.int64) * ranks + links.src
    pair_keys = dst * ranks + src
    index = np.minimum(np.searchsorted(keys, pair_keys), len(keys) - 1)
    return np.where(keys[index] == pair_keys, index, -1)


@dataclass(frozen=True, slots=True, eq=False)
class PairRoutes:
    """A route, or two of equal length, for each of the pairs of ranks given by `keys`.

    keys:   int64, sorted: src * N + dst of each pair
    first:  int64, the route of each pair
    second: int64, the route of the other half of a message where it is split, else -1
    """

    ranks: int
    routes: Routes
    keys: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    @property
    def splits(self) -> bool:
        """Whether any pair has two routes."""
        return bool((self.second >= 0).any())

    def find(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (first, second) of each pair; all must be among `keys`. O(pairs log pairs)."""
        index = np.searchsorted(self.keys, src * self.ranks + dst)
        return self.first[index], self.second[index]


def pair_routes(topology: Topology, shape: tuple[int, ...], keys: NDArray[np.int64]) -> PairRoutes:
    """Return minimal routes for the pairs with `keys` src * N + dst (sorted, each once, src != dst).

    Where minimal adaptive routing is assumed and exactly two ways are equal, both carry half. On a torus of `shape`
    a path goes dimension by dimension, and is split where the distance in one is exactly half of its size. On
    other networks see `chorale.synth.methods.grid.pattern`. O(hops) on a torus.
    """
    torus = TorusLinks.of(topology, shape)
    src, dst = np.divmod(keys, topology.compute_count)
    first, second = (
        minimal_paths(topology, src, dst) if torus is None else (torus.paths(src, dst), torus.paths(src, dst, True))
    )
    return _table(topology, keys, first, second)


def _table(topology: Topology, keys: NDArray[np.int64], first: Routes, second: Routes) -> PairRoutes:
    """Return the pairs with one table of routes. A second path that shares links with the first is dropped."""
    two = _disjoint(first, second)
    index = np.arange(len(keys), dtype=np.int64)
    other = np.where(two, len(keys) + np.cumsum(two) - 1, -1)
    hops = np.diff(second.offsets)
    split = Routes(np.concatenate([[0], np.cumsum(hops[two])]), second.link_ids[np.repeat(two, hops)])
    routes = Routes(
        np.concatenate([first.offsets, split.offsets[1:] + first.offsets[-1]]).astype(np.int64),
        np.concatenate([first.link_ids, split.link_ids]),
    )
    if topology.switch_count == 0 and len(routes.link_ids) == len(routes):
        links = routes.link_ids.astype(np.int64)  # single links: routes are links, as everywhere else
        return PairRoutes(
            topology.compute_count, Routes.direct(len(topology.links)), keys, links[index],
            np.where(two, links[np.maximum(other, 0)], -1),
        )  # fmt: skip
    return PairRoutes(topology.compute_count, routes, keys, index, other)


def _disjoint(first: Routes, second: Routes) -> NDArray[np.bool_]:
    """Return for each pair whether its two paths (of equal length) have no link in common."""
    result: NDArray[np.bool_] = np.logical_or.reduceat(first.link_ids != second.link_ids, first.offsets[:-1])
    hops = np.repeat(result, np.diff(first.offsets))  # few pairs have two paths at all
    pair = np.repeat(np.arange(len(first)), np.diff(first.offsets))[hops]
    links = int(max(first.link_ids.max(), second.link_ids.max())) + 1
    first_links, second_links = (pair * links + path.link_ids[hops] for path in (first, second))
    shared = np.isin(second_links, first_links, assume_unique=True)  # a minimal path has no link twice
    result[pair[shared]] = False
    return result


@dataclass(frozen=True)
class CollectivePattern:
    """A collective on `topology` whose `subcollectives` run side by side, each on an equal part of every shard.

    Both `schedule` and `traffic` come from the same subcollectives and routes; the second never names shards and
    takes O(messages). Steps in which none sends are left out.
    """

    topology: Topology
    collective: Collective
    method: str
    parameters: Mapping[str, Parameter]
    subcollectives: tuple[SubCollective, ...]
    kind: Kind = "stepped"

    def schedule(self, chunks: int | None = None) -> Schedule:
        """Return the schedule with `chunks` chunks per shard, by default the fewest that give all equal parts.

        Raises InvalidInput where there would be more than 2^27 transfers. O(transfers log messages).
        """
        chunk_count = self._parts if chunks is None else chunks
        if chunk_count < 1:
            raise InvalidInput("chunks per shard must be at least 1", chunks, "choose a larger number")
        self._check_size()
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
        """Return what the schedule with its default chunks sends. Equal steps are one object. O(messages)."""
        from chorale.synth.schedule.traffic import Traffic  # noqa: PLC0415 (only who simulates waits for it)

        by_signature: dict[tuple[Hashable, ...], TrafficStep] = {}
        steps = []
        for step in self._steps:
            signature = self._signature(step)
            if signature not in by_signature:
                by_signature[signature] = self._traffic_step(step)
            steps.append(by_signature[signature])
        denominator = self.topology.compute_count * self._parts
        return Traffic(self.topology, self.collective, self.kind, tuple(steps), denominator, self._pairs.routes)

    @property
    def step_count(self) -> int:
        """The steps of the schedule. O(messages)."""
        return len(self._steps)

    @property
    def denominator(self) -> int:
        """An amount a in `messages` is a / denominator of the vector."""
        return self.topology.compute_count * len(self.subcollectives) * self._pieces

    def messages(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield for each step who sends, to whom and how much, as a multiple of 1 / `denominator`. O(messages)."""
        for step in self._steps:
            columns: list[tuple[NDArray[np.int64], ...]] = []
            for part in self._at(step):
                src, dst, shards = part.messages()
                columns.append((src, dst, shards * (self._pieces // part.pieces)))
            src, dst, amount = map(np.concatenate, zip(*columns, strict=True))
            yield src, dst, amount

    @cached_property
    def _steps(self) -> list[int]:
        """The steps in which any subcollective sends."""
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
        return pair_routes(self.topology, grid_shape(self.topology), np.unique(np.concatenate(keys)))

    @cached_property
    def _parts(self) -> int:
        return len(self.subcollectives) * self._units

    @cached_property
    def _units(self) -> int:
        """The number of equal units of the data of a subcollective: pieces, and halves of them where messages split."""
        return self._pieces * (2 if self._pairs.splits else 1)

    @cached_property
    def _pieces(self) -> int:
        return lcm(*{part.pieces for step in self._steps for part in self._at(step)})

    def _at(self, step: int) -> Iterator[SendStep]:
        return (part[step] for part in self.subcollectives if step < len(part))

    def _signature(self, step: int) -> tuple[Hashable, ...]:
        return tuple(part[step].signature() if step < len(part) else None for part in self.subcollectives)

    def _traffic_step(self, step: int) -> TrafficStep:
        from chorale.synth.schedule.traffic import merged_step  # noqa: PLC0415 (as above)

        routes, amounts = [], []
        for part in self._at(step):
            src, dst, shards = part.messages()
            first, second = self._pairs.find(src, dst)
            amount = shards * (self._units // part.pieces)
            two = second >= 0
            routes += [first, second[two]]
            amounts += [np.where(two, amount // 2, amount), amount[two] // 2]
        return merged_step(np.concatenate(routes), np.concatenate(amounts))

    def _rows(self, number: int, step: int, chunks: int) -> Iterator[list[NDArray[np.int64]]]:
        """Yield columns of rows of `step`, which is the `number`-th in which any subcollective sends."""
        for index, steps in enumerate(self.subcollectives):
            if step >= len(steps):
                continue
            part = steps[step]
            pieces, position = len(self.subcollectives) * part.pieces, index * part.pieces + part.piece
            lo, hi = chunks * position // pieces, chunks * (position + 1) // pieces
            if lo == hi:
                continue
            src, dst, shard = part.sends()
            first, second = self._pairs.find(src, dst)
            middle = np.where(second >= 0, (lo + hi) // 2, hi)
            for route, start, end in (
                (first, np.full_like(middle, lo), middle),
                (second, middle, np.full_like(middle, hi)),
            ):
                used = start < end
                same = np.ones(int(used.sum()), dtype=np.int64)
                yield [number * same, route[used], shard[used], start[used], end[used], part.reduces * same]

    def _check_size(self) -> None:
        transfers = sum(int(part.messages()[2].sum()) for step in self._steps for part in self._at(step))
        if transfers > MAX_TRANSFERS:
            rule = f"a schedule of {self.method} holds at most {MAX_TRANSFERS} transfers"
            raise InvalidInput(rule, f"{transfers} for {self.topology.spec}", "use fewer nodes, or simulate the method")
