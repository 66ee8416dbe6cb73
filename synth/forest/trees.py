"""Packed trees as arrays: thousands of trees over thousands of nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Spanning out-trees of a network without switches, each with a weight.

    root:       int32 per tree
    weight:     int64 per tree: how many units of capacity it takes on every arc it uses
    parent_arc: int32[trees, nodes]: the arc over which the tree reaches each node, -1 at its root
    """

    root: NDArray[np.int32]
    weight: NDArray[np.int64]
    parent_arc: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.root)
