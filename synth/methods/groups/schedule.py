"""Schedules of groups that share a fabric: whole chunks along the ways of a packing, and loads of every link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.methods.groups.group import Group, GroupNetwork, network_of_group
from chorale.synth.methods.groups.packing import Commodity, GroupPacking
from chorale.synth.methods.groups.trees import Edge, Routing
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NEARLY_BEST = Fraction(1001, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class GroupSchedule:
    """network: the fabric as the group sees it;  loads: per link of the fabric, in the units of amounts."""

    group: Group
    network: GroupNetwork
    verified: VerifiedSchedule
    loads: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedSchedules:
    """Schedules of all groups. time: the busiest link needs it for all of them together, in amount / bandwidth."""

    topology: Topology
    members: tuple[GroupSchedule, ...]
    time: Fraction
    lower: Fraction
    chunks: int

    @property
    def gap(self) -> Fraction:
        return self.time / self.lower - 1


def shared_schedules(topology: Topology, packing: GroupPacking, chunks: int | None = None) -> SharedSchedules:
    """Return verified schedules for all groups of `packing`, with so many chunks per shard, or few that suffice.

    Loads are those of the verified rows; CheckFailed if they are not what the packing promised.
    """
    counts = [chunks] if chunks is not None else list(CHUNK_COUNTS)
    times = [(_time_in_chunks(topology, packing, count), count) for count in counts]
    best = min(time for time, _ in times)
    time, count = next(pair for pair in times if pair[0] <= best * _NEARLY_BEST)
    members = tuple(_member(topology, packing, number, count) for number in range(len(packing.groups)))
    together = time_together(topology, [member.loads for member in members])
    if together != time:
        raise CheckFailed(
            "schedules of groups must load links as planned", f"{together} instead of {time}", "report it"
        )
    return SharedSchedules(topology, members, together, packing.lower, count)


def time_together(topology: Topology, loads: Sequence[Sequence[Fraction]]) -> Fraction:
    """Return the time in which the busiest link carries the loads of all groups, in amount / bandwidth."""
    sums = [sum(of_link, Fraction(0)) for of_link in zip(*loads, strict=True)]
    return max(load / link.bandwidth for load, link in zip(sums, topology.links, strict=True))


def _time_in_chunks(topology: Topology, packing: GroupPacking, chunks: int) -> Fraction:
    totals = [Fraction(0)] * len(topology.links)
    for number, commodity in enumerate(packing.commodities):
        units = _units(packing, commodity, chunks)
        for way, count in zip(packing.ways[number], _counts(packing.shares[number], units), strict=True):
            for link in way.links.tolist() if count else ():
                totals[link] += commodity.amount * count / units
    return max(load / link.bandwidth for load, link in zip(totals, topology.links, strict=True))


def _units(packing: GroupPacking, commodity: Commodity, chunks: int) -> int:
    group = packing.groups[commodity.group]
    return chunks * (len(group.ranks) if group.collective.name == CollectiveName.ALLREDUCE else 1)


def _counts(shares: NDArray[np.float64], units: int) -> list[int]:
    """Return whole units near `shares` of them: the largest remainders are rounded up."""
    exact = shares * units
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: units - int(counts.sum())]] += 1
    result: list[int] = counts.tolist()
    return result


def _member(topology: Topology, packing: GroupPacking, number: int, chunks: int) -> GroupSchedule:
    group = packing.groups[number]
    network = network_of_group(topology, group)
    schedule = _schedule(network, group, list(_pieces(packing, number, chunks)), chunks)
    verified = verify(schedule)
    rows, routes = schedule.transfers, schedule.routes
    loads = np.zeros(len(topology.links), dtype=np.int64)
    for route, size in zip(rows.route.tolist(), (rows.hi.astype(np.int64) - rows.lo).tolist(), strict=True):
        np.add.at(loads, routes.path(route), size)
    part = group.amount * schedule.chunk_part
    return GroupSchedule(group, network, verified, tuple(part * int(load) for load in loads[network.link].tolist()))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Units `first` to `last` - 1 of the commodity of `root` take a way."""

    root: int
    way: Routing
    first: int
    last: int


def _pieces(packing: GroupPacking, number: int, chunks: int) -> Iterator[_Piece]:
    for index, commodity in enumerate(packing.commodities):
        if commodity.group != number:
            continue
        first = 0
        counts = _counts(packing.shares[index], _units(packing, commodity, chunks))
        for way, count in zip(packing.ways[index], counts, strict=True):
            if count:
                yield _Piece(commodity.root, way, first, first + count)
            first += count


def _schedule(network: GroupNetwork, group: Group, pieces: Sequence[_Piece], chunks: int) -> Schedule:
    """Return the schedule on the network as the group sees it. Sums come before copies in every tree."""
    topology = network.topology
    routes: dict[tuple[int, ...], int] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    for piece in pieces:
        for edge in piece.way.edges:
            path = tuple(int(network.link[link]) for link in edge.path)
            route = routes.setdefault(path, len(routes))
            for shard, low, high in _intervals(group, piece, edge, chunks):
                rows.append((edge.depth, route, shard, low, high, int(edge.reduces)))
    table = np.array(sorted(rows), dtype=np.int64).T
    steps = 1 + int(table[0].max())
    ranks = topology.compute_count
    shards = ranks * ranks if group.collective.is_alltoall else ranks
    bounds = ColumnBounds(steps, len(routes), shards, chunks)
    return Schedule(
        topology, group.collective, "pipelined", steps, chunks, bounds.pack(list(table)), Routes.of_paths(routes),
        "groups", {"group": group.name},
    )  # fmt: skip


def _intervals(group: Group, piece: _Piece, edge: Edge, chunks: int) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, first chunk, the one after the last) of what an edge moves."""
    name, ranks = group.collective.name, len(group.ranks)
    if name == CollectiveName.ALLTOALL:
        yield piece.root * ranks + edge.target, piece.first, piece.last
        return
    if name != CollectiveName.ALLREDUCE:
        yield piece.root, piece.first, piece.last
        return
    for shard in range(piece.first // chunks, (piece.last - 1) // chunks + 1):
        yield shard, max(0, piece.first - shard * chunks), min(chunks, piece.last - shard * chunks)
