"""How busy the links of a line graph are: loads of links, less what returns to where it began."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.expand.columns import require_expandable
from chorale.synth.schedule.schedule import Schedule

Chunks = NDArray[np.int64]


def line_graph_loads(schedule: Schedule, times: int) -> tuple[Fraction, ...]:
    """Return for each step of `schedule`, on a d-regular G, the load in shards of the busiest link of L^n(G) in it.

    n = `times`; 0 gives G itself. A link of L^n(G) is a link (u, w) of G followed by a walk w, x_1, …, x_n. It carries
    d^n times what (u, w) carries, less d^(n - i) times what (u, w) carries of the shard of x_i, for each i: in L^i(G)
    that would end where it began. (Not so for an i where the walk's first i links end as they begin: what would be
    left out there is among what is left out for a shorter part.) The busiest link has a walk that saves least.
    O(rows log rows), O(n N d) for every link tried, those whose load could be the largest, and up to O(d^n) walks
    for those where each walk saves something.
    """
    require_expandable(schedule)
    network = schedule.topology
    out = np.argsort(network.links.src, kind="stable").reshape(network.node_count, -1)
    return tuple(
        Fraction(_busiest(links, times, out, network.links.dst), schedule.chunks_per_shard)
        for links in _by_step(schedule)
    )


def _busiest(links: list[_Load], times: int, out: Chunks, heads: NDArray[np.int32]) -> int:
    """Return the largest load, in chunks, on a link of L^n(G); `links` come with the most loaded first."""
    degree, best = out.shape[1], 0
    for link in links:
        if link.chunks * degree**times <= best:
            break
        saving = _Walks(link, times, out, heads).least_saving() if times else 0
        best = max(best, link.chunks * degree**times - saving)
    return best


class _Load(NamedTuple):
    """What link (u, `head`) carries in one step: `chunks` in all, as rows of shards and their chunks."""

    chunks: int
    head: int
    carried: Chunks


class _Walks:
    """The walks of n links that follow one link; `out[v]` are the links out of node v, `heads` the heads of links."""

    def __init__(self, load: _Load, times: int, out: Chunks, heads: NDArray[np.int32]) -> None:
        self.start, self.times, self.out, self.heads = load.head, times, out, heads
        self.degree = out.shape[1]
        self.amount = np.zeros(len(out), dtype=np.int64)
        np.add.at(self.amount, load.carried[0], load.carried[1])
        self.least = 0

    def least_saving(self) -> int:
        """Return the least number of chunks that a walk saves."""
        saving = np.zeros(len(self.out), dtype=np.int64)
        for left in range(self.times):
            saving = (self.amount * self.degree**left + saving)[self.heads[self.out]].min(axis=1)
        self.least = int(saving[self.start])  # as if no walk came back to its first link: at least as much
        if self.least:
            self._follow(self.start, [], 0)
        return self.least

    def _follow(self, node: int, walk: list[int], saved: int) -> None:
        if saved >= self.least:
            return
        if len(walk) == self.times:
            self.least = saved
            return
        for link in self.out[node].tolist():
            longer = [*walk, link]
            head = int(self.heads[link])
            amount = int(self.amount[head])
            if amount and not _ends_as_it_begins(longer):
                amount *= self.degree ** (self.times - len(longer))
            else:
                amount = 0
            self._follow(head, longer, saved + amount)


def _ends_as_it_begins(walk: list[int]) -> bool:
    return any(walk[:length] == walk[-length:] for length in range(1, len(walk)))


def _by_step(schedule: Schedule) -> Iterator[list[_Load]]:
    """Yield for each step what every link carries, most loaded first."""
    rows, heads = schedule.transfers, schedule.topology.links.dst
    order = np.lexsort((rows.route, rows.step))
    step, route = rows.step[order].astype(np.int64), rows.route[order].astype(np.int64)
    carried = np.stack([rows.shard[order], (rows.hi - rows.lo)[order]]).astype(np.int64)
    key = step * (len(heads) + 1) + route
    first = np.flatnonzero(np.diff(key, prepend=-1))
    loads = np.add.reduceat(carried[1], first) if len(first) else first
    ends = np.append(first[1:], len(key))
    for number in range(schedule.steps):
        mine = np.flatnonzero(step[first] == number)
        mine = mine[np.argsort(-loads[mine], kind="stable")]
        yield [
            _Load(int(loads[item]), int(heads[route[first[item]]]), carried[:, first[item] : ends[item]])
            for item in mine
        ]
