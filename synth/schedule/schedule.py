"""Defines schedules: lists of transfers, each with a step, a shard, chunks, and a route from source to destination.

Transfers are stored in columns, because there can be tens of millions of them. All transfers share one table of routes.
Schedules can be reversed in time, concatenated, renamed and split: a reversed allgather is a reduce_scatter, and a
reduce_scatter followed by an allgather is an allreduce. Splitting transfers into smaller pieces lets trees forward one
piece while the next one arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.topology.topology import Links, Topology, link_ids

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricSchedule

Column = NDArray[np.unsignedinteger]
COLUMN_NAMES = ("step", "route", "shard", "lo", "hi", "reduce")
MAX_CHUNKS = 2**31 - 1
MAX_PIPELINE_PARTS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """A schedule's transfers as columns. Row i moves chunks `lo[i]` to `hi[i] - 1` of shard `shard[i]` over `route[i]`.

    step:   step of a stepped schedule, or depth in a pipelined schedule's tree, from 0
    route:  index into the schedule's `Routes`, which determines the links, the source and the destination
    shard:  number of the shard (in most collectives, the rank that owns it)
    lo, hi: interval of chunks; a chunk is 1 / chunks_per_shard of a shard. In uneven collectives, all chunks have the
            same size, and a shard has at most `chunks_per_shard` of them.
    reduce: 1 if the destination adds the arriving chunks to its own, 0 if it stores them

    Every column has the smallest unsigned type that can hold its largest legal value, so that equal schedules have
    equal bytes.
    """

    step: Column
    route: Column
    shard: Column
    lo: Column
    hi: Column
    reduce: Column

    def __len__(self) -> int:
        return len(self.step)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.step, self.route, self.shard, self.lo, self.hi, self.reduce)

    def select(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Transfers:
        """Return the transfers in `rows`, which is an index array, a mask or a slice."""
        return Transfers(*(column[rows] for column in self.columns))


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Upper limits of the columns' values. These limits determine the smallest integer type for each column."""

    steps: int
    routes: int
    shards: int
    chunks_per_shard: int

    def __post_init__(self) -> None:
        if self.chunks_per_shard > MAX_CHUNKS:
            rule = f"a schedule has at most {MAX_CHUNKS} chunks per shard"
            raise InvalidInput(rule, self.chunks_per_shard, "choose a smaller --k, or leave out --gap 0")

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        largest = (self.steps, self.routes, self.shards, self.chunks_per_shard, self.chunks_per_shard, 1)
        return tuple(np.min_scalar_type(value) for value in largest)

    def pack(self, columns: Sequence[NDArray[np.integer]]) -> Transfers:
        """Convert `columns`, in the order of `COLUMN_NAMES`, to Transfers with the smallest integer types."""
        pairs = zip(columns, self.dtypes, strict=True)
        return Transfers(*(np.ascontiguousarray(column, dtype=dtype) for column, dtype in pairs))


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """A table of routes (paths of links): route r is `link_ids[offsets[r]:offsets[r + 1]]`, in travel order.

    On direct-connect networks, every route is usually a single link and has the link's id. Longer routes lead through
    switches or through nodes that forward data.
    """

    offsets: NDArray[np.int64]
    link_ids: NDArray[np.int32]

    @staticmethod
    def direct(link_count: int) -> Routes:
        """Return a table in which route r consists of link r."""
        return Routes(np.arange(link_count + 1, dtype=np.int64), np.arange(link_count, dtype=np.int32))

    @staticmethod
    def of_paths(paths: Iterable[Iterable[int]]) -> Routes:
        """Return a table of routes from `paths`: route r has the link ids of the r-th path, in travel order."""
        rows = [list(path) for path in paths]
        lengths = [len(row) for row in rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Routes(offsets, np.array([link for row in rows for link in row], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def is_direct(self, link_count: int) -> bool:
        as_many = len(self.link_ids) == len(self) == link_count
        return as_many and bool(np.array_equal(self.link_ids, np.arange(link_count)))

    def path(self, route: int) -> NDArray[np.int32]:
        return self.link_ids[self.offsets[route] : self.offsets[route + 1]]

    def hops_of(self, routes: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (number of links of each route in `routes`, link ids of all these routes one after the other)."""
        starts = self.offsets[routes]
        hops = self.offsets[routes + 1] - starts
        position = np.arange(hops.sum()) + np.repeat(starts - np.cumsum(hops) + hops, hops)
        return hops, self.link_ids[position]

    def latencies(self, links: Links) -> tuple[NDArray[np.object_], int]:
        """Return (latency of each route in whole ticks, as object[routes]; number of ticks per second)."""
        parts = lcm(*(latency.denominator for latency in links.latencies_s))
        table = np.array([int(latency * parts) for latency in links.latencies_s], dtype=object)
        return np.add.reduceat(table[links.latency_class[self.link_ids]], self.offsets[:-1]), parts

    def sources(self, links: Links) -> NDArray[np.int32]:
        return links.src[self.link_ids[self.offsets[:-1]]]

    def destinations(self, links: Links) -> NDArray[np.int32]:
        return links.dst[self.link_ids[self.offsets[1:] - 1]]

    def end_at_switches(self, topology: Topology) -> bool:
        """Return whether any route starts or ends at a switch. O(routes)."""
        links, ranks = topology.links, topology.compute_count
        if topology.switch_count == 0 or not len(self):
            return False
        return bool((self.sources(links) >= ranks).any() or (self.destinations(links) >= ranks).any())


Kind = Literal["stepped", "pipelined"]
Form = Literal["columns", "symmetric"]
Parameter = str | int | bool | None
MAX_TRANSFERS = 2**27
"""Maximum number of rows of a schedule that is expanded from symmetric form."""


AnySchedule: TypeAlias = "Schedule | SymmetricSchedule"
"""A schedule, either with the rows of all ranks (`Schedule`), or in symmetric form with the rows of a few ranks.

`expand` returns the equivalent `Schedule` with `transfer_count` rows. It raises InvalidInput above `max_rows` rows.
"""


def schedule_repr(schedule: AnySchedule) -> str:
    made = f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"
    return f"<{made}: {schedule.steps} steps, {schedule.transfer_count} transfers, not verified>"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective's schedule on a topology, stored as columns of transfers.

    Routes lead from rank to rank. If switches multicast or reduce data (`is_in_network`), routes can also start or end
    at these switches. A switch forwards data in the same step in which it receives them.

    kind:        "stepped" if the transfers in a step send data that arrived before the step, "pipelined" if data stream
                 along trees
    steps:       number of steps; in a pipelined schedule, height of the trees, summed over its streams
    barriers:    ascending steps at which a pipelined schedule starts a new stream, after all earlier transfers have
                 ended, for example between the two halves of an allreduce
    trees_per_root: k, the number of trees per root; None for stepped schedules, and if the two halves of an allreduce
                 have different numbers
    method, parameters: how the schedule was made; not part of `id`
    certificate: the method's proof of a bound, as JSON values; separate code checks it
    id:          hash of topology, collective, kind, chunks, routes and all rows
    The constructor checks nothing. Only `chorale.synth.verify.verify` turns a schedule into a `VerifiedSchedule`.
    """

    topology: Topology
    collective: Collective
    kind: Kind
    steps: int
    chunks_per_shard: int
    transfers: Transfers
    routes: Routes
    method: str
    parameters: Mapping[str, Parameter]
    certificate: Mapping[str, Any] = field(default_factory=dict)
    trees_per_root: int | None = None
    barriers: tuple[int, ...] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        collective, routes = self.collective, self.routes
        facts: dict[str, Any] = {
            "format": "chorale-schedule/1",
            "topology": self.topology.id,
            "collective": collective.name.value,
            "root": collective.root,
            "kind": self.kind,
            "steps": self.steps,
            "chunks_per_shard": self.chunks_per_shard,
        }
        optional = {"sizes": collective.sizes, "members": collective.members, "barriers": self.barriers or None}
        facts |= {name: value for name, value in optional.items() if value is not None}
        columns: list[NDArray[Any]] = [routes.offsets, routes.link_ids, *self.transfers.columns]
        object.__setattr__(self, "id", content_id(facts, columns))

    def __repr__(self) -> str:
        return schedule_repr(self)

    def on(self, topology: Topology) -> Schedule:
        """Return a copy of this schedule on `topology`, which must be the same network but may have another spec."""
        return replace(self, topology=topology)

    @property
    def form(self) -> Form:
        return "columns"

    @property
    def transfer_count(self) -> int:
        return len(self.transfers)

    def expand(self, max_rows: int = MAX_TRANSFERS) -> Schedule:
        """Return this schedule itself, because it already has all ranks' rows."""
        return self

    @property
    def shard_count(self) -> int:
        return shard_count(self.topology, self.collective)

    @property
    def chunk_part(self) -> Fraction:
        """Size of a chunk as a fraction of the vector."""
        ranks, sizes = self.topology.compute_count, self.collective.sizes
        if sizes is None:
            return Fraction(1, self.chunks_per_shard * ranks)
        own = self.collective.is_alltoall or self.collective.members is not None
        return Fraction(ranks if own else 1, sum(sizes))

    @property
    def is_in_network(self) -> bool:
        """Whether switches reduce or multicast data, that is, whether routes start or end at switches. O(routes)."""
        return self.routes.end_at_switches(self.topology)

    @property
    def bounds(self) -> ColumnBounds:
        """Upper limits of the columns' values, which determine the integer type of each column."""
        return ColumnBounds(self.steps, len(self.routes), self.shard_count, self.chunks_per_shard)

    @property
    def src(self) -> NDArray[np.int32]:
        return self.routes.sources(self.topology.links)[self.transfers.route]

    @property
    def dst(self) -> NDArray[np.int32]:
        return self.routes.destinations(self.topology.links)[self.transfers.route]


def shard_count(topology: Topology, collective: Collective) -> int:
    """Return the shard count: one per entry of `members` if set, one per rank pair in alltoall, else one per rank."""
    ranks = topology.compute_count
    if collective.members is not None:
        return len(collective.members)
    return ranks * ranks if collective.is_alltoall else ranks


@dataclass(frozen=True, slots=True, eq=False)
class ProcessSchedule(Schedule):
    """A schedule in which switches that reduce or multicast data count as compute nodes. Only used for lowering.

    rank_count: number of ranks, which is also the number of shards; ranks are numbered before the switches
    switches:   original node index of each compute node that stands for a switch
    """

    rank_count: int = 0
    switches: tuple[int, ...] = ()

    @property
    def shard_count(self) -> int:
        return self.rank_count


def reverse_allgather(gather: Schedule, topology: Topology, original_link: np.ndarray) -> Schedule:
    """Return the reduce_scatter (or reduce) on `topology` that runs the allgather (or broadcast) `gather` backwards.

    `gather` must be on the transpose of `topology`; link l of the transpose is `original_link[l]` of `topology`. If
    `gather` copies a chunk from w to u in step t of T, the result reduces it from u to w in step T - 1 - t. The tree
    that spreads a shard becomes the tree that collects its sum, so times and loads are the same (Zhao et al., full
    paper, corollary 1.1).
    """
    transfers = gather.transfers
    if gather.routes.is_direct(len(topology.links)):
        routes = Routes.direct(len(topology.links))
        route = original_link[transfers.route]
    else:
        routes, route = reversed_routes(gather.routes, original_link), transfers.route
    is_rooted = gather.collective.is_rooted
    collective = Collective(CollectiveName.REDUCE, gather.collective.root) if is_rooted else REDUCE_SCATTER
    if gather.collective.sizes is not None:
        collective = uneven_collective(CollectiveName.REDUCE_SCATTERV, gather.collective.sizes)
    backwards = slice(None, None, -1)
    bounds = ColumnBounds(gather.steps, len(routes), topology.compute_count, gather.chunks_per_shard)
    step = gather.steps - 1 - transfers.step.astype(np.int64)
    columns = (step, route, transfers.shard, transfers.lo, transfers.hi, np.ones(len(step), dtype=np.uint8))
    reversed_transfers = bounds.pack([column[backwards] for column in columns])
    return Schedule(
        topology, collective, gather.kind, gather.steps, gather.chunks_per_shard, reversed_transfers, routes,
        gather.method, gather.parameters, reversed_certificate(gather.certificate), gather.trees_per_root,
        tuple(gather.steps - barrier for barrier in reversed(gather.barriers)),
    )  # fmt: skip


def concatenate(scatter: Schedule, gather: Schedule) -> Schedule:
    """Return the allreduce that runs the reduce_scatter `scatter` and then the allgather `gather`.

    Both must be on the same topology. The result's `chunks_per_shard` is the least common multiple of theirs. If both
    schedules are pipelined, the result is pipelined too, with a barrier between the two parts.
    """
    chunks = lcm(scatter.chunks_per_shard, gather.chunks_per_shard)
    link_count = len(gather.topology.links)
    shared_routes = scatter.routes.is_direct(link_count) and gather.routes.is_direct(link_count)
    routes = scatter.routes if shared_routes else joined_routes(scatter.routes, gather.routes)
    steps = scatter.steps + gather.steps
    bounds = ColumnBounds(steps, len(routes), scatter.shard_count, chunks)
    parts = []
    for part, first_step, first_route in (
        (scatter, 0, 0),
        (gather, scatter.steps, 0 if shared_routes else len(scatter.routes)),
    ):
        factor = chunks // part.chunks_per_shard
        rows = part.transfers
        step = rows.step.astype(np.int64) + first_step
        route = rows.route.astype(np.int64) + first_route
        lo, hi = rows.lo.astype(np.int64) * factor, rows.hi.astype(np.int64) * factor
        parts.append(bounds.pack((step, route, rows.shard, lo, hi, rows.reduce)).columns)
    columns = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    certificate = joined_certificate(scatter.certificate, gather.certificate)
    kind: Kind = "stepped" if scatter.kind == gather.kind == "stepped" else "pipelined"
    ends = {scatter.steps}  # where streams end; each step of a stepped part is a stream
    for part, first_step in ((scatter, 0), (gather, scatter.steps)):
        inner = range(1, part.steps) if part.kind == "stepped" else part.barriers
        ends.update(first_step + step for step in inner)
    barriers = () if kind == "stepped" else tuple(sorted(ends - {0, steps}))
    trees = gather.trees_per_root if gather.trees_per_root == scatter.trees_per_root else None
    return Schedule(
        gather.topology, ALLREDUCE, kind, steps, chunks, bounds.pack(columns), routes,
        gather.method, gather.parameters, certificate, trees, barriers,
    )  # fmt: skip


def reversed_routes(routes: Routes, original_link: np.ndarray) -> Routes:
    """Return the reversed routes: each link l is replaced by `original_link[l]`, in reverse order. O(hops)."""
    offsets = routes.offsets
    mirror = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(offsets[-1])
    return Routes(offsets, original_link[routes.link_ids[mirror]].astype(np.int32))


def joined_routes(first: Routes, second: Routes) -> Routes:
    offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
    return Routes(offsets, np.concatenate([first.link_ids, second.link_ids]))


def reversed_certificate(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "reversed", "of": certificate} if certificate else {}


def joined_certificate(scatter: Mapping[str, Any], gather: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "concatenation", "parts": [scatter, gather]}


def renamed_schedule(schedule: AnySchedule, new_node: NDArray[np.integer], topology: Topology) -> Schedule:
    """Return the expanded `schedule` on `topology`, which is the same network with node v renamed to `new_node[v]`.

    Steps, chunks and costs do not change. The certificate is dropped, because it contains old node numbers. The caller
    must check that the networks match (see `chorale.synth.topology.topology.carries`). O(rows + links log links).
    """
    old = schedule.expand()
    links, rows = old.topology.links, old.transfers
    ids = link_ids(new_node[links.src], new_node[links.dst], links.bandwidth_class, links.latency_class)
    is_direct = old.routes.is_direct(len(links))  # then route r remains link r
    routes = old.routes if is_direct else Routes(old.routes.offsets, ids[old.routes.link_ids])
    route = ids[rows.route] if is_direct else rows.route
    columns = (rows.step, route, _new_shards(old, new_node, rows.shard), rows.lo, rows.hi, rows.reduce)
    root, sizes = old.collective.root, old.collective.sizes
    if sizes is not None:
        order = np.argsort(_new_shards(old, new_node, np.arange(len(sizes))))
        sizes = tuple(sizes[shard] for shard in order.tolist())
    return replace(
        old,
        topology=topology,
        collective=replace(old.collective, root=None if root is None else int(new_node[root]), sizes=sizes),
        transfers=old.bounds.pack(columns),
        routes=routes,
        certificate={},
    )


def _new_shards(schedule: Schedule, new_node: NDArray[np.integer], shard: NDArray[np.integer]) -> NDArray[np.integer]:
    ranks = schedule.topology.compute_count
    if not schedule.collective.is_alltoall:
        return shard if schedule.collective.is_rooted else new_node[shard]
    source, target = np.divmod(shard.astype(np.int64), ranks)
    return new_node[source].astype(np.int64) * ranks + new_node[target]


def pipeline_split(schedule: Schedule, parts: int) -> Schedule:
    """Return `schedule` with every transfer split into `parts` equal transfers, which are sent one after the other.

    Loads and steps do not change. In a tree, every edge carries `parts` pieces instead of one transfer. Raises
    InvalidInput unless `parts` is between 1 and `MAX_PIPELINE_PARTS`. O(rows of the result).
    """
    if not 1 <= parts <= MAX_PIPELINE_PARTS:
        raise InvalidInput(
            f"a schedule is cut into 1 to {MAX_PIPELINE_PARTS} parts", parts, "choose a number in this range"
        )
    rows = schedule.transfers
    length = rows.hi.astype(np.int64) - rows.lo
    step, route, shard, lo, reduce = (
        np.repeat(column.astype(np.int64), parts)
        for column in (rows.step, rows.route, rows.shard, rows.lo, rows.reduce)
    )
    lengths = np.repeat(length, parts)
    first = lo * parts + lengths * np.tile(np.arange(parts), len(rows))
    sizes = schedule.collective.sizes
    deeper = replace(
        schedule,
        collective=replace(schedule.collective, sizes=None if sizes is None else tuple(size * parts for size in sizes)),
        chunks_per_shard=schedule.chunks_per_shard * parts,
        parameters={**schedule.parameters, "depth": parts},
    )
    return replace(deeper, transfers=deeper.bounds.pack((step, route, shard, first, first + lengths, reduce)))
