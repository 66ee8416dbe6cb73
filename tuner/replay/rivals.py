"""Other ways of searching, for comparison: a forest as SMAC has it, and successive halving.

Both know what Optuna's samplers know: one value for each trial, the mean over sizes of the logarithm of the speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from chorale.tuner.search.prior import Floats
from chorale.tuner.search.size_model import axes_of
from chorale.tuner.search.study import log_speedup
from chorale.tuner.trials.records import Candidate, CompleteTrial


class Chooser(Protocol):
    """Chooses what to measure next."""

    def ask(self) -> tuple[Candidate, int | None] | None:
        """Return a candidate and how often to repeat it, None for as often as usual; no candidate at the end."""

    def tell(self, record: CompleteTrial) -> None:
        """Take what was measured of the last candidate."""


FIRST_SHARE = 4
"""One in so many trials of a forest is drawn at random at first, three at least."""

TREES, FEATURES, CHANCE = 10, 5 / 6, 0.2


@dataclass(slots=True)
class ForestSearch:
    """The highest expected improvement under a random forest, one trial in five at random.

    Source: Hutter, Hoos and Leyton-Brown, Sequential model-based optimization for general algorithm configuration,
    2011, section 4; trees, features and random trials as SMAC3 sets them for tuning of parameters.
    """

    points: Sequence[Candidate]
    trials: int
    seed: int
    _random: np.random.Generator = field(init=False)
    _features: Floats = field(init=False)
    _order: list[int] = field(init=False)
    _tried: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng([self.seed, 7])
        self._features = encoded(self.points)
        self._order = [int(number) for number in self._random.permutation(len(self.points))]

    def ask(self) -> tuple[Candidate, int | None] | None:
        """Return an untried candidate, None if there is none."""
        others = [number for number in self._order if number not in self._tried]
        if not others:
            return None
        at_random = len(self._values) < max(3, self.trials // FIRST_SHARE) or self._random.uniform() < CHANCE
        number = others[0] if at_random else others[int(np.argmax(self._improvement(others)))]
        self._tried.append(number)
        return self.points[number], None

    def tell(self, record: CompleteTrial) -> None:
        """Take what was measured of the last candidate."""
        self._values.append(mean_gain(record))

    def _improvement(self, others: Sequence[int]) -> Floats:
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - it takes a second, and few ask for it

        forest = RandomForestRegressor(TREES, max_features=FEATURES, random_state=len(self._values) + self.seed)
        forest.fit(self._features[self._tried], self._values)
        guesses = np.array([tree.predict(self._features[others]) for tree in forest.estimators_])
        mean, deviation = guesses.mean(axis=0), np.maximum(guesses.std(axis=0), 1e-9)
        standard = (mean - max(self._values)) / deviation
        density = np.exp(-(standard**2) / 2) / math.sqrt(2 * math.pi)
        return np.asarray(deviation * (standard * ndtr(standard) + density))


@dataclass(slots=True)
class HalvingSearch:
    """Many candidates are measured once, the better half twice, the better half of these four times, and again.

    Source: Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, 2016,
    figure 3. A bracket takes all trials that there are; points that are left come in further brackets.
    """

    points: Sequence[Candidate]
    trials: int
    repeats: int
    seed: int
    _queue: Iterator[tuple[Candidate, int]] = field(init=False)
    _values: dict[Candidate, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = np.random.default_rng([self.seed, 7]).permutation(len(self.points))
        self._queue = self._brackets([self.points[number] for number in order])

    def ask(self) -> tuple[Candidate, int | None] | None:
        """Return the next candidate of the bracket, None after the last."""
        return next(self._queue, None)

    def tell(self, record: CompleteTrial) -> None:
        """Take what was measured of the last candidate."""
        self._values[record.candidate] = mean_gain(record)

    def _brackets(self, untried: list[Candidate]) -> Iterator[tuple[Candidate, int]]:
        rungs = [min(2**rung, self.repeats) for rung in range(max(math.ceil(math.log2(self.repeats)) + 1, 1))]
        first = max(math.ceil(self.trials / sum(0.5**rung for rung in range(len(rungs)))), 1)
        while untried:
            bracket, untried = untried[:first], untried[first:]
            for repeats in rungs:
                yield from ((candidate, repeats) for candidate in bracket)
                bracket.sort(key=lambda candidate: -self._values[candidate])
                bracket = bracket[: max(len(bracket) // 2, 1)]


def encoded(points: Sequence[Candidate]) -> Floats:
    """Return a row of numbers for each point: a column for each number, one for each of several names."""
    columns: list[Floats] = []
    for axis in axes_of(points):
        if axis.is_named:
            columns += [np.asarray(axis.values == value, dtype=float) for value in np.unique(axis.values)]
        else:
            columns.append(np.nan_to_num(axis.values, nan=-1.0))
    return np.array(columns).T if columns else np.zeros((len(points), 1))


def mean_gain(record: CompleteTrial) -> float:
    """Return the mean over sizes of the logarithm of the speed-up."""
    return float(np.mean([log_speedup(size) for size in record.sizes]))
