"""The one door to Optuna: which candidate to try next, and what came of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from synth.errors import Unavailable
from tuner.campaigns.journal import set_torn_end_aside
from tuner.campaigns.records import Candidate, CompleteTrial, PrunedTrial, TrialRecord
from tuner.campaigns.space import SearchSpace, Value

TRIAL_ID = "chorale.trial_id"
REPEAT_OF = "chorale.repeat_of"
MOST_REPEATS = 2  # how often in a row the sampler may repeat itself before the grid decides

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to try. `ticket` is Optuna's number of the trial, for `Search.tell`."""

    ticket: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What defines a search. `trial_id` names the trial of a candidate, the same in every record."""

    space: SearchSpace
    study: str
    sampler: str
    seed: int
    trial_id: Callable[[Candidate], str]


class Search:
    """An Optuna study over a finite grid in which no point is tried twice.

    The first suggestions are one per method; then the sampler decides. A suggestion that was tried before is
    answered with its recorded value at once; when the sampler keeps repeating itself, the next unseen point of
    the grid in seeded order is taken. `ask` gives None when every point has been tried.

    `known` are the trials of the launch so far: those that the study has not heard of are added; trials that
    were under way when the last process ended fail in the study and come first again.
    """

    def __init__(self, plan: SearchPlan, storage: BaseStorage, known: Sequence[TrialRecord] = ()) -> None:
        self._plan = plan
        self._distributions = {name: _distribution(values) for name, values in plan.space.dimensions.items()}
        self._records = {trial.candidate: trial for trial in known if trial.candidate in plan.space}
        self._taken = set(self._records)
        self._repeats = 0
        self._grid = plan.space.shuffled(plan.seed)
        self._study = optuna.create_study(
            study_name=plan.study,
            storage=storage,
            # A resumed search must not draw again what it drew before.
            sampler=make_sampler(plan.sampler, plan.seed + len(known)),
            pruner=optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )
        self._queue = iter([*self._settle_unfinished(), *plan.space.starts()])
        self._import_records()

    def ask(self) -> Suggestion | None:
        """Return an untried candidate, or None if there is none."""
        while len(self._taken) < len(self._plan.space):
            planned = self._planned()
            if planned is not None:
                self._study.enqueue_trial(planned.parameters)
            trial = self._study.ask(self._distributions)
            candidate = _candidate(trial)
            if candidate in self._taken:
                self._answer_repeat(trial, candidate)
                continue
            self._repeats = 0
            self._taken.add(candidate)
            trial.set_user_attr(TRIAL_ID, self._plan.trial_id(candidate))
            return Suggestion(trial.number, candidate)
        return None

    def tell(self, ticket: int, record: TrialRecord) -> None:
        """Report what came of the suggestion with this ticket."""
        self._records[record.candidate] = record
        value = record.speedup if isinstance(record, CompleteTrial) else None
        self._study.tell(ticket, value, state=_state(record), skip_if_finished=True)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the study, repeats included (they carry the attribute `chorale.repeat_of`)."""
        return self._study.get_trials()

    def _planned(self) -> Candidate | None:
        """Return what must be tried next, whatever the sampler thinks."""
        planned = _first_not_in(self._taken, self._queue)
        if planned is None and self._repeats >= MOST_REPEATS:
            planned = _first_not_in(self._taken, self._grid)
        return planned

    def _answer_repeat(self, trial: Trial, candidate: Candidate) -> None:
        self._repeats += 1
        record = self._records.get(candidate)
        trial.set_user_attr(REPEAT_OF, self._plan.trial_id(candidate))
        if record is None:  # under way: there is no value yet
            self._study.tell(trial.number, state=TrialState.FAIL)
        else:
            self.tell(trial.number, record)

    def _settle_unfinished(self) -> list[Candidate]:
        """End the trials that the last process left running; return those that must be done again."""
        again = []
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            whole = set(trial.params) == set(self._distributions)
            record = self._records.get(_candidate(trial)) if whole else None
            if record is not None and TRIAL_ID in trial.user_attrs:
                self.tell(trial.number, record)
                continue
            self._study.tell(trial.number, state=TrialState.FAIL)
            if whole:
                again.append(_candidate(trial))
        return again

    def _import_records(self) -> None:
        """Add the trials that the launch recorded and the study never heard of."""
        heard = {(trial.user_attrs.get(TRIAL_ID), trial.state) for trial in self.trials()}
        for record in self._records.values():
            if (record.trial_id, _state(record)) not in heard:
                self._study.add_trial(
                    create_trial(
                        params=record.candidate.parameters,
                        distributions=self._distributions,
                        value=record.speedup if isinstance(record, CompleteTrial) else None,
                        state=_state(record),
                        user_attrs={TRIAL_ID: record.trial_id},
                    )
                )


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler called tpe, random, nsga2, qmc or gp (the last needs PyTorch)."""
    if name == "gp":
        try:
            return optuna.samplers.GPSampler(seed=seed)
        except ImportError as error:
            way_out = "install torch, or choose the sampler tpe"
            raise Unavailable("the gp sampler needs PyTorch", error, way_out) from error
    if name == "qmc":
        with warnings.catch_warnings():
            # Optuna calls it experimental; it is not used through anything that could change under us.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return QMCSampler(seed=seed, warn_independent_sampling=False)
    simple: dict[str, type[BaseSampler]] = {"tpe": TPESampler, "random": RandomSampler, "nsga2": NSGAIISampler}
    return simple[name](seed=seed)  # type: ignore[call-arg]


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Return the Optuna storage at `url`, or one in the file `journal`.

    The caller is the only writer of that file; a torn end that a crash left is set aside.
    """
    try:
        if url is not None:
            return optuna.storages.get_storage(url)
        set_torn_end_aside(journal)
        return JournalStorage(StudyJournal(str(journal)))
    except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
        way_out = "check `storage`; without it a journal file is used"
        raise Unavailable("the Optuna storage must be reachable", error, way_out) from error


class StudyJournal(JournalFileBackend):
    """Optuna's journal without a sync for every line: asking writes a line per dimension.

    Only a power cut can cost the latest lines; a search repairs its study from the journal of the launch.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with open(self._file_path, "ab") as journal:
            journal.write(text.encode())


def _distribution(values: Sequence[Value]) -> BaseDistribution:
    """Whole numbers in even steps are ordered; everything else is a choice."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values) > 1 and sorted(numbers) == numbers:
        steps = {later - earlier for earlier, later in pairwise(numbers)}
        if len(steps) == 1:
            return IntDistribution(numbers[0], numbers[-1], step=steps.pop())
    return CategoricalDistribution(tuple(values))


def _candidate(trial: Trial | FrozenTrial) -> Candidate:
    return Candidate(**trial.params)


def _state(record: TrialRecord) -> TrialState:
    if isinstance(record, CompleteTrial):
        return TrialState.COMPLETE
    return TrialState.PRUNED if isinstance(record, PrunedTrial) else TrialState.FAIL


def _first_not_in(taken: set[Candidate], source: Iterator[Candidate]) -> Candidate | None:
    return next((candidate for candidate in source if candidate not in taken), None)
