"""The search space: the sensible points of a grid."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

from chorale.synth.errors import InvalidInput
from chorale.tuner.config.values import Value
from chorale.tuner.trials.records import Candidate

MAX_POINTS = 10**5


class Constraints(Protocol):
    """What is known about candidates before anything is made of them."""

    def matters(self, parameter: str, method: str) -> bool:
        """Whether `parameter` changes anything for schedules of `method`."""
        ...

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        """Return in one line why `candidate` is pointless, or None."""
        ...


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All combinations of the values of each dimension, each once, without those that make no sense.

    `dimensions` maps the fields of `TopologyCandidate` to their values, in order of preference: the first value of
    each is the one that the search starts from. The first is `method`. A parameter that does not matter for a method
    has its default value there, so that points do not differ by it.

    points:  in the order of the grid, whose last dimension varies fastest
    refused: reasons not to try, and how many points each has ruled out
    """

    dimensions: Mapping[str, tuple[Value, ...]]
    constraints: Constraints
    points: tuple[Candidate, ...] = field(init=False)
    refused: Mapping[str, int] = field(init=False)
    _known: frozenset[Candidate] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        grid = math.prod(len(values) for values in self.dimensions.values())
        if grid > MAX_POINTS:
            rule = f"a search space must have at most {MAX_POINTS} points"
            raise InvalidInput(rule, f"{grid} points", "give fewer values under `search`")
        distinct = dict.fromkeys(self._candidates())
        reasons = {point: self.constraints.reason_not_to_try(point) for point in distinct}
        points = tuple(point for point, reason in reasons.items() if reason is None)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "_known", frozenset(points))
        object.__setattr__(self, "refused", Counter(reason for reason in reasons.values() if reason is not None))

    def __len__(self) -> int:
        return len(self.points)

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate in self._known

    def matters(self, parameter: str, method: str) -> bool:
        """Whether points of `method` differ by `parameter`."""
        return parameter == "method" or self.constraints.matters(parameter, method)

    def starts(self) -> list[Candidate]:
        """Return the first point of each method."""
        return list({point.method: point for point in reversed(self.points)}.values())[::-1]

    def shuffled(self, seed: int) -> Iterator[Candidate]:
        """Yield every point once, in an order fixed by `seed`."""
        points = list(self.points)
        random.Random(seed).shuffle(points)  # noqa: S311 - an order of trials, not a secret
        return iter(points)

    def _candidates(self) -> Iterator[Candidate]:
        for method in self.dimensions["method"]:
            names = [name for name in self.dimensions if name != "method" and self.matters(name, str(method))]
            for values in product(*(self.dimensions[name] for name in names)):
                chosen: dict[str, Any] = dict(zip(names, values, strict=True))
                yield Candidate(str(method), **chosen)
