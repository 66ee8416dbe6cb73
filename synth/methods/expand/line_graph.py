"""The schedule of a line graph from that of the graph, and how much it loads the links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.expand.schedules import allgather_from_columns, repeat_rows, require_expandable, require_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.expansions import line_order
from chorale.synth.topology.topology import Topology

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Numbering:
    """Where things of G are in L(G). The out-links of node w are ranks `first_out[w]` to `first_out[w + 1] - 1`, and
    link e into w, followed by the link of rank r, is link `first_into[r] + e - first_in[w]` of L(G)."""

    rank: Ids
    first_out: Ids
    fan_out: Ids
    first_in: Ids
    fan_in: Ids
    first_into: Ids


def line_schedule(base: Schedule, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the line graph L(G) of the network G of `base`.

    A new first step sends every shard to all neighbours. Then, where `base` sends from u to w what started at v, all
    links into v have their shards sent from node uw to all out-links of w, except to the shard's own node. Chunks stay
    as they are. One more step; steps that turn out empty (only if a node has a single link) are left out.
    O(new rows); d^2 for each row of `base` on a d-regular network.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 1.
    """
    require_expandable(base)
    at = _numbering(base.topology)
    rows, links = base.transfers, base.topology.links
    link = rows.route.astype(np.int32)
    through = links.dst[link]
    transfers = np.dot(at.fan_out[through].astype(np.int64), at.fan_in[rows.shard])
    require_size(len(topology.links) + int(transfers), topology)
    row, out_number = repeat_rows(at.fan_out[through])
    receiver = at.first_out[through][row] + out_number
    route = at.first_into[receiver] + (link - at.first_in[through])[row]
    copy, in_number = repeat_rows(at.fan_in[rows.shard][row])
    row, receiver, route = row[copy], receiver[copy], route[copy]
    shard = at.rank[at.first_in[rows.shard][row] + in_number]
    needed = shard != receiver
    row, route, shard = row[needed], route[needed], shard[needed]
    first = np.flatnonzero(topology.links.src != topology.links.dst)
    later_steps, step = _without_gaps(rows.step[row])
    zeros, full = np.zeros(len(first), dtype=np.int32), np.full(len(first), base.chunks_per_shard)
    parts = (
        (zeros, step + 1),
        (first, route),
        (topology.links.src[first], shard),
        (zeros, rows.lo[row]),
        (full, rows.hi[row]),
    )
    columns = [np.concatenate(part) for part in parts]
    return allgather_from_columns(base, topology, 1 + later_steps, base.chunks_per_shard, columns)


def _numbering(topology: Topology) -> _Numbering:
    links, nodes = topology.links, np.arange(topology.node_count + 1)
    order = line_order(topology)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    source = links.src[order]
    first_out = np.searchsorted(source, nodes).astype(np.int32)
    first_in = links.incoming_offsets(topology.node_count).astype(np.int32)
    fan_in = np.diff(first_in)
    into = fan_in[source]
    first_into = (np.cumsum(into) - into).astype(np.int32)
    return _Numbering(rank, first_out, np.diff(first_out), first_in, fan_in, first_into)


def _without_gaps(step: NDArray[np.unsignedinteger]) -> tuple[int, Ids]:
    """Return how many steps are in use, and `step` numbered by these alone."""
    used = np.bincount(step) > 0
    number = np.cumsum(used).astype(np.int32) - 1
    return int(np.count_nonzero(used)), number[step]


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
        for remaining in range(self.times):
            saving = (self.amount * self.degree**remaining + saving)[self.heads[self.out]].min(axis=1)
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
