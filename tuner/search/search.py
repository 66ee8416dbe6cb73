"""The search: decides which candidate to try next. Every result is recorded in an Optuna study and its storage."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import NopPruner
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from chorale.synth.errors import CheckFailed, ChoraleError, Unavailable, cause_in
from chorale.tuner.files.read_write import set_file_aside
from chorale.tuner.search import study as studies
from chorale.tuner.search.size_model import AcquisitionOptimizer, Floats, Prior, PriorMix
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.search.study import open_storage, unreachable
from chorale.tuner.trials.records import Candidate, CompleteTrial, FailedTrial, SizeResult, TrialRecord

TRIAL_ID = "chorale.trial_id"
REPEAT_OF = "chorale.repeat_of"
MAX_REPEATS = 2  # repeated suggestions in a row after which an untried point is taken instead

_log = logging.getLogger("chorale.search")

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to try. `ticket` is the trial's number in Optuna, for `Search.tell`."""

    ticket: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Definition of a search.

    trial_id:         function that returns a candidate's trial id, as used in all records
    sizes_bytes:      sizes at which every candidate is measured
    weights:          weight of each size; empty means equal weights
    together:         whether one candidate is chosen for all sizes
    priors:           expected gains from other sources; used only by the sampler sizes-gp
    starts:           candidates to try first, best guess first; candidates outside the space are ignored
    parts:            objects that replace the sampler or the storage, a pruner, and callbacks
    """

    space: SearchSpace
    study: str
    sampler: str
    seed: int
    trial_id: Callable[[Candidate], str]
    sizes_bytes: tuple[int, ...] = ()
    together: bool = False
    starts: Sequence[Candidate] = ()
    weights: tuple[float, ...] = ()
    priors: Sequence[Prior] = ()
    parts: studies.StudyParts = field(default_factory=studies.StudyParts)


class Search:
    """An Optuna study over a finite space in which no point is tried twice.

    The first suggestions are the plan's `starts` or, without these, one point per method; then the sampler decides. If
    there are priors, their best point is suggested second. Once a prior has weight, the next suggestions come from the
    priors instead of the remaining first suggestions.

    If the sampler suggests a point again, the recorded value is reported to it; a point that makes no sense is pruned.
    After several such suggestions in a row, the next untried point in a seeded random order is taken. `ask` returns
    None when every point has been tried.

    Without `storage`, the study is lost when the process ends. `recorded` holds the trials of the launch so far; trials
    that the study lacks are added to it. Trials that were pending when the last process ended are marked as failed in
    the study and tried again first.
    """

    def __init__(
        self, plan: SearchPlan, storage: BaseStorage | None = None, recorded: Sequence[TrialRecord] = ()
    ) -> None:
        storage = InMemoryStorage() if storage is None else storage
        self._plan = plan
        self._distributions = {name: studies.distribution_of(values) for name, values in plan.space.dimensions.items()}
        self._records: dict[Candidate, TrialRecord] = {}
        self._notes: Counter[str] = Counter()
        self._gains: dict[Candidate, Floats] = {}  # logarithms of speed-ups at each size
        for trial in recorded:
            if trial.candidate in plan.space:
                self._remember(trial)
        self._taken = set(self._records)
        self._repeats = 0
        self._grid = iter(plan.space.points) if plan.sampler == studies.GRID else plan.space.shuffled(plan.seed)
        seed = plan.seed + len(recorded)  # a resumed search must not repeat its earlier random numbers
        self._priors = PriorMix(plan.priors if plan.sampler == studies.SIZES_GP else (), plan.space.points)
        self._choice = AcquisitionOptimizer(
            plan.space.points, plan.sizes_bytes, plan.together, seed, plan.weights, self._priors or None
        )
        optuna.create_study(study_name=plan.study, storage=storage, direction="maximize", load_if_exists=True)
        sampler = plan.parts.sampler or studies.make_sampler(plan.sampler, seed)
        self._study = studies.LaunchStudy(plan.study, storage, sampler, plan.parts.pruner or NopPruner())
        self._open: dict[int, Trial] = {}
        guesses = [candidate for candidate in plan.starts if candidate in plan.space]
        starts = [] if plan.sampler == studies.GRID else guesses or plan.space.starts()
        known = self._priors.starts()
        self._queue = iter([*self._settle_unfinished(), *starts[:1], *known[:1]])
        self._next_starts = {True: iter(known[1:]), False: iter(starts[1:])}  # key: whether any prior has weight
        self._import_records()

    def ask(self) -> Suggestion | None:
        """Return an untried candidate, or None if there is none."""
        while len(self._taken) < len(self._plan.space) and not self._study.is_stopped:
            planned = _first_not_in(self._taken, self._queue)
            if planned is None:
                planned = _first_not_in(self._taken, self._next_starts[bool(self._priors.weights(self._gains).any())])
            if planned is None and self._plan.sampler == studies.SIZES_GP:
                # The point with the highest expected improvement, None before the first measurement
                failed = [candidate for candidate in self._records if candidate not in self._gains]
                busy = sorted(self._taken.difference(self._records), key=lambda candidate: candidate.id)
                planned = self._choice.next(self._gains, failed, busy) if self._gains else None
            if planned is None and (
                self._plan.sampler in (studies.GRID, studies.SIZES_GP) or self._repeats >= MAX_REPEATS
            ):
                planned = _first_not_in(self._taken, self._grid)
            if planned is not None:
                self._study.enqueue_trial(studies.active_parameters(planned, self._plan.space))
            trial, candidate = self._suggested()
            if candidate in self._taken or candidate not in self._plan.space:
                self._repeats += 1
                record = self._records.get(candidate)
                trial.set_user_attr(REPEAT_OF, self._plan.trial_id(candidate))
                if candidate not in self._plan.space:
                    trial.set_constraint(studies.SENSIBLE, studies.BROKEN)
                    trial.set_user_attr(studies.REASON, self._plan.space.constraints.reason_not_to_try(candidate))
                    self._study.tell(trial.number, state=TrialState.PRUNED)
                elif record is None:  # pending: there is no value yet
                    self._study.tell(trial.number, state=TrialState.FAIL)
                else:
                    self._end(trial, record)
                continue
            self._repeats = 0
            self._taken.add(candidate)
            self._open[trial.number] = trial
            trial.set_user_attr(TRIAL_ID, self._plan.trial_id(candidate))
            return Suggestion(trial.number, candidate)
        return None

    def tell(self, ticket: int, record: TrialRecord) -> FrozenTrial:
        """Report the result of the suggestion with this ticket; return the study's updated trial."""
        self._remember(record)
        return self._end(self._open.pop(ticket), record)

    def report(self, ticket: int, step: int, size: SizeResult) -> bool:
        """Report the speed-up at the last size as an intermediate value; return whether to end the trial."""
        self._open[ticket].report(math.exp(studies.log_speedup(size)), step)
        return self._open[ticket].should_prune()

    def call_back(self, trial: FrozenTrial) -> None:
        """Call the user's callbacks for an ended trial. Raises CheckFailed if a callback fails."""
        for callback in self._plan.parts.callbacks:
            try:
                callback(self._study, trial)
            except Exception as error:
                name = getattr(callback, "__name__", type(callback).__name__)
                way_out = "fix it, then continue with resume: the launch's journal has every trial"
                value = f"{name}: {type(error).__name__}: {error}"
                raise CheckFailed("a callback raised {}", value, way_out) from error

    @property
    def prunes(self) -> bool:
        return self._plan.parts.prunes

    @property
    def end(self) -> str:
        return "the study was stopped" if self._study.is_stopped else "every point of the search space has been tried"

    @property
    def notes(self) -> dict[str, int]:
        """Return how often the sampler or its model failed, by the fallback that was used."""
        return dict(self._choice.notes + self._notes)

    @property
    def priors(self) -> list[dict[str, Any]]:
        """Return the priors: name, known points, and weight from 0 (dropped) to 1."""
        return self._priors.document(self._gains)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials in the study, including repeats (which carry the attribute `chorale.repeat_of`)."""
        return self._study.get_trials()

    def _suggested(self) -> tuple[Trial, Candidate]:
        """Ask the sampler for a candidate; if its arithmetic fails, choose at random."""
        try:
            return self._asked()
        except _ARITHMETIC:
            self._notes[f"the sampler {self._plan.sampler} broke down, and a point was drawn at random"] += 1
            sampler, self._study.sampler = self._study.sampler, studies.make_sampler("random", self._plan.seed)
            try:
                return self._asked()
            finally:
                self._study.sampler = sampler

    def _asked(self) -> tuple[Trial, Candidate]:
        trial = self._study.ask()
        try:
            return trial, studies.suggested_candidate(trial, self._plan.space, self._distributions)
        except _ARITHMETIC:
            self._study.tell(trial.number, state=TrialState.FAIL)
            raise

    def _remember(self, record: TrialRecord) -> None:
        self._records[record.candidate] = record
        if isinstance(record, CompleteTrial):
            self._gains[record.candidate] = np.array([studies.log_speedup(size) for size in record.sizes])

    def _end(self, trial: Trial, record: TrialRecord) -> FrozenTrial:
        """Record a trial's outcome in the study. A trial that another process has already ended is not changed."""
        outcome = studies.Outcome.of(record)
        with suppress(UpdateFinishedTrialError):
            for name, attribute in outcome.attributes.items():
                trial.set_user_attr(name, attribute)
            for name, excess in outcome.constraints.items():
                trial.set_constraint(name, excess)
        return self._study.tell(trial.number, outcome.speedup, state=outcome.state, skip_if_finished=True)

    def _settle_unfinished(self) -> list[Candidate]:
        """End the trials that the last process left running; return their candidates, which must be tried again."""
        unfinished = []
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            candidate = None  # if the process ended before all parameters were chosen
            if "method" in trial.params:
                asked = Candidate(**trial.params)
                whole = set(studies.active_parameters(asked, self._plan.space)) == set(trial.params)
                candidate = asked if whole and asked in self._plan.space else None
            record = self._records.get(candidate) if candidate else None
            if record is not None and TRIAL_ID in trial.user_attrs:
                self._end(Trial(self._study, trial._trial_id), record)
                continue
            self._study.tell(trial.number, state=TrialState.FAIL)
            if candidate is not None:
                unfinished.append(candidate)
        return unfinished

    def _import_records(self) -> None:
        in_study = {(trial.user_attrs.get(TRIAL_ID), trial.state) for trial in self.trials()}
        for record in self._records.values():
            outcome = studies.Outcome.of(record)
            if (record.trial_id, outcome.state) in in_study:
                continue
            parameters = studies.active_parameters(record.candidate, self._plan.space)
            sizes = () if isinstance(record, FailedTrial) else record.sizes
            trial = create_trial(
                params=parameters,
                distributions={name: self._distributions[name] for name in parameters},
                value=outcome.speedup,
                state=outcome.state,
                user_attrs=outcome.attributes | {TRIAL_ID: record.trial_id},
                intermediate_values={step: math.exp(studies.log_speedup(size)) for step, size in enumerate(sizes, 1)},
                constraints=outcome.constraints,
            )
            self._study.add_trial(trial)


_ARITHMETIC = (np.linalg.LinAlgError, ValueError, ArithmeticError, AssertionError)
"""Exceptions that samplers and their models raise for unexpected data."""


def _first_not_in(taken: set[Candidate], source: Iterator[Candidate]) -> Candidate | None:
    return next((candidate for candidate in source if candidate not in taken), None)


def open_search(plan: SearchPlan, url: str | None, journal: Path, recorded: Sequence[TrialRecord]) -> Search:
    """Open the search of `plan` in the storage at `url`, or in the file `journal`, with the trials `recorded`.

    A storage object in the plan takes precedence over both. If the file cannot be used, it is renamed, and a new one is
    created from `recorded`.
    """
    storage = plan.parts.storage
    try:
        return Search(plan, open_storage(url, journal) if storage is None else storage, recorded)
    except Exception as error:  # for a damaged file Optuna may raise anything; each storage has its own error types
        if url is not None or storage is not None:
            if isinstance(error, ChoraleError):
                raise
            raise unreachable(error) from None
        _log.warning(
            "%s cannot be used (%s); a new one is created from the journal",
            journal,
            " ".join(cause_in(str(error)).split())[-300:] or type(error).__name__,
        )
        _log.warning("the old one is now %s", set_file_aside(journal))
    return Search(plan, open_storage(None, journal), recorded)


_STORAGES = ("sqlalchemy", "sqlite3", "psycopg", "pymysql", "MySQLdb", "redis", "grpc", "optuna.storages")
"""Errors raised in these packages come from the trial storage."""


def search_failure(error: Exception, part: str = "sampler") -> ChoraleError:
    """Return the error to show to the user for `error`, which was raised by the storage or by `part` of the search."""
    cause: BaseException | None = error
    while cause is not None:  # whether it, or one of its causes, concerns files, databases or their drivers
        modules = {kind.__module__ for kind in type(cause).__mro__}
        is_driver = any(module.split(".")[0] in _STORAGES or module.startswith("optuna.storages") for module in modules)
        if isinstance(cause, OSError) or is_driver or type(cause).__name__ == "StorageInternalError":
            break
        cause = cause.__cause__
    if cause is not None:
        way_out = "repair `storage`, then continue with --resume: the launch's journal has every trial"
        return Unavailable("the Optuna storage failed: {}", error, way_out)
    way_out = f"choose another `{part}`, then continue with --resume: the launch's journal has every trial"
    rule = "the pruner must be able to decide on a trial"
    if part == "sampler":
        rule = "the sampler must be able to choose a point"
    return CheckFailed(rule, f"{type(error).__name__}: {error}", way_out)
