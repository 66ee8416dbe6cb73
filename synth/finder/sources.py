"""The bases that a search may use: all of them or the paper's, one-way or two-way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from chorale.synth.finder.base_families import further_families, paper_families
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.scored_bases import circulants, database_entries, de_bruijn, generalized_kautz
from chorale.synth.finder.scores import ScoreCache

BaseSet = Literal["all", "paper"]
BASE_SETS: tuple[BaseSet, ...] = ("all", "paper")


@dataclass(frozen=True, slots=True)
class BaseSources:
    """Yields base candidates of a size.

    bases:         "paper" for tables 8 and 9 of the paper only
    bidirectional: whether every link must have its reverse
    found:         further bases, such as those that a search of this run has found, by (nodes, degree)
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
