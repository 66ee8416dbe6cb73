"""Which parameters an objective asks for, given the values of others: learned from trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Numbers = Mapping[str, float]
"""Values of the parameters that a trial asked for, as numbers."""

MOST_EDGES = 32
"""Places at which a range may be cut; of more, evenly spread ones are tried."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is asked for, whatever the values are."""

    names: frozenset[str]

    def at(self, _: Numbers) -> frozenset[str]:
        return self.names


@dataclass(frozen=True, slots=True)
class Split:
    """What is asked for depends on a parameter: on which name it is, or on which side of `edge` it lies.

    otherwise: asked for at names that nobody tried
    """

    name: str
    edge: float | None
    branches: Mapping[float, Leaf | Split]
    otherwise: frozenset[str]

    def at(self, numbers: Numbers) -> frozenset[str]:
        """Return the parameters that are asked for at these values."""
        branch = self.branches.get(_side(numbers[self.name], self.edge)) if self.name in numbers else None
        return self.otherwise if branch is None else branch.at(numbers)


def conditions(trials: Sequence[Numbers], named: frozenset[str]) -> Leaf | Split:
    """Return the tree of decisions that explains what `trials` asked for; `named` are not in any order.

    As an objective does, it decides by what all trials of a branch asked for. Trials that nothing tells apart follow
    the most frequent of them.
    """
    kinds = Counter(frozenset(trial) for trial in trials)
    common = frozenset.intersection(*kinds) if kinds else frozenset()
    if len(kinds) > 1:
        cuts = [cut for name in sorted(common) for cut in _cuts(trials, name, name in named)]
        best = min(cuts, key=lambda cut: _disorder(trials, *cut), default=None)
        if best is not None and _disorder(trials, *best) < _disorder(trials, None, None) - 1e-9:
            branches = {side: conditions(part, named) for side, part in _parts(trials, *best).items()}
            return Split(str(best[0]), best[1], branches, common)
    return Leaf(max(kinds, key=lambda kind: (kinds[kind], len(kind), sorted(kind)), default=frozenset()))


def _cuts(trials: Sequence[Numbers], name: str, is_named: bool) -> list[tuple[str, float | None]]:
    if is_named:
        return [(name, None)]
    ordered = sorted((trial[name], sorted(trial)) for trial in trials)
    edges = [(one + other) / 2 for (one, kind), (other, next_kind) in pairwise(ordered) if kind != next_kind]
    distinct = list(dict.fromkeys(edges))
    return [(name, edge) for edge in distinct[:: -(-len(distinct) // MOST_EDGES) or 1]]


def _parts(trials: Sequence[Numbers], name: str | None, edge: float | None) -> dict[float, list[Numbers]]:
    parts: dict[float, list[Numbers]] = {}
    for trial in trials:
        parts.setdefault(0.0 if name is None else _side(trial[name], edge), []).append(trial)
    return parts


def _side(number: float, edge: float | None) -> float:
    return number if edge is None else float(number > edge)


def _disorder(trials: Sequence[Numbers], name: str | None, edge: float | None) -> float:
    """Return how many trials are expected to ask for something else than another of their part (Gini)."""
    total = 0.0
    for part in _parts(trials, name, edge).values():
        counts = Counter(frozenset(trial) for trial in part).values()
        total += len(part) - sum(count**2 for count in counts) / len(part)
    return total
