"""Exact costs of topologies by spec, computed once each, here or by an executor."""

from __future__ import annotations

from collections.abc import Iterable

from synth.executor.port import Executor, Progress
from synth.finder.score import Score, bfb_score
from synth.topology.spec import parse_topology


class Scores:
    """Remembers the BFB score of every spec that it was asked for."""

    def __init__(self) -> None:
        self._known: dict[str, Score] = {}

    def __len__(self) -> int:
        return len(self._known)

    def has(self, spec: str) -> bool:
        """Whether the score of `spec` is known."""
        return spec in self._known

    def of(self, spec: str) -> Score:
        """Return the score of `spec`, computed here unless it is known."""
        if spec not in self._known:
            self._known[spec] = bfb_score(parse_topology(spec))
        return self._known[spec]

    def compute(self, specs: Iterable[str], executor: Executor, progress: Progress | None = None) -> None:
        """Compute the scores of all `specs` that are not known yet, one task each, on `executor`."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._known]
        self._known.update(zip(missing, executor.map(_score, missing, None, progress), strict=True))


def _score(_shared: None, spec: str) -> Score:
    return bfb_score(parse_topology(spec))
