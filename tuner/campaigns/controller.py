"""The loop of a campaign: ask, prepare, measure, record, tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from runners.api import FailureKind, Measurement, Outcome, RunFailure
from runners.preparation import Prepared, Refusal
from runners.workshop import Finished, Workshop
from synth.errors import CheckFailed, ChoraleError, Unavailable
from synth.lowering.lift import lift
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.effort import MEASURING, ORDER, PREPARING, SAVE, SEARCH, SHOW, Effort
from tuner.campaigns.final import Final, finalists
from tuner.campaigns.orders import Orders
from tuner.campaigns.outcomes import UnderWay, size_results
from tuner.campaigns.records import CompleteTrial, TrialRecord, trial_id
from tuner.campaigns.search import Search, Suggestion
from tuner.campaigns.store import Store

_log = logging.getLogger("chorale.controller")

FINAL = "final"
WAIT_S = 0.5

Answer = TypeVar("Answer")
Listener = Callable[[TrialRecord], None]


@dataclass(frozen=True, slots=True)
class Clocks:
    """`monotonic_s` measures durations; `unix_s` dates records."""

    monotonic_s: Callable[[], float]
    unix_s: Callable[[], float]


class Controller:
    """Runs the trials of one launch until its budget or its search space is used up, or the disk is full.

    Each finished trial goes to the store first, then to the search, then to the listeners: whatever dies in
    between is repaired from the store. At most `campaign.parallel` trials are under way: one is measured, the
    others are prepared or wait. A candidate whose program was measured already shares that measurement.
    """

    def __init__(
        self,
        campaign: Campaign,
        topology: Topology,
        store: Store,
        search: Search,
        workshop: Workshop,
        clocks: Clocks,
        listeners: Sequence[Listener] = (),
        effort: Effort | None = None,
    ) -> None:
        self._campaign = campaign
        self._store = store
        self._search = search
        self._workshop = workshop
        self._clocks = clocks
        self._listeners = listeners
        self._effort = effort or Effort(clocks.monotonic_s)
        self._orders = Orders(campaign, topology)
        self._under_way: dict[str, UnderWay] = {}
        self._twins: dict[str, list[UnderWay]] = {}  # run key -> trials that wait for one with the same
        self._measured = {trial.run_key: trial for trial in store.trials if isinstance(trial, CompleteTrial)}
        self._next_number = 1 + max((trial.number for trial in store.trials), default=0)
        minutes = campaign.budget.minutes
        self._deadline_s = float("inf") if minutes is None else clocks.monotonic_s() + 60 * minutes
        self._exhausted = False

    def run(self) -> None:
        """Work until nothing is left to do.

        Raises CheckFailed if a baseline cannot be prepared and Unavailable if the runner or the search storage
        does not work. Trials that are under way when something is raised, KeyboardInterrupt included, are
        dropped; a resumed campaign starts with them.
        """
        if self._may_start():
            self._prepare_baselines()
        began_s = self._clocks.monotonic_s()
        try:
            self._start_trials()
            while self._under_way:
                for finished in self._workshop.wait(WAIT_S):
                    self._take(finished)
                self._start_trials()
        finally:
            self._effort.elapsed_s = self._clocks.monotonic_s() - began_s
        self._hold_final()

    def _prepare_baselines(self) -> None:
        recipes = self._orders.baseline_recipes()
        for key, recipe in recipes.items():
            self._workshop.prepare(key, recipe)
        while len(self._orders.baselines) < len(recipes):
            for finished in self._workshop.wait(WAIT_S):
                if not isinstance(finished.answer, Prepared):
                    value = getattr(finished.answer, "message", finished.answer)
                    way_out = "choose other `baselines` for this network"
                    raise CheckFailed(f"{finished.key} must be possible", value, way_out)
                self._orders.baselines[finished.key] = finished.answer

    def _may_start(self) -> bool:
        done = len(self._store.trials) + len(self._under_way)
        in_time = self._clocks.monotonic_s() < self._deadline_s
        return done < self._campaign.budget.trials and in_time and not self._exhausted and not self._store.is_stuck

    def _start_trials(self) -> None:
        while len(self._under_way) < self._campaign.parallel and self._may_start():
            with self._effort.on(SEARCH):
                suggestion = self._guarded(self._search.ask)
            if suggestion is None:
                self._exhausted = True
                _log.info("every point of the search space has been tried")
                return
            self._start(suggestion)

    def _start(self, suggestion: Suggestion) -> None:
        name = trial_id(self._store.launch.launch_id, suggestion.candidate)
        trial = UnderWay(suggestion, name, self._next_number, self._clocks.monotonic_s(), self._clocks.unix_s())
        self._next_number += 1
        self._under_way[name] = trial
        with self._effort.on(ORDER):
            self._workshop.prepare(name, self._orders.recipe(suggestion.candidate))

    def _take(self, finished: Finished) -> None:
        trial = self._under_way[finished.key]
        answer = finished.answer
        self._effort.worked(MEASURING if trial.prepared is not None else PREPARING, finished.seconds, finished.cpu_s)
        if isinstance(answer, Prepared):
            self._on_prepared(replace(trial, prepared=answer), answer)
        elif isinstance(answer, Refusal):
            self._finish(trial, trial.refused(self._clocks.monotonic_s(), answer))
        else:
            self._on_measured(trial, answer)

    def _on_prepared(self, trial: UnderWay, prepared: Prepared) -> None:
        self._under_way[trial.trial_id] = trial
        with self._effort.on(SAVE):
            self._store.keep(prepared.schedule_id, prepared.schedule, prepared.program_id, prepared.program_text)
        key = trial.run_key
        known = self._measured.get(key)
        if known is not None:
            self._finish(trial, trial.shared(self._clocks.monotonic_s(), known))
        elif key in self._twins:
            self._twins[key].append(trial)
        else:
            self._twins[key] = []
            with self._effort.on(ORDER):
                programs = {trial.trial_id: (trial.suggestion.candidate, prepared.program)}
                race = self._orders.race(trial.trial_id, self._measured.values())
                self._workshop.measure(trial.trial_id, self._orders.request(programs, trial.number, race))

    def _on_measured(self, trial: UnderWay, outcome: Outcome) -> None:
        if trial.prepared is None:
            raise RuntimeError("a trial was measured before it was prepared")
        self._require_runner(outcome)
        self._finish(trial, trial.measured(self._clocks.monotonic_s(), trial.prepared, outcome))
        twins = self._twins.pop(trial.run_key)
        if twins:  # they share the measurement, or the first of them is measured if there is none
            for twin in twins:
                self._on_prepared(twin, trial.prepared)

    def _finish(self, trial: UnderWay, record: TrialRecord) -> None:
        with self._effort.on(SAVE):
            self._store.add(record)
        self._effort.trials += 1
        if isinstance(record, CompleteTrial):
            self._measured.setdefault(record.run_key, record)
        del self._under_way[trial.trial_id]
        with self._effort.on(SEARCH):
            self._guarded(lambda: self._search.tell(trial.suggestion.ticket, record))
        with self._effort.on(SHOW):
            for listener in self._listeners:
                listener(record)

    def _hold_final(self) -> None:
        """Measure the best candidates side by side, unless there is nothing to compare or nothing new."""
        trials = self._store.trials
        runnable = [trial for trial in trials if isinstance(trial, CompleteTrial) and self._has_program(trial)]
        best = finalists(runnable)
        held = self._store.final is not None and self._store.final.trials == len(trials)
        if len(best) < 2 or held or self._store.is_stuck:
            return
        if not self._orders.baselines:
            self._prepare_baselines()
        _log.info("final: %d candidates side by side", len(best))
        programs = {
            trial.trial_id: (trial.candidate, lift(self._store.program_path(trial.program_id).read_bytes()))
            for trial in best
        }
        request = self._orders.request(programs, self._next_number)
        timeout_s = request.timeout_s * len(request.programs) / 2
        self._workshop.measure(FINAL, replace(request, timeout_s=timeout_s))
        answers: list[Finished] = []
        while not answers:
            answers = self._workshop.wait(WAIT_S)
        outcome = answers[0].answer
        if isinstance(outcome, Measurement):
            results = {trial.trial_id: size_results(outcome, trial.trial_id) for trial in best}
            self._store.add(Final(results, len(trials)))
        else:
            message = getattr(outcome, "message", "")
            _log.warning("the final gave no result (%s); the trials decide", message)

    def _has_program(self, trial: CompleteTrial) -> bool:
        return self._store.program_path(trial.program_id).exists()

    def _require_runner(self, outcome: Outcome) -> None:
        """Raise Unavailable if the runner says so before it has ever worked in this launch."""
        if isinstance(outcome, RunFailure) and outcome.kind == FailureKind.UNAVAILABLE and not self._measured:
            rule = f"the {self._campaign.runner.kind} runner must work here"
            raise Unavailable(rule, outcome.message, "see `chorale doctor`, or choose another `runner.kind`")

    def _guarded(self, step: Callable[[], Answer]) -> Answer:
        """Run a step of the search; a storage that stops working ends the campaign with a message."""
        try:
            return step()
        except ChoraleError:
            raise
        except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
            way_out = "repair `storage`, then go on with --resume: the launch's journal has every trial"
            raise Unavailable("the Optuna storage must keep working", error, way_out) from error
