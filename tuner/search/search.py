"""The search: which candidate to try next, in an Optuna study that records every result."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from chorale.synth.errors import ChoraleError
from chorale.tuner.files.damaged_files import set_file_aside
from chorale.tuner.search.acquisition import AcquisitionOptimizer
from chorale.tuner.search.prior import Prior, PriorMix
from chorale.tuner.search.samplers import (
    GRID,
    SIZES_GP,
    active_parameters,
    distributions_of,
    make_sampler,
    suggested_candidate,
)
from chorale.tuner.search.size_model import Floats
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.search.storage import open_storage, unreachable
from chorale.tuner.trials.records import Candidate, CompleteTrial, PrunedTrial, SizeResult, TrialRecord

TRIAL_ID = "chorale.trial_id"
REPEAT_OF = "chorale.repeat_of"
MAX_REPEATS = 2  # how often in a row the sampler may repeat itself before the grid decides

_log = logging.getLogger("chorale.search")

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to try. `ticket` is Optuna's number of the trial, for `Search.tell`."""

    ticket: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What defines a search.

    trial_id:         names the trial of a candidate, the same in every record
    sizes_bytes:      at which every candidate is measured
    weights:          how much each size counts; none: all the same
    together:         whether one candidate is to serve all sizes
    second_objective: "none", or what the study minimizes beside the speed-up: "channels" or "blocks"
    priors:           what is known from elsewhere, for the sampler sizes-gp
    starts:           what is tried first, best guess first; those outside the space are left out
    """

    space: SearchSpace
    study: str
    sampler: str
    seed: int
    trial_id: Callable[[Candidate], str]
    sizes_bytes: tuple[int, ...] = ()
    together: bool = False
    second_objective: str = "none"
    starts: Sequence[Candidate] = ()
    weights: tuple[float, ...] = ()
    priors: Sequence[Prior] = ()

    @property
    def directions(self) -> list[Literal["maximize", "minimize"]]:
        return ["maximize"] if self.second_objective == "none" else ["maximize", "minimize"]

    def values(self, record: TrialRecord) -> list[float] | None:
        """Return the values of a trial in the study, None for one without a result."""
        if not isinstance(record, CompleteTrial):
            return None
        resources = {"none": [], "channels": [record.channels], "blocks": [record.blocks]}[self.second_objective]
        weights = np.array([size.weight for size in record.sizes])
        speedup = np.exp(np.average([log_speedup(size) for size in record.sizes], weights=weights))
        values = [float(speedup), *map(float, resources)]
        return values if np.all(np.isfinite(values)) else None


class Search:
    """An Optuna study over a finite space in which no point is tried twice.

    The first suggestions are the plan's, else one per method; then the sampler decides. With priors their best point
    comes second, and the rest of those only while no prior is believed. A suggestion that was tried
    before is answered with its recorded value at once, and one that makes no sense as pruned; when the sampler keeps
    to these, the next unseen point in seeded order is taken. `ask` gives None when every point has been tried.

    `recorded` are the trials of the launch so far: those that the study does not have are added. Trials that were
    pending when the last process ended fail in the study and come first again.
    """

    def __init__(self, plan: SearchPlan, storage: BaseStorage, recorded: Sequence[TrialRecord] = ()) -> None:
        self._plan = plan
        self._distributions = distributions_of(plan.space.dimensions)
        self._records: dict[Candidate, TrialRecord] = {}
        self._notes: Counter[str] = Counter()
        self._gains: dict[Candidate, Floats] = {}  # logarithms of speed-ups at each size
        for trial in recorded:
            if trial.candidate in plan.space:
                self._remember(trial)
        self._taken = set(self._records)
        self._repeats = 0
        self._grid = iter(plan.space.points) if plan.sampler == GRID else plan.space.shuffled(plan.seed)
        seed = plan.seed + len(recorded)  # a resumed search must not draw again what it drew before
        self._priors = PriorMix(plan.priors if plan.sampler == SIZES_GP else (), plan.space.points)
        self._choice = AcquisitionOptimizer(
            plan.space.points, plan.sizes_bytes, plan.together, seed, plan.weights, self._priors or None
        )
        self._study = optuna.create_study(
            study_name=plan.study,
            storage=storage,
            sampler=make_sampler(plan.sampler, seed),
            pruner=optuna.pruners.NopPruner(),
            directions=plan.directions,
            load_if_exists=True,
        )
        guesses = [candidate for candidate in plan.starts if candidate in plan.space]
        starts = [] if plan.sampler == GRID else guesses or plan.space.starts()
        known = self._priors.starts()
        self._queue = iter([*self._settle_unfinished(), *starts[:1], *known[:1]])
        self._next_starts = {True: iter(known[1:]), False: iter(starts[1:])}  # by whether a prior is believed
        self._import_records()

    def ask(self) -> Suggestion | None:
        """Return an untried candidate, or None if there is none."""
        while len(self._taken) < len(self._plan.space):
            planned = self._planned()
            if planned is not None:
                self._study.enqueue_trial(active_parameters(planned, self._plan.space))
            trial, candidate = self._suggested()
            if candidate in self._taken or candidate not in self._plan.space:
                self._answer_repeat(trial, candidate)
                continue
            self._repeats = 0
            self._taken.add(candidate)
            trial.set_user_attr(TRIAL_ID, self._plan.trial_id(candidate))
            return Suggestion(trial.number, candidate)
        return None

    def tell(self, ticket: int, record: TrialRecord) -> None:
        """Report the record of the suggestion with this ticket."""
        self._remember(record)
        values, state = self._plan.values(record), _state(record)
        if state == TrialState.COMPLETE and values is None:
            state = TrialState.FAIL  # measured, but no number that a sampler could take
        self._study.tell(ticket, values, state=state, skip_if_finished=True)

    @property
    def notes(self) -> dict[str, int]:
        """What stood in for the sampler or its model when these broke down, and how often."""
        return dict(self._choice.notes + self._notes)

    @property
    def priors(self) -> list[dict[str, Any]]:
        """What is known from elsewhere: name, points that it knows, and how far it is believed, 0 to 1; 0: dropped."""
        return self._priors.document(self._gains)

    @property
    def expected_gain(self) -> float | None:
        """By how much the last suggestion was expected to raise the logarithm of the mean of the best speed-ups.

        None where no model chose it.
        """
        return self._choice.expected_gain if self._plan.sampler == SIZES_GP else None

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the study, repeats included (they carry the attribute `chorale.repeat_of`)."""
        return self._study.get_trials()

    def _suggested(self) -> tuple[Trial, Candidate]:
        """Ask the sampler; where it breaks down on what it was told, chance decides."""
        try:
            return self._asked()
        except _ARITHMETIC:
            self._notes[f"the sampler {self._plan.sampler} broke down, and a point was drawn at random"] += 1
            sampler, self._study.sampler = self._study.sampler, make_sampler("random", self._plan.seed)
            try:
                return self._asked()
            finally:
                self._study.sampler = sampler

    def _asked(self) -> tuple[Trial, Candidate]:
        trial = self._study.ask()
        try:
            return trial, suggested_candidate(trial, self._plan.space, self._distributions)
        except _ARITHMETIC:
            self._study.tell(trial.number, state=TrialState.FAIL)
            raise

    def _planned(self) -> Candidate | None:
        """Return the candidate that must be tried next, None if the sampler may choose."""
        planned = _first_not_in(self._taken, self._queue)
        if planned is None:
            planned = _first_not_in(self._taken, self._next_starts[bool(self._priors.weights(self._gains).any())])
        if planned is None and self._plan.sampler == SIZES_GP:
            planned = self._expected_best()
        if planned is None and (self._plan.sampler in (GRID, SIZES_GP) or self._repeats >= MAX_REPEATS):
            planned = _first_not_in(self._taken, self._grid)
        return planned

    def _expected_best(self) -> Candidate | None:
        """Return the point with the highest expected improvement, None before the first measurement."""
        failed = [candidate for candidate in self._records if candidate not in self._gains]
        busy = sorted(self._taken.difference(self._records), key=lambda candidate: candidate.id)
        return self._choice.next(self._gains, failed, busy) if self._gains else None

    def _remember(self, record: TrialRecord) -> None:
        self._records[record.candidate] = record
        if isinstance(record, CompleteTrial):
            self._gains[record.candidate] = np.array([log_speedup(size) for size in record.sizes])

    def _answer_repeat(self, trial: Trial, candidate: Candidate) -> None:
        self._repeats += 1
        record = self._records.get(candidate)
        trial.set_user_attr(REPEAT_OF, self._plan.trial_id(candidate))
        if candidate not in self._plan.space:
            self._study.tell(trial.number, state=TrialState.PRUNED)
        elif record is None:  # pending: there is no value yet
            self._study.tell(trial.number, state=TrialState.FAIL)
        else:
            self.tell(trial.number, record)

    def _settle_unfinished(self) -> list[Candidate]:
        """End the trials that the last process left running; return those that must be done again."""
        unfinished = []
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            candidate = self._finished_asking(trial)
            record = self._records.get(candidate) if candidate else None
            if record is not None and TRIAL_ID in trial.user_attrs:
                self.tell(trial.number, record)
                continue
            self._study.tell(trial.number, state=TrialState.FAIL)
            if candidate is not None:
                unfinished.append(candidate)
        return unfinished

    def _finished_asking(self, trial: FrozenTrial) -> Candidate | None:
        """Return the candidate of a trial, None if its process ended before all parameters were chosen."""
        if "method" not in trial.params:
            return None
        candidate = Candidate(**trial.params)
        whole = set(active_parameters(candidate, self._plan.space)) == set(trial.params)
        return candidate if whole and candidate in self._plan.space else None

    def _import_records(self) -> None:
        """Add the trials that the launch recorded and the study does not have."""
        in_study = {(trial.user_attrs.get(TRIAL_ID), trial.state) for trial in self.trials()}
        for record in self._records.values():
            if (record.trial_id, _state(record)) not in in_study:
                parameters = active_parameters(record.candidate, self._plan.space)
                self._study.add_trial(
                    create_trial(
                        params=parameters,
                        distributions={name: self._distributions[name] for name in parameters},
                        values=self._plan.values(record),
                        state=_state(record),
                        user_attrs={TRIAL_ID: record.trial_id},
                    )
                )


def open_search(plan: SearchPlan, url: str | None, journal: Path, recorded: Sequence[TrialRecord]) -> Search:
    """Return the search of `plan` in the storage at `url`, or in the file `journal`, with the trials `recorded`.

    A file that cannot be used is set aside, and another is made out of `recorded`.
    """
    try:
        return Search(plan, open_storage(url, journal), recorded)
    except Exception as error:  # whatever Optuna makes of garbage; its storages each have their own types
        if url is not None:
            if isinstance(error, ChoraleError):
                raise
            raise unreachable(error) from None
        _log.warning("%s cannot be used (%s); a new one is made from the journal", journal, _one_line(error))
        _log.warning("the former is now %s", set_file_aside(journal))
    return Search(plan, open_storage(None, journal), recorded)


_ARITHMETIC = (np.linalg.LinAlgError, ValueError, ArithmeticError, AssertionError)
"""How samplers and their models break down on data that they do not expect."""


def log_speedup(size: SizeResult) -> float:
    """Return the logarithm of the speed-up at a size; nan where times are none, such as zero."""
    try:
        return math.log(size.speedup)
    except (ValueError, ArithmeticError):
        return math.nan


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _state(record: TrialRecord) -> TrialState:
    if isinstance(record, CompleteTrial):
        return TrialState.COMPLETE
    return TrialState.PRUNED if isinstance(record, PrunedTrial) else TrialState.FAIL


def _first_not_in(taken: set[Candidate], source: Iterator[Candidate]) -> Candidate | None:
    return next((candidate for candidate in source if candidate not in taken), None)
