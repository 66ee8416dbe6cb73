"""Runs a launch's final comparison: measures each size's best programs again, side by side with the baselines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from chorale.runners.api.base import Outcome, RunFailure, RunRequest, Workers, completions, library_result
from chorale.synth.programs.program import AnyProgram
from chorale.synth.targets.lift import lift_code
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.statistics.contest import ContestRules, SizeContest, contender_indices
from chorale.tuner.trials import records
from chorale.tuner.trials.store import Store

if TYPE_CHECKING:
    from chorale.tuner.launch.loop import RequestBuilder

_log = logging.getLogger("chorale.controller")

FIRST_BATCH = 4
Times = dict[str, list[float]]


def final_limit_s(minutes: float | None, trials_s: float, sizes: int) -> float:
    """Return the time in seconds after which the final comparison starts no new measurement.

    minutes:  limit given by the campaign; if None, the limit is the time of all trials, but at least 20 s per size
    trials_s: total time of the trials
    """
    return max(trials_s, 20.0 * sizes) if minutes is None else 60 * minutes


def is_worth_comparing(campaign: Campaign, trials: Sequence[records.CompleteTrial]) -> bool:
    """Return whether to compare finalists: true if there are several, or one that beats the baselines at some size.

    If one winner must be chosen for all sizes, a single finalist is not enough.
    """
    best = records.finalists(trials)
    faster = any(size.speedup > 1 for trial in best for size in trial.sizes)
    return len(best) >= 2 or (faster and not campaign.one_winner)


@dataclass(slots=True)
class FinalRound:
    """Compares the best programs of a launch when its trials are over."""

    campaign: Campaign
    store: Store
    workers: Workers
    requests: RequestBuilder
    _trials: dict[str, records.CompleteTrial] = field(default_factory=dict)
    _times: dict[int, Times] = field(default_factory=dict)
    _number: int = 0

    def compare(
        self, trials: Sequence[records.CompleteTrial], number: int, clock_s: Callable[[], float]
    ) -> records.FinalComparison | None:
        """Measure the finalists together. Return the comparison, or None if nothing could be measured.

        number: number of the first measurement; each measurement adds its number to the campaign's seed
        """
        self._number = number
        if self.campaign.one_winner:
            # Measure all programs in `best` once, at all sizes
            best = records.finalists(trials)
            self._trials = {trial.trial_id: trial for trial in best}
            outcome = self._submitted(self.requests.run({t.trial_id: self._loaded(t) for t in best}, self._number))
            if isinstance(outcome, RunFailure):
                _log.warning("the final comparison failed (%s); the results of the trials are used", outcome.message)
                return None
            references, weights = self.requests.references, self.campaign.size_weights
            return records.FinalComparison(
                {name: records.size_results(outcome, name, references, weights, {}) for name in self._trials}, 0
            )
        contests = self._contests([trial for trial in trials if trial.same_program_as is None])
        _log.info("final comparison: %d programs, size by size", len(self._trials))
        trials_s = sum(trial.seconds for trial in trials)
        limit_s = final_limit_s(self.campaign.final.minutes, trials_s, len(self.campaign.sizes))
        deadline_s = clock_s() + limit_s
        while open_contests := [contest for contest in contests if contest.batch[0]]:
            groups: dict[tuple[tuple[str, ...], int], list[SizeContest]] = {}
            for contest in open_contests:  # contests with the same batch share measurements
                groups.setdefault(contest.batch, []).append(contest)
            for group in groups.values():
                self._launch(group)
            if clock_s() >= deadline_s:
                break
        verdicts = [contest.verdict() for contest in contests]
        if any(verdict is None for verdict in verdicts):
            return None
        results = {name: tuple(self._results(trial)) for name, trial in self._trials.items()}
        return records.FinalComparison(results, 0, tuple(verdict for verdict in verdicts if verdict is not None))

    def _contests(self, trials: Sequence[records.CompleteTrial]) -> list[SizeContest]:
        """Return a contest for each size: a repeated comparison of the trials that may be the fastest at this size."""
        deviation = records.controls_of(trials).deviation
        gains = np.log([[size.speedup for size in trial.sizes] for trial in trials])
        # Contests are evaluated after FIRST_BATCH measurements, and then whenever their number has doubled.
        batches = []
        count = FIRST_BATCH
        while count < self.campaign.final.launches:
            batches.append(count)
            count *= 2
        rules = ContestRules(batches=(*batches, self.campaign.final.launches))
        contests = []
        for index, size_bytes in enumerate(self.campaign.sizes):
            near = contender_indices(gains[:, index], deviation, self.campaign.final.contenders)
            chosen = [trials[place] for place in near]
            self._trials |= {trial.trial_id: trial for trial in chosen}
            names = [trial.trial_id for trial in chosen]
            contests.append(SizeContest(size_bytes, list(self.requests.references.values()), names, rules))
            self._times[size_bytes] = {}
        return contests

    def _launch(self, group: Sequence[SizeContest]) -> None:
        """Run the next measurement for the contests in `group`, which compare the same programs at different sizes."""
        names, _ = group[0].batch
        outcome = self._submitted(self._request(names, [contest.size_bytes for contest in group]))
        if isinstance(outcome, RunFailure):
            _log.warning("a launch of the final comparison failed (%s)", outcome.message)
            for contest in group:
                contest.give_up()
            return
        for index, contest in enumerate(group):
            measured = {
                self.requests.references.get(name, name): outcome.results[name][index].times_s
                for name in outcome.results
            }
            for name, times_s in measured.items():
                self._times[contest.size_bytes].setdefault(name, []).extend(times_s)
            contest.add({name: list(times) for name, times in measured.items()})

    def _request(self, names: Sequence[str], sizes_bytes: Sequence[int]) -> RunRequest:
        programs = {name: self._trials[name] for name in names if name in self._trials}
        request = self.requests.run({name: self._loaded(trial) for name, trial in programs.items()}, self._number)
        self._number += 1
        wanted = {result for result, name in self.requests.references.items() if name in names}
        library = tuple(name for name in request.library if library_result(name) in wanted)
        kept = {name: one for name, one in request.programs.items() if name in programs or name in wanted}
        return replace(request, programs=kept, library=library, sizes_bytes=tuple(sizes_bytes))

    def _submitted(self, request: RunRequest) -> Outcome:
        timeout_s = request.timeout_s * max(len(request.programs), 2) / 2
        future = self.workers.measure(replace(request, timeout_s=timeout_s))
        outcome: Outcome = completions(self.workers, [future])[0].value
        return outcome

    def _loaded(self, trial: records.CompleteTrial) -> tuple[records.Candidate, AnyProgram]:
        return trial.candidate, lift_code(self.store.program_path(trial.program_id).read_bytes())

    def _results(self, trial: records.CompleteTrial) -> Iterator[records.SizeResult]:
        """Yield a finalist's result at each size; at sizes that were not measured again, it is that of the trial."""
        for result in trial.sizes:
            times = self._times[result.size_bytes]
            baselines = {name: tuple(times[name]) for name in result.baseline_times_s if name in times}
            if trial.trial_id in times and baselines:
                yield replace(result, times_s=tuple(times[trial.trial_id]), baseline_times_s=baselines, beside=True)
            else:
                yield result
