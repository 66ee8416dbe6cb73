"""Exact maximum flows on integer capacities, and the cut that limits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from synth.errors import InvalidInput

LARGEST_CAPACITY = 2**31 - 1
"""The flow routine counts in 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowNetwork:
    """A digraph of `nodes` nodes with int64 capacities per arc; parallel arcs add up."""

    nodes: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    capacity: NDArray[np.int64]

    def matrix(self) -> csr_array:
        """Return the capacities as a sparse matrix for `max_flow`."""
        summed = coo_array((self.capacity, (self.src, self.dst)), shape=(self.nodes, self.nodes)).tocsr()
        if summed.nnz and int(summed.data.max()) > LARGEST_CAPACITY:
            rule = (
                "exact bounds need bandwidths of which every link is a modest multiple of a common unit (32-bit flows)"
            )
            raise InvalidInput(rule, f"a capacity of {int(summed.data.max())}", "round the bandwidths to fewer digits")
        return summed.astype(np.int32)


def max_flow(matrix: csr_array, source: int, sink: int) -> tuple[int, csr_array]:
    """Return (value, flow matrix) of a maximum flow."""
    result = maximum_flow(matrix, source, sink)
    return int(result.flow_value), result.flow


def sink_side(matrix: csr_array, flow: csr_array, sink: int) -> NDArray[np.int32]:
    """Return the nodes that can still reach `sink` after `flow`: the smallest sink side of a minimum cut."""
    residual = csr_array(matrix - flow)
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached: NDArray[np.int32] = breadth_first_order(residual.T.tocsr(), sink, return_predecessors=False)
    return np.sort(reached)
