"""Simulates campaigns on recorded runs: each measurement is a recorded time with random noise.

Two other searches are available for comparison: a random forest as in SMAC, and successive halving. Like Optuna's
samplers, they see only one value per trial, the mean over sizes of the logarithm of the speed-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from chorale.runners.recorded.table import RecordedTable
from chorale.synth.errors import InvalidInput, unknown_name
from chorale.tuner.replay.tasks import GridTask, named_tasks, read_records, replay_tasks
from chorale.tuner.search.search import Search, SearchPlan, log_speedup
from chorale.tuner.search.size_model import Floats, Prior, axes_of, nearest_sizes
from chorale.tuner.statistics import contest as contests
from chorale.tuner.trials.records import MIN_SPEEDUP, Candidate, CompleteTrial, SizeResult

NOISES = ("none", "lognormal:0.05", "lognormal:0.15", "outliers", "drift", "bimodal", "launch")

BASE = 0.02  # deviation of single repetitions in kinds of noise that model another effect
OUTLIER_SHARE, OUTLIER_SCALE = 0.1, 0.5
DRIFT, DRIFT_LAUNCHES = 0.2, 60.0
SLOW_SHARE, SLOW_FACTOR = 0.3, 1.2
LIBRARY = "library"
REPEATS, FIRST_REPEATS = 5, 1
GOAL, WRONG = 1.05, 1.05
SAMPLERS = ("sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid", "forest", "halving")
Choices = Generator[tuple[Candidate, int | None], CompleteTrial]
"""Generator that yields a candidate and its number of repetitions (None: default), and then receives the trial."""
FIRST_SHARE = 4
"""The random-forest search starts with random trials: 1 / `FIRST_SHARE` of all trials, but at least three."""
TREES, FEATURES, CHANCE = 10, 5 / 6, 0.2


@dataclass(frozen=True, slots=True)
class Noise:
    """The kind of random noise that is added to recorded times.

    none:        recorded times without noise
    lognormal:S  independent noise in every repetition; its logarithm has standard deviation S
    outliers:    2 % noise, and one repetition in ten takes 1 + 0.5 / u times as long, with u uniform in (0.001, 1)
    drift:       2 % noise, and all programs alternately get 20 % slower and faster, with a period of 60 launches
    bimodal:     2 % noise, and in three of ten launches a program is in a mode in which it takes 1.2 times as long
    launch:      2 % noise, and each launch of a program has a random factor; its logarithm has standard deviation 5 %

    A launch is one start of the programs' processes. `bimodal` and `launch` draw factors independently for every size.
    """

    kind: str
    deviation: float = BASE

    @staticmethod
    def parse(text: str) -> Noise:
        """Return the noise called `text`. Raises InvalidInput for an unknown name."""
        kind, _, number = text.partition(":")
        if kind == "lognormal":
            try:
                deviation = float(number)
            except ValueError:
                deviation = -1.0
            if 0 < deviation <= 1:
                return Noise(kind, deviation)
        elif text in NOISES:
            return Noise(kind, 0.0 if kind == "none" else BASE)
        raise unknown_name("noise", text, NOISES)

    def draw(self, times_s: Floats, repeats: int, launch: int, random: np.random.Generator) -> Floats:
        """Return the noisy times of one launch in seconds, shape (programs, sizes, repeats).

        times_s: times without noise (programs, sizes)
        launch:  the launch's number, for noise that changes with time
        """
        shape = (*times_s.shape, repeats)
        logarithms = random.normal(0.0, self.deviation, shape) if self.deviation else np.zeros(shape)
        if self.kind == "outliers":
            longer = np.log1p(OUTLIER_SCALE / random.uniform(1e-3, 1.0, shape))
            logarithms += np.where(random.uniform(size=shape) < OUTLIER_SHARE, longer, 0.0)
        elif self.kind == "drift":
            logarithms += DRIFT * np.sin(2 * np.pi * (launch + np.arange(repeats) / repeats) / DRIFT_LAUNCHES)
        elif self.kind == "bimodal":
            slow = random.uniform(size=(*times_s.shape, 1)) < SLOW_SHARE
            logarithms += np.where(slow, np.log(SLOW_FACTOR), 0.0)
        elif self.kind == "launch":
            logarithms += random.normal(0.0, 0.05, (*times_s.shape, 1))
        return np.asarray(times_s[..., None] * np.exp(logarithms))


def forest_choices(points: Sequence[Candidate], trials: int, seed: int) -> Choices:
    """Choose candidates by their expected improvement under a random forest; one trial in five is random.

    Source: Hutter, Hoos and Leyton-Brown, Sequential model-based optimization for general algorithm configuration,
    2011, section 4. The numbers of trees, features and random trials are those that SMAC3 uses to tune parameters.
    """
    from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - takes a second and is rarely needed

    random = np.random.default_rng([seed, 7])
    columns: list[Floats] = []  # one column per numeric parameter, and one per value of each named parameter
    for axis in axes_of(points):
        if axis.is_named:
            columns += [np.asarray(axis.values == value, dtype=float) for value in np.unique(axis.values)]
        else:
            columns.append(np.nan_to_num(axis.values, nan=-1.0))
    features = np.array(columns).T if columns else np.zeros((len(points), 1))
    others = [int(number) for number in random.permutation(len(points))]
    tried: list[int] = []
    values: list[float] = []
    while others:
        number = others[0]
        if len(values) >= max(3, trials // FIRST_SHARE) and random.uniform() >= CHANCE:
            forest = RandomForestRegressor(TREES, max_features=FEATURES, random_state=len(values) + seed)
            forest.fit(features[tried], values)
            guesses = np.array([tree.predict(features[others]) for tree in forest.estimators_])
            mean, deviation = guesses.mean(axis=0), np.maximum(guesses.std(axis=0), 1e-9)
            standard = (mean - max(values)) / deviation
            density = np.exp(-(standard**2) / 2) / math.sqrt(2 * math.pi)
            number = others[int(np.argmax(deviation * (standard * ndtr(standard) + density)))]
        others.remove(number)
        tried.append(number)
        values.append(mean_gain((yield points[number], None)))


def halving_choices(points: Sequence[Candidate], trials: int, most: int, seed: int) -> Choices:
    """Choose candidates by successive halving, with up to `most` repetitions.

    A first group of candidates, as large as `trials` allows, is measured once, then its better half with twice as many
    repetitions, and so on. The remaining points follow in further groups of this size.

    Source: Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, 2016,
    figure 3, which calls the groups brackets.
    """
    untried = [points[number] for number in np.random.default_rng([seed, 7]).permutation(len(points))]
    rungs = [min(2**rung, most) for rung in range(max(math.ceil(math.log2(most)) + 1, 1))]
    first = max(math.ceil(trials / sum(0.5**rung for rung in range(len(rungs)))), 1)
    while untried:
        bracket, untried = untried[:first], untried[first:]
        for repeats in rungs:
            gains = {}
            for candidate in bracket:
                gains[candidate] = mean_gain((yield candidate, repeats))
            bracket = sorted(gains, key=lambda candidate: -gains[candidate])[: max(len(bracket) // 2, 1)]


def study_choices(search: Search) -> Choices:
    while (suggestion := search.ask()) is not None:
        search.tell(suggestion.ticket, (yield suggestion.candidate, None))


def mean_gain(record: CompleteTrial) -> float:
    """Return the logarithm of the speed-up, averaged over the sizes."""
    return float(np.mean([log_speedup(size) for size in record.sizes]))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options for a replayed campaign.

    trials:  maximum number of trials
    repeats: maximum number of repetitions in each trial
    rules:   error probabilities and stopping rules of the final comparison
    thrifty: whether to avoid measurements as campaigns do: baselines are measured only as often as drift requires, and
             sizes at which a candidate is clearly slower are not repeated. Otherwise every trial measures everything.
    """

    trials: int
    noise: Noise
    sampler: str = "sizes-gp"
    thrifty: bool = True
    repeats: int = REPEATS
    rules: contests.ContestRules = field(default_factory=contests.ContestRules)


@dataclass(slots=True)
class ReplayedCampaign:
    """Simulates a campaign on `task`; `seed` determines the search and the noise.

    seconds: simulated measuring time so far, the sum of all repetitions
    behind:  true time of the program chosen after each trial, divided by the best possible time (trials, sizes)
    spent_s: value of `seconds` after each trial
    tried:   index in `task.candidates` of each trial's candidate
    launches: number of simulated launches so far, on which some kinds of noise depend
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
    _controls: contests.Controls = field(default_factory=contests.Controls)
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng([self.seed, 2024])

    def search(self, until: float = 0.0) -> None:
        """Run the trials.

        until: if not 0, stop as soon as the chosen program's time is at most this multiple of the best time, averaged
               over sizes
        """
        numbers = {candidate: number for number, candidate in enumerate(self.task.candidates)}
        choices = self._choices()
        with suppress(StopIteration):
            candidate, repeats = next(choices)
            while True:
                record = self._trial(numbers[candidate], repeats)
                is_near = until and mean_behind(self.behind[-1]) <= until
                if is_near or len(self.tried) >= self.options.trials:
                    return
                candidate, repeats = choices.send(record)

    def _choices(self) -> Choices:
        task, options = self.task, self.options
        if options.sampler == "forest":
            return forest_choices(task.candidates, options.trials, self.seed)
        if options.sampler == "halving":
            return halving_choices(task.candidates, options.trials, options.repeats, self.seed)
        space, priors = task.space(self.seed), () if self.prior is None else (self.prior,)
        plan = SearchPlan(
            space, "replay", options.sampler, self.seed, lambda one: one.id, task.sizes_bytes, priors=priors
        )
        return study_choices(Search(plan))

    def verdicts(self) -> list[contests.SizeVerdict]:
        """Compare the contenders at each size, and return the conclusions in the order of the sizes."""
        return [self._verdict(index) for index in range(len(self.task.sizes_bytes))]

    def _trial(self, number: int, repeats: int | None) -> CompleteTrial:
        """Measure configuration `number` as the next trial. If `repeats` is None, use the default repetitions."""
        trials, thrifty, most = len(self.tried), self.options.thrifty, self.options.repeats
        if not thrifty or self._controls.is_due(trials):
            first = max(self._controls.repeats, 1 if self.tried else contests.FIRST_CONTROL)
            control = self._measure(self.task.library_s[None, :], min(first, most) if thrifty else most)[0]
            if not thrifty:
                self._controls = contests.Controls()
            self._controls.add({LIBRARY: tuple(map(tuple, control.tolist()))}, trials)
        if thrifty and repeats is None:
            # Repeat only at the sizes at which the first repetition is not clearly slower than the best program so far
            count = min(self._controls.repeats, most)
            drawn = self.options.noise.draw(self.task.times_s[number][None, :], count, self.launches, self._random)[0]
            best = np.maximum(np.max(self._gains, axis=0), 0.0) if self._gains else np.zeros(len(drawn))
            usual = np.array([np.median(times) for times in self._controls.times_s[LIBRARY]])
            limits = usual * np.exp(-best) * contests.race_ratio(self._controls.deviation)
            counts = np.where(drawn[:, 0] > limits, FIRST_REPEATS, count)
            own = [tuple(times[:kept]) for times, kept in zip(drawn.tolist(), counts, strict=True)]
            self.seconds += sum(map(sum, own))
        else:
            own = [
                tuple(each) for each in self._measure(self.task.times_s[number][None, :], repeats or most)[0].tolist()
            ]
        self.launches += 1
        baseline = self._controls.times_s[LIBRARY]
        sizes = tuple(
            SizeResult(size, size, times, {LIBRARY: beside})
            for size, times, beside in zip(self.task.sizes_bytes, own, baseline, strict=True)
        )
        for before, earlier in enumerate(self.tried):
            if earlier == number:  # only the latest measurement of a configuration counts
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
        candidate = self.task.candidates[number]
        return CompleteTrial(candidate.id, trials + 1, candidate, 0.0, 0.0, "", candidate.id, sizes)

    def _verdict(self, index: int) -> contests.SizeVerdict:
        gains = np.array([gains[index] for gains in self._gains])
        near = contests.contender_indices(gains, self._controls.deviation, 8)
        numbers = [self.tried[place] for place in near]
        size = self.task.sizes_bytes[index]
        contest = contests.SizeContest(size, [LIBRARY], [str(number) for number in numbers], self.options.rules)
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
        """Return the measured times of a simulated launch in seconds, shape (programs, sizes, repetitions).

        true_s: true times of the programs in seconds (programs, sizes)
        """
        drawn = self.options.noise.draw(true_s, repeats, self.launches, self._random)
        self.seconds += float(drawn.sum())
        return drawn


def mean_behind(behind: Floats) -> float:
    """Return the geometric mean of `behind`, which has for each size a time divided by the best time at this size."""
    return float(np.exp(np.log(behind).mean()))


def prior_from(tasks: Sequence[GridTask], target: GridTask) -> Prior | None:
    """Return a prior for the points of `target` from the other `tasks` with the same collective.

    Gains are taken at the nearest sizes and averaged over tasks. Returns None if no other task has any of the points.
    """
    others = [task for task in tasks if task.name != target.name and task.collective == target.collective]
    gains: dict[object, list[np.ndarray]] = {}
    for task in others:
        nearest = nearest_sizes(task.sizes_bytes, target.sizes_bytes)
        for candidate, times in zip(task.candidates, task.times_s, strict=True):
            gains.setdefault(candidate, []).append(np.log(task.library_s / times)[nearest])
    known = {one: np.mean(gains[one], axis=0) for one in target.candidates if one in gains}
    return Prior(known) if known else None


def replayed(task: GridTask, options: ReplayOptions, seed: int, prior: Prior | None = None) -> dict[str, float]:
    """Replay one campaign on `task` and return its statistics.

    trials_mean, trials_all: number of trials after which the choices take at most 5 % longer than the best of the
      library and all configurations, on average over the sizes or at every size; if never, all trials plus one
    seconds: measuring time of the first `trials_mean` trials
    full_seconds: measuring time until a campaign without `thrifty` and without a prior reaches the same goal
    final_seconds: measuring time of the final comparisons
    wrong_entries: fraction of the tuning table's entries that are decided although their choice takes over 5 % longer
      than the best of the library and the programs tried
    undecided:     fraction of entries without a decision
    false_wins:    fraction of entries with a program that is not faster than the library
    coverage:      fraction of entries whose interval contains the true speed-up of the leading program
    """
    campaign = ReplayedCampaign(task, options, seed, prior)
    campaign.search()
    searched_s = campaign.seconds
    near = [mean_behind(behind) <= GOAL for behind in campaign.behind]
    first = [*near, True].index(True)
    full = ReplayedCampaign(task, replace(options, thrifty=False), seed)
    full.search(until=GOAL)
    judged = []
    for index, verdict in enumerate(campaign.verdicts()):
        library_s = task.library_s[index]
        best_s = min(library_s, task.times_s[campaign.tried, index].min())
        runs_s = library_s if verdict.name is None else task.times_s[int(verdict.name), index]
        truth = library_s / task.times_s[int(verdict.leader), index]
        wrong = verdict.is_decided and runs_s > WRONG * best_s
        false_win = verdict.name is not None and runs_s >= library_s
        covered = verdict.speedup_low <= truth <= verdict.speedup_high
        judged.append((wrong, not verdict.is_decided, false_win, covered))
    shares = np.array(judged, dtype=float).mean(axis=0).tolist()
    return {
        "trials_mean": first + 1.0,
        "trials_all": [*(bool(np.all(behind <= GOAL)) for behind in campaign.behind), True].index(True) + 1.0,
        "seconds": campaign.spent_s[min(first, len(near) - 1)],
        "full_seconds": full.seconds,
        "final_seconds": campaign.seconds - searched_s,
        **dict(zip(("wrong_entries", "undecided", "false_wins", "coverage"), shares, strict=True)),
    }


def replay_document(
    records: Sequence[Path],
    trials: int,
    seeds: int,
    noise: str,
    sampler: str = "sizes-gp",
    prior: str | None = None,
    begin: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Replay campaigns on all tasks in the records; return the JSON document of `chorale replay`.

    prior: recorded task or fabric from whose results the search starts, or None
    begin: called with the name of each task when it begins

    Raises InvalidInput for unknown names.
    """
    started_s = time.monotonic()
    if sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS)
    drawn = Noise.parse(noise)
    tasks = replay_tasks(RecordedTable(read_records(records)))
    if prior is not None and not named_tasks(tasks, prior):
        names = ", ".join(task.name for task in tasks)
        raise InvalidInput("no recorded task is called '{}'", prior, f"name one of {names}, or a part")
    rows = []
    for task in tasks:
        begin(task.name)
        options = ReplayOptions(min(trials, len(task.candidates)), drawn, sampler)
        rows.append(
            task_row(task, options, seeds, None if prior is None else prior_from(named_tasks(tasks, prior), task))
        )
    return {"tasks": rows, "seconds": round(time.monotonic() - started_s, 3)}


def task_row(task: GridTask, options: ReplayOptions, seeds: int, prior: Prior | None = None) -> dict[str, Any]:
    """Return the report's row for a task, with means over `seeds` replayed campaigns."""
    replays = [replayed(task, options, seed, prior) for seed in range(seeds)]
    mean = {key: float(np.mean([each[key] for each in replays])) for key in replays[0]}
    return {
        "task": task.name,
        "candidates": len(task.candidates),
        "sizes": len(task.sizes_bytes),
        "trials": options.trials,
        "prior": prior is not None,
        "unchecked": task.unchecked,
        "trials_to_5pct_mean": mean["trials_mean"],
        "trials_to_5pct_all": mean["trials_all"],
        "seconds_ratio": mean["seconds"] / mean["full_seconds"],
        "seconds_to_5pct_mean": mean["seconds"],
        "final_seconds": mean["final_seconds"],
        "wrong_entries": mean["wrong_entries"],
        "undecided": mean["undecided"],
        "false_wins": mean["false_wins"],
        "coverage": None if options.noise.kind == "none" else mean["coverage"],
    }
