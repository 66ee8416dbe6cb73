"""Bases whose cost is computed or claimed by the database, not given by a formula."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from chorale.synth.bases.database import load_bases
from chorale.synth.bases.entry import BaseEntry
from chorale.synth.finder.candidate import ScheduleMethod, TopologyCandidate, Traits
from chorale.synth.finder.score import BfbScore
from chorale.synth.finder.scores import ScoreCache
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.topology import Topology

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
    for entry in _by_size().get((nodes, degree), ()):
        if paper_only and entry.name not in PAPER_BASES:
            continue
        spec = _spec_of(entry)
        traits = traits_of(base_topology(entry, spec), entry.name in _REVERSE_SYMMETRIC)
        claimed = BfbScore(entry.claim.steps, entry.claim.bandwidth_factor)
        if entry.has_stored_schedule:
            yield _scored(spec, nodes, degree, claimed, traits, "expand")
            yield _scored(spec, nodes, degree, scores.of(spec), traits)
        else:
            yield _scored(spec, nodes, degree, claimed, traits)


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


@cache
def _by_size() -> dict[tuple[int, int], list[BaseEntry]]:
    sizes: dict[tuple[int, int], list[BaseEntry]] = {}
    for entry in load_bases().values():
        sizes.setdefault((entry.nodes, entry.degree), []).append(entry)
    return sizes


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
