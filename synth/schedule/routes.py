"""Routes: the path of links that a transfer takes, as one table shared by all transfers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.links import Links


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Paths of links in compressed rows: route r uses `link_ids[offsets[r]:offsets[r + 1]]`, in travel order.

    On direct-connect networks every link is a route of its own and route id equals link id. Longer routes
    lead through switches or through nodes that pass data on.
    """

    offsets: NDArray[np.int64]
    link_ids: NDArray[np.int32]

    @staticmethod
    def direct(link_count: int) -> Routes:
        """Return the table in which route r is just link r."""
        return Routes(np.arange(link_count + 1, dtype=np.int64), np.arange(link_count, dtype=np.int32))

    @staticmethod
    def of_paths(paths: Iterable[Iterable[int]]) -> Routes:
        """Return the table whose route r is the r-th of `paths` (link ids in travel order)."""
        rows = [list(path) for path in paths]
        lengths = [len(row) for row in rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Routes(offsets, np.array([link for row in rows for link in row], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def is_direct(self, link_count: int) -> bool:
        """Whether this is `Routes.direct(link_count)`: there are as many routes as links, and route r is link r."""
        as_many = len(self.link_ids) == len(self) == link_count
        return as_many and bool(np.array_equal(self.link_ids, np.arange(link_count)))

    def path(self, route: int) -> NDArray[np.int32]:
        """Return the link ids of `route` in travel order."""
        return self.link_ids[self.offsets[route] : self.offsets[route + 1]]

    def sources(self, links: Links) -> NDArray[np.int32]:
        """Return the node where each route starts."""
        return links.src[self.link_ids[self.offsets[:-1]]]

    def destinations(self, links: Links) -> NDArray[np.int32]:
        """Return the node where each route ends."""
        return links.dst[self.link_ids[self.offsets[1:] - 1]]
