"""One campaign on a recorded task: the search asks, the record with noise answers, and a contest per size decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chorale.tuner.replay.noise import Noise
from chorale.tuner.replay.rivals import Chooser, ForestSearch, HalvingSearch
from chorale.tuner.replay.tasks import GridTask
from chorale.tuner.search.prior import Prior
from chorale.tuner.search.search import Search, SearchPlan
from chorale.tuner.search.storage import storage_in_memory
from chorale.tuner.statistics.contest import ContestRules, SizeContest, SizeVerdict
from chorale.tuner.statistics.controls import FIRST_CONTROL, Controls, contender_indices, race_ratio
from chorale.tuner.trials.records import Candidate, CompleteTrial, SizeResult
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP

Floats = NDArray[np.float64]

LIBRARY = "library"
REPEATS, FIRST_REPEATS = 5, 1
MOST_CONTENDERS = 8


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """thrifty: whether baselines are measured only as drift demands and sizes race; else all of every trial"""

    trials: int
    noise: Noise
    sampler: str = "sizes-gp"
    thrifty: bool = True
    repeats: int = REPEATS
    rules: ContestRules = field(default_factory=ContestRules)


@dataclass(slots=True)
class ReplayedCampaign:
    """A campaign under way on `task`; `seed` fixes search and noise.

    seconds: measured so far, the sum of all repetitions
    behind:  after each trial, (trials, sizes): true time of what would be run over that of the best there is
    spent_s: seconds after each trial
    """

    task: GridTask
    options: ReplayOptions
    seed: int
    prior: Prior | None = None
    seconds: float = 0.0
    behind: list[Floats] = field(default_factory=list)
    spent_s: list[float] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    launches: int = 0
    _gains: list[Floats] = field(default_factory=list)
    _controls: Controls = field(default_factory=Controls)
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng([self.seed, 2024])

    def search(self, until: float = 0.0) -> None:
        """Run the trials, or until the mean over the sizes is within the factor `until` of the best."""
        numbers = {candidate: number for number, candidate in enumerate(self.task.candidates)}
        chooser = self._chooser()
        while len(self.tried) < self.options.trials and (choice := chooser.ask()) is not None:
            candidate, repeats = choice
            chooser.tell(self._trial(numbers[candidate], repeats))
            if until and mean_behind(self.behind[-1]) <= until:
                return

    def _chooser(self) -> Chooser:
        task, options = self.task, self.options
        if options.sampler == "forest":
            return ForestSearch(task.candidates, options.trials, self.seed)
        if options.sampler == "halving":
            return HalvingSearch(task.candidates, options.trials, options.repeats, self.seed)
        plan = SearchPlan(
            task.space(self.seed),
            "replay",
            options.sampler,
            self.seed,
            lambda one: one.id,
            task.sizes_bytes,
            priors=() if self.prior is None else (self.prior,),
        )
        return _StudySearch(Search(plan, storage_in_memory()))

    def verdicts(self) -> list[SizeVerdict]:
        """Compare the contenders of each size, and return what that says, in the order of the sizes."""
        return [self._verdict(index) for index in range(len(self.task.sizes_bytes))]

    def _trial(self, number: int, repeats: int | None) -> CompleteTrial:
        """Measure configuration `number` as the next trial, so often if `repeats` says so."""
        trials, thrifty = len(self.tried), self.options.thrifty
        if not thrifty or self._controls.is_due(trials):
            control = self._measure(self.task.library_s[None, :], self._control_repeats)[0]
            times = {LIBRARY: tuple(map(tuple, control.tolist()))}
            if not thrifty:
                self._controls = Controls()
            self._controls.add(times, trials)
        own = self._raced(number) if thrifty and repeats is None else self._all_repeats(number, repeats)
        self.launches += 1
        baseline = self._controls.times_s[LIBRARY]
        sizes = tuple(
            SizeResult(size, size, times, {LIBRARY: beside})
            for size, times, beside in zip(self.task.sizes_bytes, own, baseline, strict=True)
        )
        self._take(number, sizes)
        candidate = self.task.candidates[number]
        return CompleteTrial(candidate.id, trials + 1, candidate, 0.0, 0.0, "", candidate.id, sizes)

    @property
    def _control_repeats(self) -> int:
        if not self.options.thrifty:
            return self.options.repeats
        return min(max(self._controls.repeats, 1 if self.tried else FIRST_CONTROL), self.options.repeats)

    def _all_repeats(self, number: int, repeats: int | None) -> list[tuple[float, ...]]:
        measured = self._measure(self.task.times_s[number][None, :], repeats or self.options.repeats)[0]
        return [tuple(times) for times in measured.tolist()]

    def _raced(self, number: int) -> list[tuple[float, ...]]:
        """Measure once at every size, and on where the first time is not clearly behind the best so far."""
        true_s, repeats = self.task.times_s[number][None, :], min(self._controls.repeats, self.options.repeats)
        drawn = self.options.noise.draw(true_s, repeats, self.launches, self._random)[0]
        best = np.maximum(np.max(self._gains, axis=0), 0.0) if self._gains else np.zeros(len(drawn))
        baseline = np.array([np.median(times) for times in self._controls.times_s[LIBRARY]])
        limits = baseline * np.exp(-best) * race_ratio(self._controls.deviation)
        counts = np.where(drawn[:, 0] > limits, FIRST_REPEATS, repeats)
        measured = [tuple(times[:count]) for times, count in zip(drawn.tolist(), counts, strict=True)]
        self.seconds += sum(map(sum, measured))
        return measured

    def _take(self, number: int, sizes: Sequence[SizeResult]) -> None:
        for before, earlier in enumerate(self.tried):
            if earlier == number:  # what is measured again counts as it was measured last
                self._gains[before] = np.full(len(sizes), -np.inf)
        self.tried.append(number)
        self._gains.append(np.log([size.speedup for size in sizes]))
        gains = np.array(self._gains)
        best = gains.argmax(axis=0)
        columns = np.arange(len(sizes))
        wins = gains[best, columns] >= np.log(MIN_SPEEDUP)
        runs_s = np.where(wins, self.task.times_s[np.array(self.tried)[best], columns], self.task.library_s)
        self.behind.append(runs_s / self.task.best_s)
        self.spent_s.append(self.seconds)

    def _verdict(self, index: int) -> SizeVerdict:
        gains = np.array([gains[index] for gains in self._gains])
        near = contender_indices(gains, self._controls.deviation, MOST_CONTENDERS)
        numbers = [self.tried[place] for place in near]
        size = self.task.sizes_bytes[index]
        contest = SizeContest(size, [LIBRARY], [str(number) for number in numbers], self.options.rules)
        true_s = {LIBRARY: self.task.library_s[index], **{str(n): self.task.times_s[n, index] for n in numbers}}
        while (batch := contest.batch)[0]:
            names = batch[0]
            for _ in range(batch[1]):
                drawn = self._measure(np.array([[true_s[name]] for name in names]), self.options.repeats)
                self.launches += 1
                contest.add(dict(zip(names, drawn[:, 0].tolist(), strict=True)))
        verdict = contest.verdict()
        assert verdict is not None
        return verdict

    def _measure(self, true_s: Floats, repeats: int) -> Floats:
        """Return a launch of programs with the times `true_s` (programs, sizes): (programs, sizes, repetitions)."""
        drawn = self.options.noise.draw(true_s, repeats, self.launches, self._random)
        self.seconds += float(drawn.sum())
        return drawn


@dataclass(slots=True)
class _StudySearch:
    """The search of campaigns."""

    search: Search
    _ticket: int = 0

    def ask(self) -> tuple[Candidate, int | None] | None:
        suggestion = self.search.ask()
        if suggestion is None:
            return None
        self._ticket = suggestion.ticket
        return suggestion.candidate, None

    def tell(self, record: CompleteTrial) -> None:
        self.search.tell(self._ticket, record)


def mean_behind(behind: Floats) -> float:
    """Return the geometric mean over the sizes."""
    return float(np.exp(np.log(behind).mean()))
