"""The directed links of a network, stored as columns in one canonical order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.integer]


class Link(NamedTuple):
    """One directed link between node indices, with bandwidth in the topology's unit and latency in seconds."""

    src: int
    dst: int
    bandwidth: Fraction = Fraction(1)
    latency_s: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Columns of directed links, sorted by (dst, src, descending bandwidth, latency). A link's index is its id.

    `src` and `dst` are int32 node indices. Bandwidth and latency are indices into tables:
    `bandwidths[bandwidth_class[link]]` is the exact bandwidth. Parallel links are separate entries. Self-loops are
    kept and count towards the degree, but nothing is ever sent over them.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bandwidth_class: NDArray[np.int32]
    bandwidths: tuple[Fraction, ...]
    latency_class: NDArray[np.int32]
    latencies_s: tuple[Fraction, ...]

    def __repr__(self) -> str:
        return f"<{len(self)} links of {len(self.bandwidths)} bandwidths>"

    @staticmethod
    def build(links: Iterable[Link]) -> Links:
        """Return `links` in canonical order. O(L log L)."""
        columns = list(zip(*links, strict=True)) or [(), (), (), ()]
        src, dst = (np.array(column, dtype=np.int32) for column in columns[:2])
        each = np.arange(len(src))
        return sorted_links(src, dst, Rates(each, columns[2], each, columns[3]))

    @staticmethod
    def of_unit_capacity(src: NDArray[np.integer], dst: NDArray[np.integer]) -> Links:
        """Return links of bandwidth 1 and latency 0 between the given node indices. O(L log L)."""
        zeros = np.zeros(len(src), dtype=np.int32)
        return sorted_links(src, dst, Rates(zeros, (Fraction(1),), zeros, (Fraction(0),)))

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, link: int) -> Link:
        bandwidth = self.bandwidths[self.bandwidth_class[link]]
        latency_s = self.latencies_s[self.latency_class[link]]
        return Link(int(self.src[link]), int(self.dst[link]), bandwidth, latency_s)

    def __iter__(self) -> Iterator[Link]:
        return (self[link] for link in range(len(self)))

    def incoming_offsets(self, node_count: int) -> NDArray[np.int64]:
        """Return int64[node_count + 1]: links `offsets[v]` to `offsets[v + 1] - 1` end in node v."""
        offsets = np.zeros(node_count + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.dst, minlength=node_count), out=offsets[1:])
        return offsets

    def integer_bandwidths(self) -> tuple[NDArray[np.int64], int]:
        """Return (int64 per link, scale) such that bandwidth = integer / scale, with the smallest possible scale."""
        scale = int(np.lcm.reduce([value.denominator for value in self.bandwidths] or [1]))
        table = np.array([int(value * scale) for value in self.bandwidths] or [1], dtype=np.int64)
        return table[self.bandwidth_class], scale

    def longest_time(self, loads: NDArray[np.int64]) -> Fraction:
        """Return the maximum of load / bandwidth over all links (0 without links). `loads`: int64[links]. O(L)."""
        largest = np.zeros(len(self.bandwidths), dtype=np.int64)
        np.maximum.at(largest, self.bandwidth_class, loads)
        times = (load / bandwidth for load, bandwidth in zip(largest.tolist(), self.bandwidths, strict=True))
        return max(times, default=Fraction(0))

    def parallel_index(self) -> NDArray[np.int32]:
        """Return each link's index (int32) among the parallel links with its src and dst, from 0."""
        same = np.zeros(len(self), dtype=bool)
        same[1:] = (self.src[1:] == self.src[:-1]) & (self.dst[1:] == self.dst[:-1])
        positions = np.arange(len(self))
        first = np.maximum.accumulate(np.where(same, 0, positions))
        return (positions - first).astype(np.int32)

    def opposites(self) -> NDArray[np.int32]:
        """Return int32 per link: the link from its dst to its src with the same parallel index, -1 if there is none."""
        src, dst, index = (column.astype(np.int64) for column in (self.src, self.dst, self.parallel_index()))
        nodes, most = max(src.max(initial=0), dst.max(initial=0)) + 1, index.max(initial=0) + 1
        keys, wanted = (dst * nodes + src) * most + index, (src * nodes + dst) * most + index
        place = np.minimum(np.searchsorted(keys, wanted), len(self) - 1)
        return np.where(keys[place] == wanted, place, -1).astype(np.int32)


def link_ids(src: Column, dst: Column, bandwidth_class: Column, latency_class: Column) -> NDArray[np.int32]:
    """Return the ids that links get in canonical order; identical parallel links keep their order. O(L log L).

    The classes are indices into ascending tables, as in `Links`.
    """
    order = np.lexsort((latency_class, -bandwidth_class.astype(np.int64), src, dst))
    ids = np.empty(len(order), dtype=np.int32)
    ids[order] = np.arange(len(order), dtype=np.int32)
    return ids


class Rates(NamedTuple):
    """Bandwidths and latencies of links: link i has bandwidth `bandwidths[bandwidth_class[i]]`.

    The tables `bandwidths` and `latencies_s` may be in any order.
    """

    bandwidth_class: Column
    bandwidths: Sequence[Fraction]
    latency_class: Column
    latencies_s: Sequence[Fraction]


def sorted_links(src: Column, dst: Column, rates: Rates) -> Links:
    """Return links in canonical order. The tables are sorted and restricted to the values in use. O(L log L)."""
    bandwidths, bandwidth_class = _encoded(rates.bandwidth_class, rates.bandwidths)
    latencies_s, latency_class = _encoded(rates.latency_class, rates.latencies_s)
    order = np.lexsort((latency_class, -bandwidth_class, src, dst))
    ends = src[order].astype(np.int32), dst[order].astype(np.int32)
    return Links(*ends, bandwidth_class[order], bandwidths, latency_class[order], latencies_s)


def _encoded(classes: Column, values: Sequence[Fraction]) -> tuple[tuple[Fraction, ...], NDArray[np.int32]]:
    """Return (used values in ascending order, int32 per link: the index of its value among them)."""
    used = np.flatnonzero(np.bincount(classes, minlength=len(values))).tolist()
    objects = {id(values[place]): values[place] for place in used}  # hashing is slow, so hash each object only once
    table = tuple(sorted(set(objects.values())))
    position = {value: index for index, value in enumerate(table)}
    place_of = {name: position[value] for name, value in objects.items()}
    renamed = np.zeros(len(values), dtype=np.int32)
    renamed[used] = [place_of[id(values[place])] for place in used]
    return table, renamed[classes]
