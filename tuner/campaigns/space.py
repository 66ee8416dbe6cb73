"""The search space: a finite grid, every point of which has a number."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from synth.errors import InvalidInput
from tuner.campaigns.records import Candidate

MOST_POINTS = 10**6

Value = str | int | None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All combinations of the values of each dimension; the last dimension varies fastest.

    `dimensions` maps the fields of `Candidate` to their values, in order of preference: the first value of
    each is the one that the search starts from.
    """

    dimensions: Mapping[str, tuple[Value, ...]]

    def __post_init__(self) -> None:
        if len(self) > MOST_POINTS:
            rule = f"a search space must have at most {MOST_POINTS} points"
            raise InvalidInput(rule, f"{len(self)} points", "give fewer values under `search`")

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.dimensions.values())

    def __getitem__(self, number: int) -> Candidate:
        chosen: dict[str, Any] = {}
        for name, values in reversed(list(self.dimensions.items())):
            number, index = divmod(number, len(values))
            chosen[name] = values[index]
        return Candidate(**chosen)

    def __contains__(self, candidate: Candidate) -> bool:
        parameters = candidate.parameters
        return all(parameters[name] in values for name, values in self.dimensions.items())

    def starts(self) -> list[Candidate]:
        """Return one candidate per method, with the first value of every other dimension."""
        first = {name: values[0] for name, values in self.dimensions.items()}
        return [Candidate(**{**first, "method": method}) for method in self.dimensions["method"]]  # type: ignore[arg-type]

    def shuffled(self, seed: int) -> Iterator[Candidate]:
        """Yield every point once, in an order fixed by `seed`."""
        numbers = list(range(len(self)))
        random.Random(seed).shuffle(numbers)  # noqa: S311 - an order of trials, not a secret
        return (self[number] for number in numbers)
