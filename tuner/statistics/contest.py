"""Finds the best program at a size by measuring contenders side by side with the baselines.

Measuring ends when the choice is certain or the budget is used up.

The choice is certain if, with probability 95 %, it is within 2 % of the best of all contenders and baselines. A program
is chosen only if it is faster than every baseline, with an error probability of at most 1 %. Both error probabilities
are divided equally among all comparisons that may be made, of all contenders after each batch of launches (Bonferroni).

All repetitions in a launch may share effects of that launch, so each launch counts once, with the median of its
repetitions. Programs are compared within launches, because whatever slows a complete launch, including drift, slows all
its programs. The remaining variance between launches is pooled over all programs, and the variance of each pair is
shrunk towards the pooled one (Smyth, Linear models and empirical Bayes methods, 2004, section 3, with a fixed weight).

If the baselines were measured with every trial, they would take most of a campaign's time. Instead they are measured
with some trials, called controls. As long as the baselines do not change, the interval between controls doubles. When
they have changed, the interval is reset, and earlier measurements of the baselines are discarded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import special

Decision = Literal["program", "library", "undecided"]
"""`program`: a program is faster than every baseline, and nothing is faster than it by more than the tolerance.
`library`: nothing is faster than the fastest baseline by more than the tolerance. `undecided`: neither is proven.
"""
TRIAL_ERROR, MOST_REPEATS = 0.1, 1000
FIRST_CONTROL = 2
"""Number of repetitions when baselines are first measured. With fewer, the scatter of repetitions would be unknown."""
CONTENDER_DEVIATIONS = 2.5
RACE_LEAST, RACE_DEVIATIONS = 0.05, 2.0
HOPELESS = 4
"""A contest ends undecided if a decision would need this many times the allowed number of launches."""
MAX_LAUNCHES = 10**6
"""Maximum estimate of the launches that a decision needs; equally fast programs can never be distinguished."""


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The conclusion of a comparison of programs at one size.

    decision:     "program" and "library" hold with `confidence`; "undecided" means that more data are needed
    name:         the program to run, proven to be faster than every baseline; None without such a program
    baseline:     the fastest baseline
    leader:       the fastest program, whether or not this is proven
    speedup:      speed-up of the leader over the baseline; between `speedup_low` and `speedup_high` with `confidence`
    behind:       upper bound on how much longer the choice takes than the best program or baseline: 0.02 means 2 %
    launches:     number of launches in which the size was measured
    more_launches: number of further launches that a decision would probably need; 0 after a decision
    more_seconds: measuring time of these launches
    outliers:     unusual times, each as text such as `program in launch n`
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
        """Return whether there are enough launches (at least two) for an interval."""
        return self.launches > 1


Floats = NDArray[np.float64]

MAX_POOLED = 8.0
"""Maximum weight of the pooled variance, in degrees of freedom, when it is mixed with a pair's own variance."""

LEAST_DEVIATION = 5e-4
"""Minimum standard deviation of the logarithm of a time in a launch, because clocks are not more precise."""

OUTLIER_SCALES, OUTLIER_LEAST = 6.0, 0.1
"""A time is an outlier if its residual exceeds both `OUTLIER_SCALES` robust deviations and `OUTLIER_LEAST`."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """The differences between programs and a reference program, in logarithms of times: positive means slower.

    mean:      mean difference, nan if the two programs have no launch in common
    deviation: standard error of the mean
    freedom:   degrees of freedom of the standard error
    launches:  number of launches with both programs
    """

    mean: Floats
    deviation: Floats
    freedom: Floats
    launches: Floats

    def half_width(self, error: float) -> Floats:
        """Return each mean's one-sided error bound, which is exceeded with probability at most `error`."""
        with np.errstate(invalid="ignore"):
            quantiles = np.where(self.freedom > 0, -special.stdtrit(self.freedom, error), np.inf)
            return np.where(self.deviation == 0, 0.0, quantiles * self.deviation)


@dataclass(slots=True)
class LaunchTable:
    """Stores logarithms of times: a row for each of `names` and a column per launch; nan if not measured."""

    names: Sequence[str]
    _columns: list[Floats] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self._columns)

    @property
    def logarithms(self) -> Floats:
        """Return the logarithms of times, shape (names, launches)."""
        return np.array(self._columns).T if self._columns else np.empty((len(self.names), 0))

    def add(self, times_s: Mapping[str, Sequence[float]]) -> None:
        """Add a launch: name -> seconds of all repetitions. Names without usable times count as not measured."""
        self._columns.append(np.array([_middle(times_s.get(name, ())) for name in self.names]))

    def differences(self, index: int) -> Differences:
        """Return the differences of all programs from the program with index `index`."""
        logarithms = self.logarithms
        apart = logarithms - logarithms[index]
        both = np.isfinite(apart)
        launches = both.sum(axis=1).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(launches > 0, np.where(both, apart, 0.0).sum(axis=1) / launches, np.nan)
            scatter = np.where(both, (apart - mean[:, None]) ** 2, 0.0).sum(axis=1)
            pooled, pooled_freedom = self.pooled()
            others = np.maximum(pooled_freedom - np.maximum(launches - 1, 0.0), 0.0)  # other pairs' degrees of freedom
            weight = np.minimum(others, MAX_POOLED)
            freedom = weight + np.maximum(launches - 1, 0.0)
            variance = (weight * 2 * pooled + scatter) / np.maximum(freedom, 1.0)
            variance = np.maximum(variance, 2 * LEAST_DEVIATION**2)
            deviation = np.where((launches > 0) & (freedom > 0), np.sqrt(variance / launches), np.inf)
        deviation[index], mean[index] = 0.0, 0.0
        return Differences(mean, deviation, freedom, launches)

    def pooled(self) -> tuple[float, float]:
        """Return the pooled variance of a program's time between launches, and its degrees of freedom.

        Effects that are common to all programs in a launch are excluded.
        """
        squares, freedom, logarithms = 0.0, 0.0, self.logarithms
        grouped: dict[bytes, list[int]] = {}  # mask of measured programs -> launches with this mask
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
        """Return (program, index of the launch) for each time that is far from what the other times predict."""
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
    """The error probabilities and stopping rules of a contest.

    tolerance:  relative time by which the choice may be slower than the best
    confidence: probability that the choice is within `tolerance`
    false_win:  probability of choosing a program that is not faster than the baselines. It is half of the documented
                value to leave a margin, because times of launches need not be normally distributed
    batches:    numbers of launches after which to evaluate; the last is the maximum
    """

    tolerance: float = 0.02
    confidence: float = 0.95
    false_win: float = 0.005
    batches: tuple[int, ...] = (4, 8, 16, 24)


class SizeContest:
    """Compares `contenders` and `baselines` at one size, one launch after the other.

    `batch` returns the programs for the next launches, and `add` takes the times of each launch. When `batch` is empty,
    the `verdict` is final. Contenders and baselines that are clearly slower than the leader are dropped, except the
    fastest baseline, which is the reference.
    """

    def __init__(
        self, size_bytes: int, baselines: Sequence[str], contenders: Sequence[str], rules: ContestRules = ContestRules()
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
        """Return the programs to measure next, side by side, and in how many launches; none if the contest is over."""
        if self._is_over:
            return (), 0
        target = next(count for count in self._rules.batches if count > self._table.count)
        return tuple(self._names[index] for index in self._active), target - self._table.count

    def add(self, times_s: Mapping[str, Sequence[float]]) -> None:
        """Add a launch's times: name -> seconds of each repetition."""
        self._table.add(times_s)
        self._seconds.append(sum(map(sum, times_s.values())))
        if self._table.count in self._rules.batches:
            self._look()

    def give_up(self) -> None:
        """End the contest because nothing more can be measured."""
        self._is_over = True

    def verdict(self) -> SizeVerdict | None:
        """Return the conclusion from the launches so far, or None if there are none."""
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
        """Return the error probability that is allowed for each single comparison with another program."""
        return (1 - self._rules.confidence) / self._comparisons

    @property
    def _win_error(self) -> float:
        return self._rules.false_win / self._comparisons

    @property
    def _comparisons(self) -> int:
        return max(len(self._names) - 1, 1) * len(self._rules.batches)

    def _leader(self) -> int:
        contenders = [index for index in self._active if index >= len(self._baselines)] or list(self._contenders)
        return self._fastest(contenders)

    def _fastest_baseline(self) -> int:
        active = [index for index in self._active if index < len(self._baselines)]
        return self._fastest(active or list(self._baselines))

    def _fastest(self, indices: Sequence[int]) -> int:
        """Return which of `indices` has the fastest program, judged by launches that measured all these programs."""
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
        # Upper bound on how much slower the choice is than the best, as a logarithm
        others = apart if beats else library
        bounds = others.half_width(self._pair_error) - others.mean
        behind = float(np.max(np.where(np.isfinite(bounds), bounds, np.inf), initial=0.0))
        decided = behind <= math.log1p(self._rules.tolerance)
        decision: Decision = ("program" if beats else "library") if decided else "undecided"
        middle = float(apart.mean[control])
        # Two-sided, and corrected for the number of possible leaders. The remaining factor 2 accounts for stopping when
        # the data look good.
        error = (1 - self._rules.confidence) / 4 / max(len(self._contenders), 1)
        width = float(apart.half_width(error)[control])
        more = 0
        if not decided:  # estimate the missing launches from the current means
            tolerance = math.log1p(self._rules.tolerance)
            rivals = _needed(apart, self._pair_error, tolerance + apart.mean)
            wins = _needed(apart, self._win_error, apart.mean)[self._baselines]
            as_library = _needed(library, self._pair_error, tolerance + library.mean)
            least = min(max(rivals.max(), wins.max()), as_library.max())
            more = max(math.ceil(min(float(least), MAX_LAUNCHES)) - table.count, 1)
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


def _needed(apart: Differences, error: float, room: Floats) -> Floats:
    """Return the number of launches after which each error bound (`half_width`) would shrink to its entry in `room`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = apart.launches * (apart.half_width(error) / np.maximum(room, 1e-9)) ** 2
    needed = np.where(np.isfinite(needed), needed, MAX_LAUNCHES)
    return np.asarray(np.where(apart.deviation == 0, 0.0, needed))


def _exp(logarithm: float) -> float:
    """Return e to the power of `logarithm`, clipped to finite values because JSON has no infinity."""
    return math.exp(min(max(logarithm, -50.0), 50.0)) if not math.isnan(logarithm) else math.exp(50.0)


Times = tuple[float, ...]
BaselineTimes = Mapping[str, tuple[Times, ...]]
"""Name of a baseline -> for each size, the seconds of its repetitions."""

LEAST_MOVE = 0.02
"""Minimum change of the logarithm of the baselines' times that counts as a change."""

MOVE_DEVIATIONS = 3.0
LONGEST_INTERVAL = 16
"""Maximum number of trials between two measurements of the baselines."""

FEW = 8
"""If fewer changes than this are known, their scatter is unreliable; at least `Controls.deviation` is assumed."""


class Controls:
    """Stores times of the baselines, which are measured with some of the trials, and decides with which trials."""

    def __init__(self, interval: int = 1) -> None:
        self._pools: dict[str, list[Times]] = {}
        self._interval = interval
        self._next = 0
        self._squares, self._freedom = 0.0, 0
        self._within: list[float] = []

    def is_due(self, trials: int) -> bool:
        """Return whether to measure the baselines together with the next trial, which comes after `trials` others."""
        return not self._pools or trials >= self._next

    @property
    def times_s(self) -> dict[str, tuple[Times, ...]]:
        """Return the baselines' times in seconds: all repetitions since the baselines last changed."""
        return {name: tuple(sizes) for name, sizes in self._pools.items()}

    @property
    def repeats(self) -> int:
        """Return how many repetitions (up to `MOST_REPEATS`) give the median an error of about `TRIAL_ERROR`."""
        within = float(np.median(self._within)) if self._within else 0.0
        return min(max(math.ceil((within / TRIAL_ERROR) ** 2), 1), MOST_REPEATS)

    @property
    def deviation(self) -> float:
        """Return the estimated standard deviation of the logarithm of a time between launches."""
        within = float(np.median(self._within)) if self._within else 0.0
        return max(within, (self._squares / self._freedom) ** 0.5 if self._freedom else 0.0)

    def add(self, measured: BaselineTimes, trials: int) -> None:
        """Add baseline times that were measured together with a trial, which comes after `trials` others."""
        differences = [
            _middle(new) - _middle(old)
            for name, sizes in measured.items()
            for old, new in zip(self._pools.get(name, ()), sizes, strict=False)
        ]
        changes = np.array([change for change in differences if np.isfinite(change)])
        moved = False
        if len(changes):  # the baselines have changed if the median change is larger than scatter can explain
            middle = float(np.median(changes))
            scatter = 1.4826 * float(np.median(np.abs(changes - middle)))
            scatter = max(scatter, self.deviation if len(changes) < FEW else 0.0)
            moved = abs(middle) > max(LEAST_MOVE, MOVE_DEVIATIONS * 1.25 * scatter / len(changes) ** 0.5)
            self._squares += float(np.sum((changes - np.median(changes)) ** 2)) / 2
            self._freedom += max(len(changes) - 1, 1)
        # Robust estimate of the deviation within launches, from the median difference of consecutive repetitions
        repetitions = [times for sizes in measured.values() for times in sizes if len(times) > 1 and min(times) > 0]
        steps = [np.abs(np.diff(np.log(np.asarray(times)))) for times in repetitions]
        if steps:
            self._within.append(float(np.median(np.concatenate(steps))) / 0.6745 / 2**0.5)
        self._interval = 1 if moved or not self._pools else min(2 * self._interval, LONGEST_INTERVAL)
        self._next = trials + self._interval
        for name, sizes in measured.items():
            before = () if moved else self._pools.get(name, ())
            self._pools[name] = [(*old, *new) for old, new in zip(before, sizes, strict=True)] if before else [*sizes]


def contender_indices(gains: Floats, deviation: float, most: int, least: int = 2) -> list[int]:
    """Return the indices of `gains` (logarithms of speed-ups at one size, nan if missing) that may be the best.

    The indices are sorted, best gain first. A point is left out if noise cannot explain its distance from the best.

    deviation: standard deviation of the logarithm of a time; that of a gain is sqrt(2) times as large
    most:      maximum number of indices to return; least: minimum number, if there are that many
    """
    order = [int(index) for index in np.argsort(-np.where(np.isfinite(gains), gains, -np.inf), kind="stable")]
    order = [index for index in order if np.isfinite(gains[index])]
    reach = CONTENDER_DEVIATIONS * 2**0.5 * deviation
    near = [index for index in order if gains[index] >= gains[order[0]] - reach]
    return order[: min(max(len(near), least), most)]


def race_ratio(deviation: float) -> float:
    """Return the multiple of the best time above which a program is dropped after its first repetitions."""
    return float(np.exp(max(RACE_LEAST, RACE_DEVIATIONS * 2**0.5 * deviation)))


def _middle(times: Sequence[float]) -> float:
    """Return the logarithm of the median of the usable `times`; nan if no time is finite and positive."""
    usable = [time for time in times if np.isfinite(time) and time > 0]
    return float(np.log(np.median(usable))) if usable else float("nan")
