"""The port of clusters that lend nodes with GPUs for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chorale.runners.places.place import Host


@dataclass(frozen=True, slots=True)
class LeasedHosts:
    """Nodes in the order of their ranks, each with as many GPUs for us."""

    hosts: Sequence[Host]
    gpus_per_node: int


class GpuCluster(Protocol):
    """Lends nodes one request at a time. A cluster is used by one thread."""

    def lease(self, ranks: int, gpus_per_node: int | None) -> LeasedHosts:
        """Return nodes for `ranks` processes with a GPU each; Unavailable if there are not enough."""
        ...

    def release(self) -> None:
        """End what runs on the nodes that are lent. Safe to call twice."""
        ...
