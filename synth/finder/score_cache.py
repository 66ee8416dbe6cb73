"""Exact BFB scores of topologies by spec, computed once each, here or by an executor.

Generalized Kautz graphs, of which a search needs thousands, are scored from their arithmetic without being built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.bfb_score import MAX_DEGREE, BfbScore, bfb_score
from chorale.synth.kernels import native
from chorale.synth.topology.grammar import FamilyCall, parse_spec
from chorale.synth.topology.spec import parse_topology


def kautz_score(degree: int, nodes: int) -> BfbScore:
    """Return the score of genkautz:degree,nodes: links from x to -degree x - a modulo nodes for a = 1, …, degree.

    Up to `MAX_DEGREE` from the arithmetic of the graph, in time that grows about as its number of nodes.
    """
    if degree > MAX_DEGREE:
        return bfb_score(parse_topology(f"genkautz:{degree},{nodes}"))
    top, bottom = native.kautz_loads(degree, nodes, math.gcd(degree, nodes))
    loads = [Fraction(int(p), int(q)) for p, q in zip(top, bottom, strict=True)]
    return BfbScore(len(loads), Fraction(degree, nodes) * sum(loads))


_MOST_TASKS = 64


class ScoreCache:
    """Remembers every BFB score that was computed, by spec."""

    def __init__(self) -> None:
        self._scores: dict[str, BfbScore] = {}

    def __len__(self) -> int:
        return len(self._scores)

    def has(self, spec: str) -> bool:
        """Whether the score of `spec` is cached."""
        return spec in self._scores

    def of(self, spec: str) -> BfbScore:
        """Return the score of `spec`, computed here unless it is cached."""
        if spec not in self._scores:
            self._scores[spec] = bfb_score_of(spec)
        return self._scores[spec]

    def compute(self, specs: Iterable[str], executor: Executor, progress: Progress | None = None) -> None:
        """Compute the scores of all `specs` that are not cached yet on `executor`.

        A task is one topology, or, of many, every 64th.
        """
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._scores]
        batches = [missing[first::_MOST_TASKS] for first in range(min(len(missing), _MOST_TASKS))]
        for batch, scores in zip(batches, executor.map(_score_all, batches, None, progress), strict=True):
            self._scores |= zip(batch, scores, strict=True)


def bfb_score_of(spec: str) -> BfbScore:
    """Return the exact BFB score of the topology `spec`."""
    tree = parse_spec(spec)
    if isinstance(tree, FamilyCall) and tree.name == "genkautz":
        degree, nodes = map(int, tree.text.split(","))
        return kautz_score(degree, nodes)
    return bfb_score(parse_topology(spec))


def _score_all(_shared: None, specs: Sequence[str]) -> list[BfbScore]:
    return [bfb_score_of(spec) for spec in specs]
