"""The families of topologies that expansions start from, for one number of nodes and degree.

Costs are those that the families' docstrings state; what the finder returns is scored again on the built topology.
Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", tables 8 and 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from chorale.synth.finder.bounds import least_bandwidth_factor
from chorale.synth.finder.candidate import TopologyCandidate, Traits

Families = Callable[[int, int], Iterator[TopologyCandidate]]

DISTANCE_REGULAR_STEPS: Mapping[int, int] = {
    6: 2, 9: 2, 10: 3, 14: 3, 15: 3, 16: 4, 21: 3, 26: 3, 32: 4, 35: 3, 45: 4, 70: 7, 80: 4, 189: 6, 728: 6,
}  # fmt: skip
"""Steps of BFB on distreg:4,m by m (table 8)."""

_TWO_WAY = Traits(simple=True, self_loops=False, bidirectional=True, reverse_symmetric=True)
_TWO_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=True, reverse_symmetric=True)
_ONE_WAY = Traits(simple=True, self_loops=False, bidirectional=False, reverse_symmetric=True)
_ONE_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=False, reverse_symmetric=True)


def paper_families(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    """Yield the bandwidth-optimal families of the paper that have `nodes` nodes and `degree`."""
    for family in (_dense, _rings, _hamming, _circulant, _distance_regular):
        yield from family(nodes, degree)


def further_families(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    """Yield bandwidth-optimal families that the paper does not count among its bases."""
    side = math.isqrt(nodes // 2)
    if degree == 4 and side >= 2 and 2 * side * side == nodes:
        yield _optimal(f"twisted-torus:{side}x{2 * side},{side}", nodes, degree, side, _TWO_WAY)
    if (nodes, degree) == (8, 3):
        yield _optimal("twisted-hypercube:3", nodes, degree, 2, _TWO_WAY)


def _dense(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    if nodes == degree + 1:
        yield _optimal(f"complete:{nodes}", nodes, degree, 1, _TWO_WAY)
    if nodes == 2 * degree and degree >= 2:
        yield _optimal(f"bipartite:{degree}", nodes, degree, 2, _TWO_WAY)
    if nodes == degree + 2 and degree >= 2:
        yield _optimal(f"dicirculant:{degree}", nodes, degree, 2, _ONE_WAY)


def _rings(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    if nodes >= 3 and degree % 2 == 0:
        spec = f"ring:{nodes}" if degree == 2 else f"biring:{degree},{nodes}"
        yield _optimal(spec, nodes, degree, nodes // 2, _TWO_WAY if degree == 2 else _TWO_WAY_PARALLEL)
    if nodes >= 3:
        traits = _ONE_WAY if degree == 1 else _ONE_WAY_PARALLEL
        yield _optimal(f"uniring:{degree},{nodes}", nodes, degree, nodes - 1, traits)
    elif degree > 1:
        yield _optimal(f"uniring:{degree},2", nodes, degree, 1, _TWO_WAY_PARALLEL)


def _hamming(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    for dimensions in range(2, min(degree, nodes.bit_length() - 1) + 1):
        letters, rest = divmod(degree, dimensions)
        if rest == 0 and (letters + 1) ** dimensions == nodes:
            spec = f"hypercube:{dimensions}" if letters == 1 else f"hamming:{dimensions},{letters + 1}"
            yield _optimal(spec, nodes, degree, dimensions, _TWO_WAY)


def _circulant(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    """Yield the circulant of two offsets with the smallest diameter (theorem 22)."""
    if degree == 4 and nodes > 6:
        root = math.isqrt(2 * nodes - 1)
        offset = (root + (root * root != 2 * nodes - 1)) // 2  # ceil((sqrt(2 n - 1) - 1) / 2)
        yield _optimal(f"circulant:{nodes},{offset},{offset + 1}", nodes, degree, offset, _TWO_WAY)


def _distance_regular(nodes: int, degree: int) -> Iterator[TopologyCandidate]:
    if degree == 4 and nodes in DISTANCE_REGULAR_STEPS:
        yield _optimal(f"distreg:4,{nodes}", nodes, degree, DISTANCE_REGULAR_STEPS[nodes], _TWO_WAY)


def _optimal(spec: str, nodes: int, degree: int, steps: int, traits: Traits) -> TopologyCandidate:
    return TopologyCandidate(
        spec=spec,
        method="bfb",
        nodes=nodes,
        degree=degree,
        steps=steps,
        bandwidth_factor=least_bandwidth_factor(nodes),
        exact=True,
        traits=traits,
        least_steps=steps,
        least_factor=least_bandwidth_factor(nodes),
        origin=(spec,),
    )
