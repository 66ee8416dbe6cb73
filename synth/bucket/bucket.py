"""Bucket algorithm: rings along one dimension after the other.

Source: Sack and Gropp, "Collective algorithms for multiported torus networks", 2015; Swing paper, sections 2.3.4
and 5.2.
"""

from __future__ import annotations

from chorale.synth.bucket.line import ring_line
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.grid.order import dimension_by_dimension, synchronised_dimensions
from chorale.synth.grid.pattern import CollectivePattern
from chorale.synth.grid.ports import reduce_scatters, subcollective_for
from chorale.synth.topology.grid import grid_shape
from chorale.synth.topology.topology import Topology


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
    if collective.is_rooted:
        known = "allgather, reduce_scatter or allreduce"
        raise InvalidInput(f"{method} makes {known}", collective.name.value, f"choose {known}")
    lines = [ring_line(size) for size in grid_shape(topology)]
    order = synchronised_dimensions if synchronised else dimension_by_dimension
    ports = [subcollective_for(port, collective, method) for port in reduce_scatters(lines, order, all_ports)]
    parameters = {"all_ports": all_ports, "synchronised": synchronised}
    return CollectivePattern(topology, collective, method, parameters, tuple(ports))
