"""Find the best program at a size: measure contenders side by side with the baselines until a statement holds or a
budget ends.

The statement: with probability 95 % the choice is within 2 % of the best of all contenders and baselines. A program is
chosen only if it is faster than every baseline, with an error probability of at most 1 %. Both errors are shared by all
comparisons, of every contender after every batch (Bonferroni).

Repetitions of a launch share its mode, so each launch counts once, with the median of its repetitions. Programs are
compared within launches: what slows a whole launch, including drift, slows both. The remaining variance between
launches is pooled over all programs, and that of each pair is shrunk towards it (Smyth, Linear models and empirical
Bayes methods, 2004, section 3, with a fixed weight).

Baselines next to every trial would be most of what a campaign measures. While they do not change, the next control
comes after twice as many trials; when they change, it comes sooner, and earlier measurements of them no longer count.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import special

Decision = Literal["program", "library", "undecided"]
"""A program is better than every baseline; none is by more than the tolerance; or neither is proved."""


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The statement for a size.

    decision:     "program" and "library" hold with `confidence`; "undecided" means that data are missing
    name:         the program to run: proven to be faster than every baseline, None if there is none
    baseline:     the fastest baseline
    leader:       the fastest program, proven or not; `speedup_*` is its speed-up over the baseline, with `confidence`
    behind:       upper bound of how far the choice is behind the best that was measured: 0.02 is 2 %
    launches:     number of launches in which it was compared
    more_launches: how many more launches a decision would probably need, 0 if it is decided
    more_seconds: measuring time of these launches
    outliers:     `program in launch n`
    """

    size_bytes: int
    decision: Decision
    name: str | None
    baseline: str
    leader: str
    speedup: float
    speedup_low: float
    speedup_high: float
    behind: float
    launches: int
    confidence: float = 0.95
    more_launches: int = 0
    more_seconds: float = 0.0
    outliers: tuple[str, ...] = ()

    @property
    def is_decided(self) -> bool:
        return self.decision != "undecided"

    @property
    def has_interval(self) -> bool:
        """Return whether the launches show how much times vary; a single one does not."""
        return self.launches > 1


Floats = NDArray[np.float64]

MAX_POOLED = 8.0
"""Most degrees of freedom of the pooled variance, relative to that of a pair."""

LEAST_DEVIATION = 5e-4
"""Standard deviation of the logarithm of a time in a launch that no clock is better than."""

OUTLIER_SCALES, OUTLIER_LEAST = 6.0, 0.1
"""A launch is an outlier of a program if its residual exceeds this many robust deviations, and this absolute value."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Differences of every program from one of them, in logarithms of times: positive means slower.

    mean:      nan if they share no launch
    deviation: standard error of the mean
    freedom:   degrees of freedom of the standard error
    launches:  number of launches with both
    """

    mean: Floats
    deviation: Floats
    freedom: Floats
    launches: Floats

    def half_width(self, error: float) -> Floats:
        """Return by how much each mean is off with probability `error` at most, to one side."""
        with np.errstate(invalid="ignore"):
            quantiles = np.array([_student(error, float(number)) for number in self.freedom])
            return np.where(self.deviation == 0, 0.0, quantiles * self.deviation)


@lru_cache(maxsize=4096)
def _student(error: float, freedom: float) -> float:
    """Return the quantile that Student's t exceeds with probability `error`."""
    return float("inf") if freedom <= 0 else float(-special.stdtrit(freedom, error))


@dataclass(slots=True)
class LaunchTable:
    """Logarithms of times of `names`, one column per launch; nan if a program was not in it."""

    names: Sequence[str]
    _columns: list[Floats] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Launches so far."""
        return len(self._columns)

    @property
    def logarithms(self) -> Floats:
        """Array of (names, launches)."""
        return np.array(self._columns).T if self._columns else np.empty((len(self.names), 0))

    def add(self, times_s: Mapping[str, Sequence[float]]) -> None:
        """Add a launch: the seconds of all repetitions by name; names without usable times were not in it."""
        self._columns.append(np.array([_middle(times_s.get(name, ())) for name in self.names]))

    def differences(self, index: int) -> Differences:
        """Return how far the others are from program number `index`."""
        logarithms = self.logarithms
        apart = logarithms - logarithms[index]
        both = np.isfinite(apart)
        launches = both.sum(axis=1).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(launches > 0, np.where(both, apart, 0.0).sum(axis=1) / launches, np.nan)
            scatter = np.where(both, (apart - mean[:, None]) ** 2, 0.0).sum(axis=1)
            pooled, pooled_freedom = self.pooled()
            others = np.maximum(pooled_freedom - np.maximum(launches - 1, 0.0), 0.0)  # without those of the pair
            weight = np.minimum(others, MAX_POOLED)
            freedom = weight + np.maximum(launches - 1, 0.0)
            variance = (weight * 2 * pooled + scatter) / np.maximum(freedom, 1.0)
            variance = np.maximum(variance, 2 * LEAST_DEVIATION**2)
            deviation = np.where((launches > 0) & (freedom > 0), np.sqrt(variance / launches), np.inf)
        deviation[index], mean[index] = 0.0, 0.0
        return Differences(mean, deviation, freedom, launches)

    def pooled(self) -> tuple[float, float]:
        """Return the variance of a time between launches, without that of the launch, and its degrees of freedom."""
        squares, freedom, logarithms = 0.0, 0.0, self.logarithms
        grouped: dict[bytes, list[int]] = {}  # launches with the same programs in them, without gaps
        present = np.isfinite(logarithms)
        for column in range(self.count):
            grouped.setdefault(present[:, column].tobytes(), []).append(column)
        for columns in grouped.values():
            block = logarithms[np.ix_(np.flatnonzero(present[:, columns[0]]), np.array(columns))]
            if min(block.shape) > 1:
                rows, launches = block.mean(axis=1, keepdims=True), block.mean(axis=0, keepdims=True)
                squares += float(np.sum((block - rows - launches + block.mean()) ** 2))
                freedom += (block.shape[0] - 1) * (block.shape[1] - 1)
        return (squares / freedom if freedom else 0.0), freedom

    def outliers(self) -> list[tuple[str, int]]:
        """Return programs and numbers of launches (from 0) that are far from what the others suggest."""
        logarithms = self.logarithms
        if self.count < 3:
            return []
        with np.errstate(invalid="ignore"):
            level = logarithms - np.nanmedian(logarithms, axis=1, keepdims=True)
            residual = level - np.nanmedian(level, axis=0, keepdims=True)
        usual = 1.4826 * float(np.nanmedian(np.abs(residual)))
        far = np.abs(residual) > max(OUTLIER_SCALES * usual, OUTLIER_LEAST)
        return [(self.names[row], int(column)) for row, column in np.argwhere(far)]


@dataclass(frozen=True, slots=True)
class ContestRules:
    """tolerance:  share of its time by which a program may be behind the best
    confidence: of that statement
    false_win:  probability of choosing a program that is not faster than the baselines; half of the stated value,
    because
                times of launches need not be normally distributed
    batches:    numbers of launches after which to evaluate; the last is the maximum
    """

    tolerance: float = 0.02
    confidence: float = 0.95
    false_win: float = 0.005
    batches: tuple[int, ...] = (4, 8, 16, 24)


class SizeContest:
    """Compares `contenders` and `baselines` at one size, one launch after the other.

    `batch` returns the members of the next launches; `add` takes each launch; when `batch` is empty, the `verdict` is
    final. A contender leaves when it is clearly slower than the leader; so does a baseline, except the fastest, which
    is the control.
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
        """Return the fastest contender among those that are still compared."""
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
        counts = np.isfinite(logarithms).sum(axis=1)
        sums = np.where(np.isfinite(logarithms), logarithms, 0.0).sum(axis=1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
        if shared.any():
            means = logarithms[:, shared].mean(axis=1)
        return indices[int(np.argmin(np.where(np.isfinite(means), means, np.inf)))]

    def _stated(self, leader: int) -> SizeVerdict:
        table, control = self._table, self._fastest_baseline()
        apart, library = table.differences(leader), table.differences(control)
        # Whether the leader is faster than every baseline
        beats = bool(np.all((apart.mean - apart.half_width(self._win_error))[self._baselines] > 0))
        runs = leader if beats else control
        # By how much, at most, something is faster than what is to be run; a logarithm
        others = apart if beats else library
        bounds = others.half_width(self._pair_error) - others.mean
        behind = float(np.max(np.where(np.isfinite(bounds), bounds, np.inf), initial=0.0))
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

    def _more_launches(self, apart: Differences, library: Differences) -> int:
        """Return how many more launches would probably decide, if all means stay."""
        tolerance = math.log1p(self._rules.tolerance)
        rivals = _needed(apart, self._pair_error, tolerance - (-apart.mean))
        wins = _needed(apart, self._win_error, apart.mean)[self._baselines]
        as_library = _needed(library, self._pair_error, tolerance + library.mean)
        least = min(max(rivals.max(), wins.max()), as_library.max())
        return max(math.ceil(min(float(least), MAX_LAUNCHES)) - self._table.count, 1)


HOPELESS = 4
"""A contest ends undecided if a decision would need this many times the allowed launches."""

MAX_LAUNCHES = 10**6
"""Estimates above this are reported as this number: equal programs can never be distinguished."""


def _needed(apart: Differences, error: float, room: Floats) -> Floats:
    """Return in how many launches each half-width shrinks to `room`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = apart.launches * (apart.half_width(error) / np.maximum(room, 1e-9)) ** 2
    needed = np.where(np.isfinite(needed), needed, MAX_LAUNCHES)
    return np.asarray(np.where(apart.deviation == 0, 0.0, needed))


def _exp(logarithm: float) -> float:
    """Return e to the power of `logarithm`, within what a document can hold."""
    return math.exp(min(max(logarithm, -50.0), 50.0)) if not math.isnan(logarithm) else math.exp(50.0)


Times = tuple[float, ...]
BaselineTimes = Mapping[str, tuple[Times, ...]]
"""Name of a baseline -> the seconds of its repetitions at each size."""

LEAST_MOVE = 0.02
"""Logarithm by which baselines must have moved to count as moved."""

MOVE_DEVIATIONS = 3.0
LONGEST_INTERVAL = 16
"""Trials after which baselines are measured again in any case."""

FEW = 8
"""Deviations below which their scale is not trusted alone."""


class Controls:
    """The baselines of a launch, as measured together with some of its trials."""

    def __init__(self, interval: int = 1) -> None:
        self._pools: dict[str, list[Times]] = {}
        self._interval = interval
        self._next = 0
        self._squares, self._freedom = 0.0, 0
        self._within: list[float] = []

    def is_due(self, trials: int) -> bool:
        """Return whether the baselines are measured together with the trial that follows `trials` others."""
        return not self._pools or trials >= self._next

    @property
    def times_s(self) -> dict[str, tuple[Times, ...]]:
        """Seconds of all repetitions since the baselines last moved."""
        return {name: tuple(sizes) for name, sizes in self._pools.items()}

    @property
    def repeats(self) -> int:
        """Repetitions that bring the error of their median to about `TRIAL_ERROR`, as far as repeating helps."""
        within = float(np.median(self._within)) if self._within else 0.0
        return min(max(math.ceil((within / TRIAL_ERROR) ** 2), 1), MOST_REPEATS)

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm of a time from launch to launch, as far as it is known."""
        within = float(np.median(self._within)) if self._within else 0.0
        return max(within, (self._squares / self._freedom) ** 0.5 if self._freedom else 0.0)

    def add(self, measured: BaselineTimes, trials: int) -> None:
        """Add a control that was measured together with the trial that follows `trials` others."""
        differences = [
            _middle(new) - _middle(old)
            for name, sizes in measured.items()
            for old, new in zip(self._pools.get(name, ()), sizes, strict=False)
        ]
        changes = np.array([change for change in differences if np.isfinite(change)])
        moved = len(changes) > 0 and self._has_moved(changes)
        if len(changes):
            self._squares += float(np.sum((changes - np.median(changes)) ** 2)) / 2
            self._freedom += max(len(changes) - 1, 1)
        # The deviation within launches, robust: from medians of distances between neighbouring repetitions
        repetitions = [times for sizes in measured.values() for times in sizes if len(times) > 1 and min(times) > 0]
        steps = [np.abs(np.diff(np.log(np.asarray(times)))) for times in repetitions]
        if steps:
            self._within.append(float(np.median(np.concatenate(steps))) / 0.6745 / 2**0.5)
        self._interval = 1 if moved or not self._pools else min(2 * self._interval, LONGEST_INTERVAL)
        self._next = trials + self._interval
        for name, sizes in measured.items():
            before = () if moved else self._pools.get(name, ())
            self._pools[name] = [(*old, *new) for old, new in zip(before, sizes, strict=True)] if before else [*sizes]

    def _has_moved(self, changes: Floats) -> bool:
        """Return whether the median of the changes at all sizes is larger than their scatter explains."""
        middle = float(np.median(changes))
        scatter = 1.4826 * float(np.median(np.abs(changes - middle)))
        scatter = max(scatter, self.deviation if len(changes) < FEW else 0.0)
        return bool(abs(middle) > max(LEAST_MOVE, MOVE_DEVIATIONS * 1.25 * scatter / len(changes) ** 0.5))


TRIAL_ERROR, MOST_REPEATS = 0.1, 1000
FIRST_CONTROL = 2
"""Repetitions of the first control: the fewest that tell how much repetitions scatter."""


def contender_indices(gains: Floats, deviation: float, most: int, least: int = 2) -> list[int]:
    """Return the indices of `gains` (logarithms of speed-ups at one size, nan if missing) that may be the best.

    The best come first. Left out are those that are further behind than noise explains: a gain is the ratio of two
    times, and `deviation` is the standard deviation of the logarithm of each.
    """
    order = [int(index) for index in np.argsort(-np.where(np.isfinite(gains), gains, -np.inf), kind="stable")]
    order = [index for index in order if np.isfinite(gains[index])]
    reach = CONTENDER_DEVIATIONS * 2**0.5 * deviation
    near = [index for index in order if gains[index] >= gains[order[0]] - reach]
    return order[: min(max(len(near), least), most)]


CONTENDER_DEVIATIONS = 2.5


def race_ratio(deviation: float) -> float:
    """Return how many times as slow as the best a program's first repetitions must be for it to leave the race."""
    return float(np.exp(max(RACE_LEAST, RACE_DEVIATIONS * 2**0.5 * deviation)))


RACE_LEAST, RACE_DEVIATIONS = 0.05, 2.0


def _middle(times: Sequence[float]) -> float:
    """Return the logarithm of the median time of a launch, nan if no time is usable."""
    usable = [time for time in times if np.isfinite(time) and time > 0]
    return float(np.log(np.median(usable))) if usable else float("nan")
