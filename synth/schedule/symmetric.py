"""Stores a schedule of a symmetric network as the transfers of a few ranks, and symmetries that yield all others."""

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
    concatenate,
    joined_certificate,
    reverse_allgather,
    reversed_certificate,
    schedule_repr,
)
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.topology.translations import TranslatedLinks, Translations, Transversal


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricTrees:
    """A pipelined allgather, stored as the trees of a few roots; translations map these trees to all other roots.

    Translations are symmetries that commute. They divide the ranks into orbits; `base` has the trees of the first rank
    of each orbit.

    generators: indices of the topology's symmetries that generate the translations
    base:       transfers of the shards that belong to `translations.first_ranks`, over `routes`
    trees_per_root: k, the total weight of a root's trees
    id:         hash of topology, generators, steps, chunks, routes and base rows

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
        """Upper limits of the values in `base`, which determine the integer type of each column."""
        return ColumnBounds(self.steps, len(self.routes), self.topology.compute_count, self.chunks_per_shard)

    @property
    def transfer_count(self) -> int:
        return len(self.base) * len(self.translations)

    def translated_links(self) -> TranslatedLinks:
        """Return how each translation permutes the links. O(generators * links log links)."""
        return TranslatedLinks.of(self.topology, self.generators, self.translations)

    def base_schedule(self) -> Schedule:
        """Return a schedule that contains only the stored rows `base`, not those of the other roots."""
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, self.base, self.routes,
            "", {}, {}, self.trees_per_root,
        )  # fmt: skip

    def expand(self, method: str, parameters: Mapping[str, Parameter]) -> Schedule:
        """Return the schedule with the rows of all roots, ordered by translation. O(rows * log links)."""
        base, routes, group, moves = self.base, self.routes, self.translations, self.translated_links()
        elements = np.arange(len(group))
        if routes.is_direct(len(self.topology.links)):
            route = moves.images(base.route.astype(np.int64)[None, :], elements[:, None]).astype(np.int64)
        else:
            # The new table contains each image of a route once. First, each route is replaced by its image that starts
            # at the first rank of an orbit. A row of the new table then belongs to such an image and a translation.
            lengths = np.diff(routes.offsets)
            start = group.element[routes.sources(self.topology.links)].astype(np.int64)
            hops = moves.images(routes.link_ids, np.repeat(group.negative(start), lengths))
            rows = np.full((len(routes), int(lengths.max(initial=0))), -1, dtype=np.int32)
            column = np.arange(len(hops)) - np.repeat(routes.offsets[:-1], lengths)
            rows[np.repeat(np.arange(len(routes)), lengths), column] = hops
            kinds, kind = np.unique(rows, axis=0, return_inverse=True)
            all_hops = moves.images(kinds.ravel().clip(min=0)[:, None], elements[None, :])
            by_route = all_hops.reshape(*kinds.shape, len(elements)).transpose(0, 2, 1)
            is_hop = np.broadcast_to((kinds >= 0)[:, None, :], by_route.shape)
            counts = np.repeat((kinds >= 0).sum(axis=1), len(elements))
            routes = Routes(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), by_route[is_hop])
            moved = group.sum(start[base.route][None, :], elements[:, None])
            route = kind.ravel()[base.route][None, :] * len(elements) + moved
        shard = group.images(base.shard.astype(np.int64)[None, :], elements[:, None])
        bounds = ColumnBounds(self.steps, len(routes), self.topology.compute_count, self.chunks_per_shard)
        step, lo, hi, reduce = (np.tile(column, len(elements)) for column in (base.step, base.lo, base.hi, base.reduce))
        transfers = bounds.pack((step, route.ravel(), shard.ravel(), lo, hi, reduce))
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, transfers, routes,
            method, parameters, self.certificate, self.trees_per_root,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricGather:
    """A stepped allgather, stored as the rows that rank 0 receives; symmetries map these rows to all other ranks.

    base:        rows that rank 0 receives; `route` is the id of an incoming link of rank 0
    transversal: one symmetry `element(r)` per rank r, which maps rank 0 to r. It maps shards like the ranks that own
                 them, and a link to the link between the mapped ends, at the same position among parallel links.
    id:          hash of topology, steps, chunks, base rows and generators
    The constructor checks nothing; `chorale.synth.verify.symmetric` does.
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
        """Upper limits of the columns' values, which also hold for the expanded schedule."""
        return ColumnBounds(self.steps, len(self.topology.links), self.topology.compute_count, self.chunks_per_shard)

    @property
    def transfer_count(self) -> int:
        return len(self.base) * self.topology.compute_count

    def expand(self, method: str, parameters: Mapping[str, Parameter]) -> Schedule:
        """Return the schedule with all ranks' rows. O(N^2 + rows) time, 4 N^2 bytes in addition to the rows."""
        links, base, ranks = self.topology.links, self.base, self.topology.compute_count
        elements = self.transversal.images(np.arange(ranks))
        degree = int(np.searchsorted(links.dst, 1))
        positions = _positions_at_target(links.parallel_index()[:degree], elements[:, links.src[:degree]])
        link_images = np.arange(ranks)[:, None] * degree + positions
        # To save memory, columns are converted to their final, small types before they are copied for all ranks.
        shard = elements.astype(base.shard.dtype).take(base.shard, axis=1).ravel()
        route = link_images.astype(base.route.dtype).take(base.route, axis=1).ravel()
        step, lo, hi, reduce = (np.tile(column, ranks) for column in (base.step, base.lo, base.hi, base.reduce))
        return Schedule(
            self.topology, ALLGATHER, "stepped", self.steps, self.chunks_per_shard,
            self.bounds.pack((step, route, shard, lo, hi, reduce)), Routes.direct(len(links)),
            method, parameters, self.certificate,
        )  # fmt: skip

    def loads(self) -> NDArray[np.int64]:
        """Return int64[steps, in-links of rank 0]: chunks per link. Symmetries map these links to all other links."""
        degree = int(np.searchsorted(self.topology.links.dst, 1))
        loads = np.zeros((self.steps, degree), dtype=np.int64)
        np.add.at(loads, (self.base.step, self.base.route), self.base.hi.astype(np.int64) - self.base.lo)
        return loads

    def base_links(self) -> NDArray[np.int32]:
        """For each link, return the in-link of rank 0 that is mapped to it, as int32[links]. O(links * log degree)."""
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
    """An allgather, reduce_scatter or allreduce that consists of one or two parts in symmetric form.

    gather:  an allgather on `topology`, for allgather and allreduce
    scatter: an allgather on the transpose of `topology`, executed backwards in time (see
             `chorale.synth.schedule.schedule.reverse_allgather`), for reduce_scatter and allreduce; it runs first
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
        return sum(part.transfer_count for part in self.parts)

    @property
    def certificate(self) -> Mapping[str, Any]:
        claims = [part.certificate for part in self.parts]
        if self.scatter is not None:
            claims[0] = reversed_certificate(claims[0])
        return joined_certificate(*claims) if len(claims) > 1 else claims[0]

    def expand(self, max_rows: int = MAX_TRANSFERS) -> Schedule:
        """Return the schedule with all ranks' rows. O(N^2 + rows).

        Raises InvalidInput if the result would have more than `max_rows` rows.
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
    """Return (has a scatter part, has a gather part). Raises InvalidInput if the collective has no symmetric form."""
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
    """Return int64[symmetries, in-links of rank 0]: the position of each link's image among the links into its target.

    parallel: position of each in-link among its parallel links, which symmetries preserve
    sources: sources of the images, one row per symmetry

    In-links are sorted by source, then by position among parallel links.
    """
    order = np.argsort(sources.astype(np.int64) * len(parallel) + parallel, axis=1)
    positions = np.empty_like(order)
    np.put_along_axis(positions, order, np.broadcast_to(np.arange(len(parallel)), order.shape), axis=1)
    return positions
