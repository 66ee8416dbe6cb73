"""The best program at a size: contenders side by side with the baselines, until a statement holds or a budget ends.

The statement: with probability 95 % what is to be run is within 2 % of the best of all contenders and baselines; a
program is named only where it is faster than every baseline, wrongly with probability 1 % at most. Both errors are
shared by all comparisons that are made, of every contender after every batch (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chorale.tuner.statistics.launches import Differences, Floats, LaunchTable
from chorale.tuner.statistics.verdict import Decision, SizeVerdict


@dataclass(frozen=True, slots=True)
class ContestRules:
    """tolerance:  by which share of its time a program may be behind the best
    confidence: of that statement
    false_win:  probability with which a program is named that is not faster than the baselines; half of what is stated,
                as times from launch to launch need not be normal
    batches:    launches after which is looked, the last is the most
    """

    tolerance: float = 0.02
    confidence: float = 0.95
    false_win: float = 0.005
    batches: tuple[int, ...] = (4, 8, 16, 24)


class SizeContest:
    """Compares `contenders` and `baselines` at one size, one launch after the other.

    `batch` says what the next launches must have; `add` takes each; when `batch` is empty the `verdict` stands. A
    contender leaves when it is clearly slower than the leader, a baseline too, but for the fastest: it is the control.
    """

    def __init__(
        self,
        size_bytes: int,
        baselines: Sequence[str],
        contenders: Sequence[str],
        rules: ContestRules = ContestRules(),
    ) -> None:
        self.size_bytes = size_bytes
        self._names = (*baselines, *contenders)
        self._baselines = np.arange(len(baselines))
        self._contenders = np.arange(len(baselines), len(self._names))
        self._rules = rules
        self._table = LaunchTable(self._names)
        self._active = list(range(len(self._names)))
        self._failed: set[int] = set()
        self._seconds: list[float] = []
        self._is_over = not contenders

    @property
    def batch(self) -> tuple[tuple[str, ...], int]:
        """Names to measure side by side, and in how many launches until it is looked again; no names at the end."""
        if self._is_over:
            return (), 0
        target = next(count for count in self._rules.batches if count > self._table.count)
        return tuple(self._names[index] for index in self._active), target - self._table.count

    def add(self, times_s: Mapping[str, Sequence[float]]) -> None:
        """Take the seconds of the repetitions of one launch."""
        self._table.add(times_s)
        self._seconds.append(sum(map(sum, times_s.values())))
        if self._table.count in self._rules.batches:
            self._look()

    def give_up(self) -> None:
        """End the contest: nothing more can be measured."""
        self._is_over = True

    def verdict(self) -> SizeVerdict | None:
        """Return what the launches say so far, None before the first."""
        if self._table.count == 0 or not len(self._contenders):
            return None
        return self._stated(self._leader())

    def _look(self) -> None:
        leader = self._leader()
        apart = self._table.differences(leader)
        slower = apart.mean - apart.half_width(self._pair_error) > 0
        control = self._fastest_baseline()
        self._active = [index for index in self._active if index in (leader, control) or not slower[index]]
        alone = set(self._active) <= {leader, control}
        verdict = self._stated(leader)
        most = self._rules.batches[-1]
        hopeless = self._table.count > self._rules.batches[0] and verdict.more_launches > HOPELESS * most
        last = self._table.count >= most or hopeless
        self._is_over = last or verdict.is_decided or (alone and verdict.more_launches == 0)

    @property
    def _pair_error(self) -> float:
        """Probability with which any comparison behind the statement may be wrong."""
        return (1 - self._rules.confidence) / self._comparisons

    @property
    def _win_error(self) -> float:
        return self._rules.false_win / self._comparisons

    @property
    def _comparisons(self) -> int:
        return max(len(self._names) - 1, 1) * len(self._rules.batches)

    def _leader(self) -> int:
        """Return the contender that is fastest beside those that are still compared."""
        contenders = [index for index in self._active if index >= len(self._baselines)] or list(self._contenders)
        return self._fastest(contenders)

    def _fastest_baseline(self) -> int:
        active = [index for index in self._active if index < len(self._baselines)]
        return self._fastest(active or list(self._baselines))

    def _fastest(self, indices: Sequence[int]) -> int:
        """Return who is fastest in the launches that all of `indices` were in."""
        if len(indices) == 1:
            return indices[0]
        logarithms = self._table.logarithms[list(indices)]
        shared = np.isfinite(logarithms).all(axis=0)
        means = logarithms[:, shared].mean(axis=1) if shared.any() else _means(logarithms)
        return indices[int(np.argmin(np.where(np.isfinite(means), means, np.inf)))]

    def _stated(self, leader: int) -> SizeVerdict:
        table, control = self._table, self._fastest_baseline()
        apart, library = table.differences(leader), table.differences(control)
        beats = self._beats(apart)
        runs = leader if beats else control
        behind = self._behind(apart if beats else library)
        decided = behind <= math.log1p(self._rules.tolerance)
        decision: Decision = ("program" if beats else "library") if decided else "undecided"
        middle = float(apart.mean[control])
        # To both sides, for any contender that may lead, and twice as careful as when to stop were not its own choice.
        error = (1 - self._rules.confidence) / 4 / max(len(self._contenders), 1)
        width = float(apart.half_width(error)[control])
        more = 0 if decided else self._more_launches(apart, library)
        return SizeVerdict(
            size_bytes=self.size_bytes,
            decision=decision,
            name=self._names[leader] if runs == leader else None,
            baseline=self._names[control],
            leader=self._names[leader],
            speedup=_exp(middle),
            speedup_low=_exp(middle - width),
            speedup_high=_exp(middle + width),
            behind=_exp(behind) - 1,
            launches=table.count,
            confidence=self._rules.confidence,
            more_launches=more,
            more_seconds=more * float(np.mean(self._seconds[-1:])),
            outliers=tuple(f"{name} in launch {launch + 1}" for name, launch in table.outliers()),
        )

    def _beats(self, apart: Differences) -> bool:
        """Whether the leader is faster than every baseline."""
        lowest = (apart.mean - apart.half_width(self._win_error))[self._baselines]
        return bool(np.all(lowest > 0))

    def _behind(self, apart: Differences) -> float:
        """Return by how much, at most, something is faster than what `apart` is seen from; a logarithm."""
        bounds = apart.half_width(self._pair_error) - apart.mean
        return float(np.max(np.where(np.isfinite(bounds), bounds, np.inf), initial=0.0))

    def _more_launches(self, apart: Differences, library: Differences) -> int:
        """Return how many more launches would probably decide, if all means stay."""
        tolerance = math.log1p(self._rules.tolerance)
        rivals = _needed(apart, self._pair_error, tolerance - (-apart.mean))
        wins = _needed(apart, self._win_error, apart.mean)[self._baselines]
        as_library = _needed(library, self._pair_error, tolerance + library.mean)
        least = min(max(rivals.max(), wins.max()), as_library.max())
        return max(math.ceil(min(float(least), MAX_LAUNCHES)) - self._table.count, 1)


HOPELESS = 4
"""A contest ends undecided where deciding would take that many times as many launches as it may have."""

MAX_LAUNCHES = 10**6
"""More launches than that are said to be that many: programs that are equal are never told apart."""


def _needed(apart: Differences, error: float, room: Floats) -> Floats:
    """Return in how many launches each half-width shrinks to `room`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = apart.launches * (apart.half_width(error) / np.maximum(room, 1e-9)) ** 2
    needed = np.where(np.isfinite(needed), needed, MAX_LAUNCHES)
    return np.asarray(np.where(apart.deviation == 0, 0.0, needed))


def _means(logarithms: Floats) -> Floats:
    counts = np.isfinite(logarithms).sum(axis=1)
    sums = np.where(np.isfinite(logarithms), logarithms, 0.0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def _exp(logarithm: float) -> float:
    """Return e to the power of `logarithm`, within what a document can hold."""
    return math.exp(min(max(logarithm, -50.0), 50.0)) if not math.isnan(logarithm) else math.exp(50.0)
