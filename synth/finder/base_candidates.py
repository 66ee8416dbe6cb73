"""The base topologies that expansions start from, for one number of nodes and degree.

The cost of a family is given by a formula in its docstring, computed from the built topology, or claimed by the
database; what the finder returns is scored again. A search uses all bases or those of the paper, one-way or two-way.
Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", tables 8 and 9.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from chorale.synth.finder.bfb_score import BfbScore, ScoreCache
from chorale.synth.finder.candidate import ScheduleMethod, TopologyCandidate, Traits, least_bandwidth_factor
from chorale.synth.topology.bases.database import BaseEntry, load_bases, names_of
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.topology import Topology

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


PAPER_BASES = ("diamond", "dbjmod-2-3", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2")
"""Entries of the database that the paper has."""

_REVERSE_SYMMETRIC = ("d3", "dbjmod-2-3")


def generalized_kautz(nodes: int, degree: int, scores: ScoreCache) -> Iterator[TopologyCandidate]:
    """Yield the generalized Kautz graph, which exists for every nodes > degree >= 2."""
    if degree >= 2 and nodes > degree + 1:
        spec = f"genkautz:{degree},{nodes}"
        whole = nodes % (degree + 1) == 0
        traits = Traits(simple=whole, self_loops=not whole, bidirectional=False, reverse_symmetric=False)
        yield _scored(spec, nodes, degree, scores.of(spec), traits)


def de_bruijn(nodes: int, degree: int, scores: ScoreCache) -> Iterator[TopologyCandidate]:
    """Yield the de Bruijn graph if `nodes` is a power of the degree."""
    length = round(math.log(nodes, degree)) if degree >= 2 else 0
    if length >= 2 and degree**length == nodes:
        spec = f"debruijn:{degree},{length}"
        traits = Traits(simple=False, self_loops=True, bidirectional=False, reverse_symmetric=True)
        yield _scored(spec, nodes, degree, scores.of(spec), traits)


def circulants(nodes: int, degree: int, scores: ScoreCache) -> Iterator[TopologyCandidate]:
    """Yield circulants of more than two offsets, or two and half a turn: offsets in a row, or in growing strides.

    They exist for every even nodes * degree, so that a bidirectional network always does. Not all are
    bandwidth-optimal, hence the score.
    """
    pairs = degree // 2
    if degree < 3 or degree == 4 or nodes <= degree + 1 or (degree % 2 and nodes % 2):
        return
    middle = [nodes // 2] if degree % 2 else []
    largest = (nodes - 1) // 2
    stride = max(2, round(nodes ** (1 / max(pairs, 2))))
    first = max(1, min(largest - pairs + 1, stride // 2))
    powers = [min(stride**power, largest - pairs + 1 + power) for power in range(pairs)]
    in_a_row = [list(range(start, start + pairs)) for start in (1, first)]
    for offsets in (*in_a_row, powers):
        chosen = [*offsets, *middle]
        if len(set(offsets)) == pairs and min(offsets) >= 1 and math.gcd(nodes, *chosen) == 1:
            spec = f"circulant:{nodes},{','.join(map(str, chosen))}"
            traits = Traits(simple=True, self_loops=False, bidirectional=True, reverse_symmetric=True)
            yield _scored(spec, nodes, degree, scores.of(spec), traits)


def database_entries(nodes: int, degree: int, scores: ScoreCache, paper_only: bool) -> Iterator[TopologyCandidate]:
    """Yield the entries of the base database, with their own schedule where they have one and with BFB."""
    for name in names_of(nodes, degree):
        if paper_only and name not in PAPER_BASES:
            continue
        entry = load_bases()[name]
        spec = _spec_of(entry)
        traits = _traits_of_entry(entry.name)
        claimed = BfbScore(entry.claim.steps, entry.claim.bandwidth_factor)
        if entry.has_stored_schedule:
            yield _scored(spec, nodes, degree, claimed, traits, "expand")
            yield _scored(spec, nodes, degree, scores.of(spec), traits)
        else:
            yield _scored(spec, nodes, degree, claimed, traits)


@cache
def _traits_of_entry(name: str) -> Traits:
    entry = load_bases()[name]
    return traits_of(base_topology(entry, _spec_of(entry)), name in _REVERSE_SYMMETRIC)


def traits_of(topology: Topology, reverse_symmetric: bool = False) -> Traits:
    """Return the traits of a built topology; a bidirectional one is its own transpose. O(L log L)."""
    links = topology.links
    pairs = np.column_stack([links.src, links.dst])
    forward = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    backward = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))][:, ::-1]
    self_loops = bool(np.any(links.src == links.dst))
    bidirectional = bool(np.array_equal(forward, backward))
    return Traits(
        simple=not self_loops and not np.any(links.parallel_index()),
        self_loops=self_loops,
        bidirectional=bidirectional,
        reverse_symmetric=reverse_symmetric or bidirectional,
    )


def _spec_of(entry: BaseEntry) -> str:
    if entry.name == "diamond":
        return "diamond"
    if entry.name.startswith("dbjmod-"):
        return "dbjmod:" + entry.name.removeprefix("dbjmod-").replace("-", ",")
    return f"base:{entry.name}"


def _scored(
    spec: str, nodes: int, degree: int, score: BfbScore, traits: Traits, method: ScheduleMethod = "bfb"
) -> TopologyCandidate:
    return TopologyCandidate(
        spec=spec,
        method=method,
        nodes=nodes,
        degree=degree,
        steps=score.steps,
        bandwidth_factor=score.bandwidth_factor,
        exact=True,
        traits=traits,
        least_steps=score.steps,
        least_factor=score.bandwidth_factor,
        origin=(spec,),
    )


BaseSet = Literal["all", "paper"]
BASE_SETS: tuple[BaseSet, ...] = ("all", "paper")


@dataclass(frozen=True, slots=True)
class BaseSources:
    """Yields base candidates of a size.

    bases:         "paper" for tables 8 and 9 of the paper only
    bidirectional: whether every link must have its reverse
    extra_bases:   further bases, such as those from a search of this run, by (nodes, degree)
    """

    scores: ScoreCache
    bases: BaseSet = "all"
    bidirectional: bool = False
    extra_bases: Mapping[tuple[int, int], tuple[TopologyCandidate, ...]] = field(default_factory=dict)

    def all(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield every base of `nodes` and `degree`."""
        yield from self.optimal(nodes, degree)
        scored = [circulants(nodes, degree, self.scores)]
        if not self.bidirectional:
            scored += [
                generalized_kautz(nodes, degree, self.scores),
                de_bruijn(nodes, degree, self.scores),
            ]
        for candidates in scored:
            yield from candidates

    def optimal(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield the bases that may be bandwidth-optimal and cost nothing to score."""
        for candidate in self._unfiltered(nodes, degree):
            if candidate.traits.bidirectional or not self.bidirectional:
                yield candidate

    def _unfiltered(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        yield from paper_families(nodes, degree)
        if self.bases == "all":
            yield from further_families(nodes, degree)
        yield from database_entries(nodes, degree, self.scores, paper_only=self.bases == "paper")
        yield from self.extra_bases.get((nodes, degree), ())
