"""Lists the base topologies with a given node count and degree, from which expansions start.

A base's cost comes from a formula, from the built topology, or from the database; the finder computes the costs of its
final results again. A search may be limited to the paper's bases or to bidirectional bases.
Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", tables 8 and 9.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from chorale.synth.finder.bfb_score import ScoreCache
from chorale.synth.finder.candidate import TopologyCandidate, Traits, base_candidate, least_bandwidth_factor
from chorale.synth.topology.bases.database import load_bases, names_of
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.topology import Topology

DISTANCE_REGULAR_STEPS: Mapping[int, int] = {
    6: 2, 9: 2, 10: 3, 14: 3, 15: 3, 16: 4, 21: 3, 26: 3, 32: 4, 35: 3, 45: 4, 70: 7, 80: 4, 189: 6, 728: 6,
}  # fmt: skip
"""Maps m to the number of steps of the BFB allgather on distreg:4,m (table 8 of the paper)."""

_TWO_WAY = Traits(simple=True, self_loops=False, bidirectional=True, reverse_symmetric=True)
_TWO_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=True, reverse_symmetric=True)
_ONE_WAY = Traits(simple=True, self_loops=False, bidirectional=False, reverse_symmetric=True)
_ONE_WAY_PARALLEL = Traits(simple=False, self_loops=False, bidirectional=False, reverse_symmetric=True)


def optimal_families(nodes: int, degree: int, paper_only: bool = False) -> Iterator[TopologyCandidate]:
    """Yield the members of families on which BFB is bandwidth-optimal. `paper_only`: only families from the paper."""
    for spec, steps, traits in _optimal_families(nodes, degree, paper_only):
        yield base_candidate(spec, nodes, degree, (steps, least_bandwidth_factor(nodes)), traits)


def _optimal_families(nodes: int, degree: int, paper_only: bool) -> Iterator[tuple[str, int, Traits]]:
    """Yield (spec, number of BFB steps, traits) of the members of families on which BFB is bandwidth-optimal."""
    if nodes == degree + 1:
        yield f"complete:{nodes}", 1, _TWO_WAY
    if nodes == 2 * degree and degree >= 2:
        yield f"bipartite:{degree}", 2, _TWO_WAY
    if nodes == degree + 2 and degree >= 2:
        yield f"dicirculant:{degree}", 2, _ONE_WAY
    if nodes >= 3 and degree == 2:
        yield f"ring:{nodes}", nodes // 2, _TWO_WAY
    elif nodes >= 3 and degree % 2 == 0:
        yield f"biring:{degree},{nodes}", nodes // 2, _TWO_WAY_PARALLEL
    if nodes >= 3:
        yield f"uniring:{degree},{nodes}", nodes - 1, _ONE_WAY if degree == 1 else _ONE_WAY_PARALLEL
    elif degree > 1:
        yield f"uniring:{degree},2", 1, _TWO_WAY_PARALLEL
    for dimensions in range(2, min(degree, nodes.bit_length() - 1) + 1):
        letters, rest = divmod(degree, dimensions)
        if rest == 0 and (letters + 1) ** dimensions == nodes:
            spec = f"hypercube:{dimensions}" if letters == 1 else f"hamming:{dimensions},{letters + 1}"
            yield spec, dimensions, _TWO_WAY
    if degree == 4 and nodes > 6:  # the circulant with two offsets and the smallest diameter (theorem 22)
        root = math.isqrt(2 * nodes - 1)
        offset = (root + (root * root != 2 * nodes - 1)) // 2  # ceil((sqrt(2 n - 1) - 1) / 2)
        yield f"circulant:{nodes},{offset},{offset + 1}", offset, _TWO_WAY
    if degree == 4 and nodes in DISTANCE_REGULAR_STEPS:
        yield f"distreg:4,{nodes}", DISTANCE_REGULAR_STEPS[nodes], _TWO_WAY
    if paper_only:
        return
    side = math.isqrt(nodes // 2)
    if degree == 4 and side >= 2 and 2 * side * side == nodes:
        yield f"twisted-torus:{side}x{2 * side},{side}", side, _TWO_WAY
    if (nodes, degree) == (8, 3):
        yield "twisted-hypercube:3", 2, _TWO_WAY


def scored_families(nodes: int, degree: int, scores: ScoreCache, bidirectional: bool) -> Iterator[TopologyCandidate]:
    """Yield the members of families for which the cost of BFB has to be computed.

    Circulants exist whenever nodes * degree is even, so a bidirectional network always exists. The other families have
    one-way links: generalized Kautz graphs exist for nodes > degree >= 2, de Bruijn graphs for powers of the degree.
    """
    chosen = [(spec, _TWO_WAY) for spec in _circulants(nodes, degree)]
    if not bidirectional and degree >= 2 and nodes > degree + 1:
        loopless = nodes % (degree + 1) == 0
        chosen.append((f"genkautz:{degree},{nodes}", Traits(loopless, not loopless, False, False)))
    length = round(math.log(nodes, degree)) if degree >= 2 else 0
    if not bidirectional and length >= 2 and degree**length == nodes:
        chosen.append((f"debruijn:{degree},{length}", Traits(False, True, False, True)))
    for spec, traits in chosen:
        yield base_candidate(spec, nodes, degree, scores.of(spec), traits)


def _circulants(nodes: int, degree: int) -> Iterator[str]:
    """Yield specs of circulants of degree 3 or above 4, with consecutive or growing offsets, plus nodes / 2 if odd."""
    pairs = degree // 2
    if degree < 3 or degree == 4 or nodes <= degree + 1 or (degree % 2 and nodes % 2):
        return
    middle = [nodes // 2] if degree % 2 else []
    largest = (nodes - 1) // 2
    stride = max(2, round(nodes ** (1 / max(pairs, 2))))
    first = max(1, min(largest - pairs + 1, stride // 2))
    powers = [min(stride**power, largest - pairs + 1 + power) for power in range(pairs)]
    for offsets in (list(range(1, 1 + pairs)), list(range(first, first + pairs)), powers):
        chosen = [*offsets, *middle]
        if len(set(offsets)) == pairs and min(offsets) >= 1 and math.gcd(nodes, *chosen) == 1:
            yield f"circulant:{nodes},{','.join(map(str, chosen))}"


PAPER_BASES = ("diamond", "dbjmod-2-3", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2")
"""Names of the entries of the base database that the paper also uses."""

_REVERSE_SYMMETRIC = ("d3", "dbjmod-2-3")


def database_entries(nodes: int, degree: int, scores: ScoreCache, paper_only: bool) -> Iterator[TopologyCandidate]:
    """Yield the database's entries of this size. Entries with a stored schedule are also yielded with BFB."""
    for name in names_of(nodes, degree):
        if paper_only and name not in PAPER_BASES:
            continue
        entry = load_bases()[name]
        spec, traits = _spec_and_traits(name)
        claimed = entry.claim.steps, entry.claim.bandwidth_factor
        if entry.has_stored_schedule:
            yield base_candidate(spec, nodes, degree, claimed, traits, "expand")
            yield base_candidate(spec, nodes, degree, scores.of(spec), traits)
        else:
            yield base_candidate(spec, nodes, degree, claimed, traits)


@cache
def _spec_and_traits(name: str) -> tuple[str, Traits]:
    if name == "diamond":
        spec = name
    elif name.startswith("dbjmod-"):
        spec = "dbjmod:" + name.removeprefix("dbjmod-").replace("-", ",")
    else:
        spec = f"base:{name}"
    return spec, traits_of(base_topology(load_bases()[name], spec), name in _REVERSE_SYMMETRIC)


def traits_of(topology: Topology, reverse_symmetric: bool = False) -> Traits:
    """Return the traits of a built topology. Bidirectional topologies are reverse-symmetric. O(links * log(links))."""
    links = topology.links
    pairs = np.column_stack([links.src, links.dst])
    forward = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    backward = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))][:, ::-1]
    self_loops = bool(np.any(links.src == links.dst))
    bidirectional = bool(np.array_equal(forward, backward))
    simple = not self_loops and not np.any(links.parallel_index())
    return Traits(simple, self_loops, bidirectional, reverse_symmetric or bidirectional)


BaseSet = Literal["all", "paper"]
BASE_SETS: tuple[BaseSet, ...] = ("all", "paper")


@dataclass(frozen=True, slots=True)
class BaseSources:
    """The base topologies that a search may use.

    bases:         "paper" for only the bases in the paper's tables 8 and 9
    bidirectional: whether every link must have a reverse link
    extra_bases:   additional bases by (nodes, degree), for example from a search in this run
    """

    scores: ScoreCache
    bases: BaseSet = "all"
    bidirectional: bool = False
    extra_bases: Mapping[tuple[int, int], tuple[TopologyCandidate, ...]] = field(default_factory=dict)

    def all(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield every allowed base with this node count and degree."""
        yield from self.optimal(nodes, degree)
        yield from scored_families(nodes, degree, self.scores, self.bidirectional)

    def optimal(self, nodes: int, degree: int) -> Iterator[TopologyCandidate]:
        """Yield the bases that may be bandwidth-optimal and whose cost is already known."""
        paper_only = self.bases == "paper"
        bases = [
            *optimal_families(nodes, degree, paper_only),
            *database_entries(nodes, degree, self.scores, paper_only),
            *self.extra_bases.get((nodes, degree), ()),
        ]
        yield from (base for base in bases if base.traits.bidirectional or not self.bidirectional)
