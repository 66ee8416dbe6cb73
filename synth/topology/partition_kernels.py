"""Ordered partitions of nodes into cells, refined until links tell no two nodes of a cell apart.

Which cells a refinement makes, and in which order, depends on the network alone and not on the numbers of its nodes:
the same choices in two copies of a network give the same cells. Source: McKay, "Practical graph isomorphism" (1981);
Hopcroft, "An n log n algorithm for minimizing states in a finite automaton" (1971): of the parts of a split cell the
largest need not split others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class MarkedLinks(NamedTuple):
    """The links of node v: to `heads[heads_offsets[v]:heads_offsets[v + 1]]`, and from nodes of `tails` likewise.

    marks: uint64 by the kind of each link and its direction
    """

    heads_offsets: NDArray[np.int64]
    heads: NDArray[np.int32]
    heads_marks: NDArray[np.uint64]
    tails_offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    tails_marks: NDArray[np.uint64]


class OrderedCells(NamedTuple):
    """A partition: cell after cell in `order`; a cell is called by the position at which it begins.

    order, position: int32 per position and per node, inverse to each other
    cell:            int32 per node
    size:            int32 per cell
    """

    order: NDArray[np.int32]
    position: NDArray[np.int32]
    cell: NDArray[np.int32]
    size: NDArray[np.int32]

    def set_apart(self, node: int) -> int:
        """Make `node` a cell before the rest of its cell, which has other nodes; return the new cell."""
        cell = int(self.cell[node])
        size = int(self.size[cell])
        place, other = self.position[node], self.order[cell]
        self.order[[cell, place]] = node, other
        self.position[[node, other]] = cell, place
        self.cell[self.order[cell + 1 : cell + size]] = cell + 1
        self.size[[cell, cell + 1]] = 1, size - 1
        return cell

    def smallest_shared(self) -> int:
        """Return the first of the smallest cells of several nodes, -1 where every node has its own. O(nodes)."""
        starts = np.flatnonzero(self.cell[self.order] == np.arange(len(self.order)))
        shared = starts[self.size[starts] > 1]
        return int(shared[np.argmin(self.size[shared])]) if len(shared) else -1
