"""The network as the breadth-first-broadcast kernels want it: in-links in rows, integer capacities."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from synth.bfb.problems import Problems, hop_rows
from synth.errors import InvalidInput
from synth.topology.topology import Topology

MAX_PAIRS = 2**29
"""Distances take two bytes per pair of nodes: 1 GiB."""
MAX_CHUNKS = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """In-links of node u: `tails[offsets[u]:offsets[u + 1]]`, numbered as in the topology (sorted by target).

    capacities: int64 per link; bandwidth = capacity * unit, with the largest unit that keeps them integers.
    """

    topology_id: str
    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    unit: Fraction

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def words(self) -> int:
        """How many 64-bit words a set of in-links of one node takes."""
        return (int(np.diff(self.offsets).max()) + 63) // 64

    @property
    def is_homogeneous(self) -> bool:
        return bool(np.all(self.capacities == 1))


def network_of(topology: Topology) -> Network:
    """Return the kernels' view of `topology`, after checking that breadth-first broadcast applies to it."""
    if topology.switch_count:
        rule = "bfb needs a direct-connect topology"
        raise InvalidInput(
            rule, f"{topology.spec} with {topology.switch_count} switches", "use a topology without switches"
        )
    nodes = topology.compute_count
    if nodes * nodes > MAX_PAIRS:
        gib = f"{2 * nodes * nodes / 2**30:.1f} GiB"
        rule = "bfb keeps a table of hop counts of at most 1 GiB"
        raise InvalidInput(rule, f"{nodes} nodes, which need {gib}", f"use at most {int(MAX_PAIRS**0.5)} nodes")
    integer, scale = topology.links.integer_bandwidths()
    common = reduce(gcd, (int(value) for value in np.unique(integer)))
    capacities = integer // common
    _check_magnitude(nodes, capacities)
    offsets = topology.links.incoming_offsets(nodes)
    return Network(topology.id, offsets, topology.links.src.copy(), capacities, Fraction(common, scale))


def _check_magnitude(nodes: int, capacities: NDArray[np.int64]) -> None:
    largest = int(capacities.max()) * nodes * MAX_CHUNKS * int(capacities.max())
    if largest >= 2**62:
        rule = "bandwidths must have a common unit of which every link is a modest multiple (64-bit sums)"
        way_out = "round the bandwidths to fewer digits"
        raise InvalidInput(rule, f"a largest multiple of {int(capacities.max())} at {nodes} nodes", way_out)


_memory: dict[str, Problems] = {}


def problems_of(network: Network) -> Problems:
    """Return the problems of `network`; the last ones are kept, since many tasks share the table of hop counts."""
    if network.topology_id not in _memory:
        _memory.clear()
        # Arrays that come from another process may be read-only, for which the kernels have no code.
        offsets, tails = network.offsets.copy(), network.tails.copy()
        rows = hop_rows(offsets, tails)
        _memory[network.topology_id] = Problems(offsets, tails, network.capacities.copy(), rows, network.words)
    return _memory[network.topology_id]
