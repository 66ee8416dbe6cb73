"""Bucket algorithm: rings along one dimension after the other.

On each line every position passes partial sums on to the next. Source: Sack and Gropp, "Collective algorithms for
multiported torus networks", 2015; Swing paper, sections 2.3.4 and 5.2.
"""

from __future__ import annotations

import numpy as np

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, require_collective
from chorale.synth.methods.grid.lines import (
    LineReduceScatter,
    LineStep,
    dimension_by_dimension,
    grid_shape,
    require_line_size,
    synchronised_dimensions,
)
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import grid_collectives
from chorale.synth.topology.topology import Topology


def ring_line(size: int) -> LineReduceScatter:
    """Return the reduce_scatter around a line of `size` >= 2 positions in size - 1 steps.

    In step t position a hands the sum of block a - 1 - t on to a + 1, modulo size. O(size^2).
    """
    require_line_size(size)
    position = np.arange(size)
    following = (position + 1) % size
    return LineReduceScatter(
        size, tuple(LineStep(position, following, (position - 1 - step) % size) for step in range(size - 1))
    )


def bucket(
    topology: Topology, collective: Collective, synchronised: bool = True, all_ports: bool = True
) -> CollectivePattern:
    """Return the bucket reduce_scatter, allgather or allreduce on the grid of `topology`.

    With `all_ports` one collective in each direction begins in each dimension, and moves to the next dimension when
    it is through. `synchronised`: none moves before those in the longest dimension are through, so that no link is
    shared; D (d_max - 1) steps for reduce_scatter, in which shorter dimensions send their blocks in pieces. Otherwise
    each moves at once, the sum of d - 1 steps, and where sizes differ it meets those that are still there: both
    then share links. Bandwidth-optimal on tori of equal sizes >= 3.
    """
    return _bucket(topology, collective, "bucket", synchronised, all_ports)


def traditional_torus(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return the baseline that the BFB papers call the traditional torus schedule: `bucket`, not synchronised.

    Rings on all dimensions in parallel, each part of the data going through them in turn: the sum of d - 1 steps,
    bandwidth-optimal only where sizes are equal. Source: Zhao et al., "Efficient Direct-Connect Topologies for
    Collective Communications", section 5.3.
    """
    return _bucket(topology, collective, "traditional-torus", synchronised=False, all_ports=True)


def _bucket(
    topology: Topology, collective: Collective, method: str, synchronised: bool, all_ports: bool
) -> CollectivePattern:
    require_collective(method, collective, (ALLGATHER.name, REDUCE_SCATTER.name, ALLREDUCE.name))
    lines = [ring_line(size) for size in grid_shape(topology)]
    order = synchronised_dimensions if synchronised else dimension_by_dimension
    parts = grid_collectives(lines, order, all_ports, collective, method)
    parameters = {"all_ports": all_ports, "synchronised": synchronised}
    return CollectivePattern(topology, collective, method, parameters, parts)
