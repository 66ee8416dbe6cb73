"""Trees of symmetric networks: those of one root of each kind, and translations that take them to every root.

At 16,384 GPUs the rows of all roots are hundreds of millions; those of the first box are some hundred thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.identity import content_id
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule, Transfers
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.translations import TranslatedLinks, Translations


@dataclass(frozen=True, slots=True, eq=False)
class SymmetricTrees:
    """A pipelined allgather in which the trees of every root are the images of those of the first root of its orbit.

    generators: which symmetries of `topology` generate the translations
    base:       the rows of the shards of `translations.first_ranks`, over `routes`
    trees_per_root: k; weights of the trees of a root add up to it
    id:         content id over topology, generators, steps, chunks, routes and base rows

    Nothing here is checked but that `generators` generate translations: `chorale.synth.verify.symmetric_trees` does
    the rest. Raises InvalidInput where they do not.
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
        object.__setattr__(self, "id", _trees_id(self))

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
        """Return the base rows as they are, as if they were the rows of all roots."""
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, self.base, self.routes,
            "", {}, {}, self.trees_per_root,
        )  # fmt: skip

    def expand(self, method: str, parameters: Mapping[str, Parameter]) -> Schedule:
        """Return the schedule with the rows of all roots, one translation after the other. O(rows * log links)."""
        base, moves = self.base, self.translated_links()
        routes, route = _direct_images(self, moves) if self._is_direct else _route_images(self, moves)
        elements = np.arange(len(self.translations))
        shard = self.translations.images(base.shard.astype(np.int64)[None, :], elements[:, None])
        bounds = ColumnBounds(self.steps, len(routes), self.topology.compute_count, self.chunks_per_shard)
        step, lo, hi, reduce = (np.tile(column, len(elements)) for column in (base.step, base.lo, base.hi, base.reduce))
        transfers = bounds.pack((step, route.ravel(), shard.ravel(), lo, hi, reduce))
        return Schedule(
            self.topology, ALLGATHER, "pipelined", self.steps, self.chunks_per_shard, transfers, routes,
            method, parameters, self.certificate, self.trees_per_root,
        )  # fmt: skip

    @property
    def _is_direct(self) -> bool:
        return self.routes.is_direct(len(self.topology.links))


def _direct_images(trees: SymmetricTrees, moves: TranslatedLinks) -> tuple[Routes, NDArray[np.int32]]:
    """Return (routes, int32[elements, base rows]: the route of each image of each row), where routes are links."""
    elements = np.arange(len(trees.translations))[:, None]
    return trees.routes, moves.images(trees.base.route.astype(np.int64)[None, :], elements)


def _route_images(trees: SymmetricTrees, moves: TranslatedLinks) -> tuple[Routes, NDArray[np.int64]]:
    """Return (all images of the base routes, each once; int64[elements, base rows]: the route of every row's image).

    Routes that are images of one another differ in where they start only; so one of each class, moved to the first
    rank of an orbit, and the element that takes it to where it starts name a route.
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


def _trees_id(trees: SymmetricTrees) -> str:
    facts = {
        "format": "chorale-symmetric-trees/1",
        "topology": trees.topology.id,
        "steps": trees.steps,
        "chunks_per_shard": trees.chunks_per_shard,
    }
    moves = [trees.topology.automorphisms[index] for index in trees.generators]
    return content_id(facts, [trees.routes.offsets, trees.routes.link_ids, *trees.base.columns, *moves])
