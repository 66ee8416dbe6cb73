"""Frontiers of the finder for many sizes as JSON, which parts of answers are, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any, TypeAlias

from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import TopologyCandidate, Traits
from chorale.synth.finder.find import find_all
from chorale.synth.finder.query import FinderQuery

Frontier: TypeAlias = tuple[TopologyCandidate, ...]
Frontiers: TypeAlias = Mapping[int, Frontier]
"""Pareto-efficient candidates by rising steps, by number of nodes."""


def find_frontiers(queries: Iterable[FinderQuery]) -> list[Any]:
    """Return the frontier of every query as JSON has it; the queries share their work."""
    found = find_all(list(queries), SerialExecutor())
    return [[query.nodes, [_json(candidate) for candidate in frontier]] for query, frontier in found.items()]


def frontiers_of(part: Sequence[Any]) -> Frontiers:
    """Return what `find_frontiers` made JSON of."""
    return {nodes: tuple(map(_candidate, frontier)) for nodes, frontier in part}


def _json(candidate: TopologyCandidate) -> dict[str, Any]:
    exact = {"bandwidth_factor": str(candidate.bandwidth_factor), "least_factor": str(candidate.least_factor)}
    return {**asdict(candidate), **exact}


def _candidate(found: Mapping[str, Any]) -> TopologyCandidate:
    exact = {key: Fraction(found[key]) for key in ("bandwidth_factor", "least_factor")}
    return TopologyCandidate(
        **{**found, **exact, "traits": Traits(**found["traits"]), "origin": tuple(found["origin"])}
    )
