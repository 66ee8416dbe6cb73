"""A schedule: a list of transfers, each with its step, shard, chunks and the route from the source to the destination.

Transfers are stored in columns, because there can be tens of millions of them. They share one table of routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.topology.topology import Links, Topology

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricSchedule

Column = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Columns of equal length; row i moves chunks `lo[i]` to `hi[i] - 1` of shard `shard[i]` over `route[i]`.

    step:   step of a stepped schedule, or depth in a pipelined schedule's tree, from 0
    route:  index into the schedule's `Routes`, which determines the links, the source and the destination
    shard:  number of the shard (in most collectives, the rank that owns it)
    lo, hi: interval of chunks; a chunk is 1 / chunks_per_shard of a shard or, in uneven collectives, a fixed unit of
            which a shard has at most `chunks_per_shard`
    reduce: 1 if the destination adds the arriving chunks to its own, 0 if it stores them

    Every column has the smallest unsigned type that fits its largest legal value, so that equal schedules
    have equal bytes.
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


COLUMN_NAMES = ("step", "route", "shard", "lo", "hi", "reduce")


MAX_CHUNKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Upper limits of the columns' values. They determine the smallest integer type for each column."""

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
        """Return `columns`, in the order of `COLUMN_NAMES`, as Transfers with the types in `dtypes`."""
        pairs = zip(columns, self.dtypes, strict=True)
        return Transfers(*(np.ascontiguousarray(column, dtype=dtype) for column, dtype in pairs))


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Paths of links in compressed rows: route r consists of `link_ids[offsets[r]:offsets[r + 1]]`, in travel order.

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
        """Return (number of links per route, link ids of all routes one after the other) for the given `routes`."""
        starts = self.offsets[routes]
        hops = self.offsets[routes + 1] - starts
        position = np.arange(hops.sum()) + np.repeat(starts - np.cumsum(hops) + hops, hops)
        return hops, self.link_ids[position]

    def latencies(self, links: Links) -> tuple[NDArray[np.object_], int]:
        """Return (object[routes]: latency of each route in integer ticks, number of ticks per second)."""
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
"""Maximum number of rows to which a symmetric schedule is expanded."""


AnySchedule: TypeAlias = "Schedule | SymmetricSchedule"
"""A schedule, either in columns with the rows of all ranks, or symmetric with the rows of a few ranks.

`expand` returns the equivalent schedule in columns, with `transfer_count` rows. Raises InvalidInput above a limit.
"""


def schedule_repr(schedule: AnySchedule) -> str:
    made = f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"
    return f"<{made}: {schedule.steps} steps, {schedule.transfer_count} transfers, not verified>"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective's schedule on a topology, stored as columns of transfers.

    Routes lead from rank to rank. If switches multicast or add (`is_in_network`), a route can also start or end at such
    a switch, which forwards data in the same step in which it receives them.

    kind:        "stepped": the transfers in a step send data that arrived before the step;
                 "pipelined": data stream along trees, and `steps` is the height of the trees
    barriers:    steps, ascending, at which a pipelined schedule starts a new stream once all earlier transfers have
                 ended, for example between the two halves of an allreduce; `steps` is the sum of the streams' heights
    steps:       number of steps, or height of the trees
    method, parameters: how the schedule was made; not part of `id`
    certificate: the method's claim that the schedule is optimal, JSON-compatible, checked by separate code
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
        """Return this schedule for `topology`, which must be the same network, possibly with a different spec."""
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
        """Whether switches add or multicast data, that is, whether routes start or end at switches. O(routes)."""
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
    """A schedule in which switches that add or multicast appear as additional compute nodes. Only used for lowering.

    rank_count: number of ranks, which is also the number of shards; ranks are numbered before the switches
    switches:   original node index of each compute node that stands for a switch
    """

    rank_count: int = 0
    switches: tuple[int, ...] = ()

    @property
    def shard_count(self) -> int:
        return self.rank_count
