"""Schedules of vertex-transitive networks: the rows of one rank, and symmetries that take them to every rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.schedule.schedule import (
    MAX_TRANSFERS,
    ColumnBounds,
    Form,
    Kind,
    Parameter,
    Routes,
    Schedule,
    Transfers,
    schedule_repr,
)
from chorale.synth.schedule.transforms import concatenate, joined_certificate, reverse_allgather, reversed_certificate
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.topology.translations import TranslatedLinks, Translations, Transversal


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricTrees:
    """A pipelined allgather in which the trees of every root are the images of those of the first root of its orbit.

    generators: which symmetries of `topology` generate the translations
    base:       the rows of the shards of `translations.first_ranks`, over `routes`
    trees_per_root: k; weights of the trees of a root add up to it
    id:         content id over topology, generators, steps, chunks, routes and base rows

    Raises InvalidInput if `generators` do not generate translations; `chorale.synth.verify.symmetric` checks the rest.
    """

    topology: Topology
    generators: tuple[int, ...]
    steps: int
    chunks_per_shard: int
    base: Transfers
    routes: Routes
    certificate: Mapping[str, Any] = field(default_factory=dict)
    trees_per_root: int | None = None
    translations: Translations = field(init=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "translations", Translations.of(self.topology, self.generators))
        facts = {
            "format": "chorale-symmetric-trees/1",
            "topology": self.topology.id,
            "steps": self.steps,
            "chunks_per_shard": self.chunks_per_shard,
        }
        moves = [self.topology.automorphisms[index] for index in self.generators]
        object.__setattr__(
            self, "id", content_id(facts, [self.routes.offsets, self.routes.link_ids, *self.base.columns, *moves])
        )

    @property
    def bounds(self) -> ColumnBounds:
        """The counts that fix the types of the columns of `base`."""
        return ColumnBounds(self.steps, len(self.routes), self.topology.compute_count, self.chunks_per_shard)

    @property
    def transfer_count(self) -> int:
        """Rows of the expanded schedule."""
        return len(self.base) * len(self.translations)

    def translated_links(self) -> TranslatedLinks:
        """Return how the translations move links. O(generators * links log links)."""
        return TranslatedLinks.of(self.topology, self.generators, self.translations)

    def base_schedule(self) -> Schedule:
        """Return the base rows as a schedule of their own, without the rows of other roots."""
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, self.base, self.routes,
            "", {}, {}, self.trees_per_root,
        )  # fmt: skip

    def expand(self, method: str, parameters: Mapping[str, Parameter]) -> Schedule:
        """Return the schedule with the rows of all roots, one translation after the other. O(rows * log links)."""
        base, moves, elements = self.base, self.translated_links(), np.arange(len(self.translations))
        if self.routes.is_direct(len(self.topology.links)):
            routes = self.routes
            route = moves.images(base.route.astype(np.int64)[None, :], elements[:, None]).astype(np.int64)
        else:
            routes, route = _route_images(self, moves)
        shard = self.translations.images(base.shard.astype(np.int64)[None, :], elements[:, None])
        bounds = ColumnBounds(self.steps, len(routes), self.topology.compute_count, self.chunks_per_shard)
        step, lo, hi, reduce = (np.tile(column, len(elements)) for column in (base.step, base.lo, base.hi, base.reduce))
        transfers = bounds.pack((step, route.ravel(), shard.ravel(), lo, hi, reduce))
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, transfers, routes,
            method, parameters, self.certificate, self.trees_per_root,
        )  # fmt: skip


def _route_images(trees: SymmetricTrees, moves: TranslatedLinks) -> tuple[Routes, NDArray[np.int64]]:
    """Return (all images of the base routes, each once; int64[elements, base rows]: the route of every row's image).

    Routes that are images of one another differ only in where they start. So a route is named by a representative,
    which starts at the first rank of an orbit, and the element that moves it.
    """
    routes, group = trees.routes, trees.translations
    lengths = np.diff(routes.offsets)
    start = group.element[routes.sources(trees.topology.links)].astype(np.int64)
    hops = moves.images(routes.link_ids, np.repeat(group.negative(start), lengths))
    rows = np.full((len(routes), int(lengths.max(initial=0))), -1, dtype=np.int32)
    column = np.arange(len(hops)) - np.repeat(routes.offsets[:-1], lengths)
    rows[np.repeat(np.arange(len(routes)), lengths), column] = hops
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    kind = kind.ravel()
    elements = np.arange(len(group))
    all_hops = moves.images(kinds.ravel().clip(min=0)[:, None], elements[None, :])  # [kinds * longest, elements]
    by_route = all_hops.reshape(*kinds.shape, len(elements)).transpose(0, 2, 1)
    is_hop = np.broadcast_to((kinds >= 0)[:, None, :], by_route.shape)
    counts = np.repeat((kinds >= 0).sum(axis=1), len(elements))
    table = Routes(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), by_route[is_hop])
    route = trees.base.route
    moved = group.sum(start[route][None, :], elements[:, None])
    return table, kind[route][None, :] * len(elements) + moved


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricGather:
    """A stepped allgather in which rank r receives the image of what rank 0 receives.

    base:        the rows that rank 0 receives; `route` is the id of an in-link of rank 0
    transversal: `element(r)` takes rank 0 to r; it maps shards as it maps ranks, and links by their ends and their
                 place among parallel links
    id:          content id over topology, steps, chunks, base rows and generators

    Nothing here is checked: `chorale.synth.verify.symmetric` does that.
    """

    topology: Topology
    steps: int
    chunks_per_shard: int
    base: Transfers
    certificate: Mapping[str, Any] = field(default_factory=dict)
    transversal: Transversal = field(init=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transversal", Transversal.of(self.topology))
        facts = {
            "format": "chorale-symmetric-gather/1",
            "topology": self.topology.id,
            "steps": self.steps,
            "chunks_per_shard": self.chunks_per_shard,
        }
        object.__setattr__(self, "id", content_id(facts, [*self.base.columns, *self.topology.automorphisms]))

    @property
    def bounds(self) -> ColumnBounds:
        """The counts that fix the types of the columns, the same as of the expanded schedule."""
        return ColumnBounds(self.steps, len(self.topology.links), self.topology.compute_count, self.chunks_per_shard)

    @property
    def transfer_count(self) -> int:
        """Rows of the expanded schedule."""
        return len(self.base) * self.topology.compute_count

    def expand(self, method: str, parameters: Mapping[str, Parameter]) -> Schedule:
        """Return the schedule with what each rank receives. O(N^2 + rows) time, 4 N^2 bytes besides the rows."""
        links, base, ranks = self.topology.links, self.base, self.topology.compute_count
        elements = self.transversal.images(np.arange(ranks))
        degree = int(np.searchsorted(links.dst, 1))
        positions = _positions_at_target(links.parallel_index()[:degree], elements[:, links.src[:degree]])
        link_images = np.arange(ranks)[:, None] * degree + positions
        # Columns take their final small types before they are spread over the ranks.
        shard = elements.astype(base.shard.dtype).take(base.shard, axis=1).ravel()
        route = link_images.astype(base.route.dtype).take(base.route, axis=1).ravel()
        step, lo, hi, reduce = (np.tile(column, ranks) for column in (base.step, base.lo, base.hi, base.reduce))
        return Schedule(
            self.topology, ALLGATHER, "stepped", self.steps, self.chunks_per_shard,
            self.bounds.pack((step, route, shard, lo, hi, reduce)), Routes.direct(len(links)),
            method, parameters, self.certificate,
        )  # fmt: skip

    def loads(self) -> NDArray[np.int64]:
        """Return int64[steps, in-links of rank 0]: chunks. Every link carries as much as one of these links."""
        degree = int(np.searchsorted(self.topology.links.dst, 1))
        loads = np.zeros((self.steps, degree), dtype=np.int64)
        np.add.at(loads, (self.base.step, self.base.route), self.base.hi.astype(np.int64) - self.base.lo)
        return loads

    def base_links(self) -> NDArray[np.int32]:
        """Return int32[links]: the in-link of rank 0 of which each link is the image. O(links * log degree)."""
        links = self.topology.links
        degree = int(np.searchsorted(links.dst, 1))
        positions = _positions_at_target(links.parallel_index()[:degree], self.transversal.images(links.src[:degree]))
        result = np.empty(len(links), dtype=np.int32)
        first = np.arange(self.topology.compute_count)[:, None] * degree
        result[first + positions] = np.arange(degree, dtype=np.int32)
        return result


SymmetricPart: TypeAlias = SymmetricGather | SymmetricTrees


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricSchedule:
    """An allgather, reduce_scatter or allreduce of symmetric parts, which are both of one kind.

    gather:  an allgather on `topology`, for allgather and allreduce
    scatter: an allgather on the transpose of `topology`, which runs backwards in time (see
             `chorale.synth.schedule.transforms.reverse_allgather`), for reduce_scatter and allreduce; it comes first
    """

    topology: Topology
    collective: Collective
    scatter: SymmetricPart | None
    gather: SymmetricPart | None
    method: str
    parameters: Mapping[str, Parameter]
    id: str = field(init=False)

    def __post_init__(self) -> None:
        facts = {
            "format": "chorale-symmetric-schedule/1",
            "topology": self.topology.id,
            "collective": self.collective.name.value,
            "scatter": None if self.scatter is None else self.scatter.id,
            "gather": None if self.gather is None else self.gather.id,
        }
        object.__setattr__(self, "id", content_id(facts))

    def __repr__(self) -> str:
        return schedule_repr(self)

    @property
    def parts(self) -> tuple[SymmetricPart, ...]:
        """The parts in the order in which they run."""
        return tuple(part for part in (self.scatter, self.gather) if part is not None)

    @property
    def form(self) -> Form:
        return "symmetric"

    @property
    def is_in_network(self) -> bool:
        return False

    @property
    def kind(self) -> Kind:
        return "pipelined" if any(isinstance(part, SymmetricTrees) for part in self.parts) else "stepped"

    @property
    def trees_per_root(self) -> int | None:
        trees = {part.trees_per_root if isinstance(part, SymmetricTrees) else None for part in self.parts}
        return trees.pop() if len(trees) == 1 else None

    @property
    def steps(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def chunks_per_shard(self) -> int:
        return lcm(*(part.chunks_per_shard for part in self.parts))

    @property
    def transfer_count(self) -> int:
        """Rows of the expanded schedule."""
        return sum(part.transfer_count for part in self.parts)

    @property
    def certificate(self) -> Mapping[str, Any]:
        """Certificate of the expanded schedule."""
        claims = [part.certificate for part in self.parts]
        if self.scatter is not None:
            claims[0] = reversed_certificate(claims[0])
        return joined_certificate(*claims) if len(claims) > 1 else claims[0]

    def expand(self, max_rows: int = MAX_TRANSFERS) -> Schedule:
        """Return the schedule with the rows of all ranks. O(N^2 + rows).

        Raises InvalidInput if it would have more than `max_rows` rows.
        """
        if self.transfer_count > max_rows:
            rule = f"a symmetric schedule is written out up to {max_rows} transfers"
            value = f"{self.method} on {self.topology.spec} with {self.transfer_count}"
            raise InvalidInput(rule, value, "use a smaller topology")
        if not self.parts:
            raise ValueError("a symmetric schedule needs a part")
        expanded = [part.expand(self.method, self.parameters) for part in self.parts]
        if self.scatter is not None:
            expanded[0] = reverse_allgather(expanded[0], self.topology, transpose_with_links(self.topology)[1])
        return concatenate(*expanded) if len(expanded) > 1 else expanded[0]


def symmetric_parts(collective: Collective) -> tuple[bool, bool]:
    """Return (whether `collective` has a scatter part, a gather part). InvalidInput if it has no symmetric form."""
    parts = {
        CollectiveName.ALLGATHER: (False, True),
        CollectiveName.REDUCE_SCATTER: (True, False),
        CollectiveName.ALLREDUCE: (True, True),
    }
    if collective.name not in parts:
        supported = "allgather, reduce_scatter or allreduce"
        raise InvalidInput(f"the symmetric form is for {supported}", collective.name.value, f"choose {supported}")
    return parts[collective.name]


def _positions_at_target(parallel: NDArray[np.int32], sources: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return, for the images of the in-links of rank 0 (by row), their positions among the in-links of their target.

    In-links are numbered by source, then by position among parallel links, which symmetries keep.
    """
    order = np.argsort(sources.astype(np.int64) * len(parallel) + parallel, axis=1)
    positions = np.empty_like(order)
    np.put_along_axis(positions, order, np.broadcast_to(np.arange(len(parallel)), order.shape), axis=1)
    return positions
