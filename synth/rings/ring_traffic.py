"""What a ring sends, without its schedule: N - 1 equal steps, whatever the number of ranks."""

from __future__ import annotations

from math import lcm

import numpy as np

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.rings.ring import ring_paths
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose_with_links


def ring_traffic(topology: Topology, collective: Collective, bidirectional: bool) -> Traffic:
    """Return the traffic of method ring (`both_ways`: biring) with its default chunks, equal steps as one object.

    allgather goes along the lanes of `chorale.synth.rings.ring`, reduce_scatter backwards along those of the transpose,
    allreduce does both. O(N) besides the cycle. Raises InvalidInput for other collectives.
    """
    parts = _parts(topology, collective, bidirectional)
    paths = [path for part in parts for path in part]
    is_direct = all(len(path) == 1 for path in paths)
    routes = Routes.direct(len(topology.links)) if is_direct else Routes.of_paths(paths)
    ranks = topology.compute_count
    lanes = [len(part) // ranks for part in parts]
    chunks = lcm(*lanes)
    steps: list[TrafficStep] = []
    first = 0
    for part, lane_count in zip(parts, lanes, strict=True):
        route = np.array([path[0] for path in part]) if is_direct else first + np.arange(len(part))
        steps += [merged_step(route, np.full(len(part), chunks // lane_count))] * (ranks - 1)
        first += len(part)
    return Traffic(topology, collective, "stepped", tuple(steps), ranks * chunks, routes)


def _parts(topology: Topology, collective: Collective, both_ways: bool) -> list[list[list[int]]]:
    """Return the paths of all hops of the reduce_scatter, of the allgather, or of one after the other."""
    parts = []
    if collective.name in (CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        transposed, original_link = transpose_with_links(topology)
        parts.append([original_link[path[::-1]].tolist() for path in ring_paths(transposed, both_ways)])
    if collective.name in (CollectiveName.ALLGATHER, CollectiveName.ALLREDUCE):
        parts.append(ring_paths(topology, both_ways))
    if not parts:
        known = "allgather, reduce_scatter or allreduce"
        raise InvalidInput(f"a ring makes {known}", collective.name.value, f"choose {known}")
    return parts
