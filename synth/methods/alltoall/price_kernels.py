"""Flows that follow link prices: every node takes what it needs over the links by which it is cheapest to reach.

A node shares its need among its links by exp(-extra / temperature), extra being by how much a path over the link costs
more than the cheapest. So flows change smoothly with prices, and nothing needs to be stored but the prices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix

Floats = NDArray[np.float64]
Nodes = NDArray[np.int32]

BUCKETS = 4096
"""Buckets of a search, used in turns; a power of two."""
_NONE = -1
_COLDEST = 30.0
"""Paths that cost this many temperatures more than the cheapest carry nothing."""


class PricedNetwork(NamedTuple):
    """Links by their ends: `incoming` and `src` by head; `outgoing`, `outgoing_links` and `heads` by tail.

    demand: int64[1 or sources, nodes]
    """

    incoming: NDArray[np.int64]
    src: Nodes
    outgoing: NDArray[np.int64]
    outgoing_links: Nodes
    heads: Nodes
    demand: Matrix[np.int64]


class PriceSearch(NamedTuple):
    """Work space of a search: distances, nodes that wait in buckets (doubly linked lists), nodes by distance."""

    distance: Floats
    first: Nodes
    next: Nodes
    previous: Nodes
    bucket: Nodes
    order: Nodes
    bins: Nodes
