"""Routes between pairs of ranks: minimal paths, split over two where the network offers two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.routing.minimal import minimal_paths
from chorale.synth.routing.torus import TorusLinks
from chorale.synth.schedule.routes import Routes
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class PairRoutes:
    """A route, or two of equal length, for each pair of ranks it was made for.

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
        """Return (first, second) of each pair; all must be among those this was made for. O(pairs log pairs)."""
        index = np.searchsorted(self.keys, src * self.ranks + dst)
        return self.first[index], self.second[index]


def pair_routes(topology: Topology, shape: tuple[int, ...], keys: NDArray[np.int64]) -> PairRoutes:
    """Return minimal routes for the pairs with `keys` src * N + dst (sorted, each once, src != dst).

    Where minimal adaptive routing is assumed and exactly two ways are equal, both carry half. On a torus of `shape`
    a path goes dimension by dimension, and is split where the distance in one is exactly half of its size. On
    other networks see `chorale.synth.routing.minimal`. O(hops) on a torus.
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
    kept = Routes(np.concatenate([[0], np.cumsum(hops[two])]), second.link_ids[np.repeat(two, hops)])
    routes = Routes(
        np.concatenate([first.offsets, kept.offsets[1:] + first.offsets[-1]]).astype(np.int64),
        np.concatenate([first.link_ids, kept.link_ids]),
    )
    if len(routes.link_ids) == len(routes):
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
    one, other = (pair * links + path.link_ids[hops] for path in (first, second))
    shared = np.isin(other, one, assume_unique=True)  # a minimal path has no link twice
    result[pair[shared]] = False
    return result
