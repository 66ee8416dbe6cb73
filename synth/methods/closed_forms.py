"""Algorithms with a closed form, by name: each makes a schedule, or the traffic of networks too large for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.methods.bucket import bucket, traditional_torus
from chorale.synth.methods.double_binary_tree import double_binary_tree
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.recursive_doubling import rabenseifner, recursive_doubling
from chorale.synth.methods.rings.patterns import bfb_ring, box_ring, count_boxes, hamiltonian_ring
from chorale.synth.methods.swing import swing, swing_latency
from chorale.synth.topology.topology import Topology

_SCATTERED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE)
_ROOTED = (CollectiveName.BROADCAST, CollectiveName.REDUCE)
_WHOLE = (CollectiveName.ALLREDUCE, *_ROOTED)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm with a closed form; `pattern` raises InvalidInput where the topology does not suit."""

    name: str
    summary: str
    collectives: tuple[CollectiveName, ...]
    pattern: Callable[[Topology, Collective], CollectivePattern]


_ALL = (
    Algorithm("swing", "Swing, bandwidth-optimal, on grids of any sizes", (*_SCATTERED, *_ROOTED), swing),
    Algorithm("swing-latency", "Swing with whole vectors, log2 N steps", _WHOLE, swing_latency),
    Algorithm("hamiltonian-ring", "rings around edge-disjoint cycles, all ports", _SCATTERED, hamiltonian_ring),
    Algorithm("bfb-ring", "the same cycles, both ways to meet half-way", _SCATTERED, bfb_ring),
    Algorithm("bucket", "rings along one dimension after the other, all ports in step", _SCATTERED, bucket),
    Algorithm("traditional-torus", "bucket in which no port waits for others", _SCATTERED, traditional_torus),
    Algorithm("recursive-doubling", "exchange of whole vectors, one port", _WHOLE, recursive_doubling),
    Algorithm(
        "mirrored-recursive-doubling", "the same, mirrored onto all ports", _WHOLE,
        partial(recursive_doubling, all_ports=True),
    ),
    Algorithm("rabenseifner", "recursive halving and doubling, one port", (*_SCATTERED, *_ROOTED), rabenseifner),
    Algorithm(
        "mirrored-rabenseifner", "the same, mirrored onto all ports", (*_SCATTERED, *_ROOTED),
        partial(rabenseifner, all_ports=True),
    ),
    Algorithm("double-binary-tree", "two trees, half of the data each, pipelined", _WHOLE, double_binary_tree),
)  # fmt: skip

ALGORITHMS: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in _ALL}
"""All algorithms with a closed form by name."""


def pattern_of(method: str, topology: Topology, collective: Collective) -> CollectivePattern | None:
    """Return the pattern of `method` if it has a closed form on `topology`, else None.

    That is so for `ALGORITHMS`, and for ring on networks of boxes (`chorale.synth.methods.rings.patterns`). Raises
    InvalidInput where the algorithm cannot make the collective or does not suit the topology.
    """
    if method == "ring" and topology.switch_count and count_boxes(topology) > 1:
        return box_ring(topology, collective)
    return ALGORITHMS[method].pattern(topology, collective) if method in ALGORITHMS else None
