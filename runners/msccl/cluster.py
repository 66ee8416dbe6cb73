"""The port of clusters that lend nodes with GPUs for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runners.places.place import Place


@dataclass(frozen=True, slots=True)
class LentNodes:
    """Nodes in the order of their ranks, each with as many GPUs for us."""

    places: Sequence[Place]
    gpus_per_node: int


class Cluster(Protocol):
    """Lends nodes one request at a time. A cluster is used by one thread."""

    def lend(self, ranks: int, gpus_per_node: int | None) -> LentNodes:
        """Return nodes for `ranks` processes with a GPU each; Unavailable if there are not enough."""
        ...

    def take_back(self) -> None:
        """End what runs on the nodes that are lent. Safe to call twice."""
        ...
