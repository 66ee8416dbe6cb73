"""Searches for fast candidates: decides which candidate to try next, and records every result in an Optuna study.

A launch has a study for each search space. This module also defines a study's storage, its sampler, the Optuna objects
that users may supply, and the data stored per trial.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from chorale.job.files import open_regular
from chorale.runners.api.base import FailureKind
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable, cause_in, name_among
from chorale.synth.redaction import redacted
from chorale.tuner.config.values import Value, kind_of_tables, sqlite_file, tables_at, tables_in, with_password
from chorale.tuner.files.home import set_file_aside
from chorale.tuner.search.size_model import AcquisitionOptimizer, Floats, Prior, PriorMix
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.journal import drop_torn_end
from chorale.tuner.trials.records import Candidate, CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord

Distribution = CategoricalDistribution | IntDistribution

SIZES_GP, GRID = "sizes-gp", "grid"
"""Names of Chorale's own samplers: Chorale chooses every point, and the Optuna study only records it."""
Callback = Callable[[Study, FrozenTrial], object]
"""Function that is called with the study and the ended trial, as in Optuna; it may call `study.stop()`."""
_KINDS: Mapping[str, type] = {"sampler": BaseSampler, "pruner": BasePruner, "storage": BaseStorage}
_NO_STORAGE = "`storage` is neither a database, nor Redis, nor the path of a journal file: {}"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle", "redis", "rediss")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+_.-]+:/")
_ARITHMETIC = (np.linalg.LinAlgError, ValueError, ArithmeticError, AssertionError)
"""Exceptions that samplers and their models raise for unexpected data."""
_STORAGES = ("sqlalchemy", "sqlite3", "psycopg", "pymysql", "MySQLdb", "redis", "grpc", "optuna.storages")
"""Packages whose exceptions mean that the storage of the study has failed."""


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler called tpe, nsga2, qmc or gp (gp needs PyTorch); for any other name, a random sampler."""
    with warnings.catch_warnings():
        # Optuna marks QMC and grouping as experimental, but the interfaces used here are stable.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":  # with grouping: one model for each set of parameters that are active together
            return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        if name == "qmc":
            return QMCSampler(seed=seed, warn_independent_sampling=False)
    if name == "gp":
        try:
            return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        except ImportError as error:
            way_out = "install torch, or choose the sampler sizes-gp"
            raise Unavailable("the gp sampler needs PyTorch: {}", error, way_out) from error
    return NSGAIISampler(seed=seed) if name == "nsga2" else RandomSampler(seed=seed)


def distribution_of(values: Sequence[Value]) -> Distribution:
    """Return an integer distribution for evenly spaced whole numbers, a categorical one for all other values."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values) > 1 and sorted(numbers) == numbers:
        steps = {later - earlier for earlier, later in pairwise(numbers)}
        if len(steps) == 1:
            return IntDistribution(numbers[0], numbers[-1], step=steps.pop())
    return CategoricalDistribution(tuple(values))


def suggested_candidate(trial: Trial, space: SearchSpace, distributions: Mapping[str, Distribution]) -> Candidate:
    """Return the candidate that `trial` suggests: its method, and the parameters that matter for this method."""

    def value(name: str) -> Any:
        distribution = distributions[name]
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step)
        return trial.suggest_categorical(name, distribution.choices)

    method = str(value("method"))
    names = [name for name in distributions if name != "method" and space.matters(name, method)]
    chosen: dict[str, Any] = {name: value(name) for name in names}
    return Candidate(method, **chosen)


def active_parameters(candidate: Candidate, space: SearchSpace) -> dict[str, Any]:
    """Return the parameters that `suggested_candidate` requests from Optuna, with their values in `candidate`."""
    parameters = candidate.parameters
    return {name: parameters[name] for name in space.dimensions if space.matters(name, candidate.method)}


@dataclass(frozen=True, slots=True)
class StudyParts:
    """Optuna objects that replace the ones chosen by the campaign; None keeps the campaign's choice.

    pruner: decides after each size whether to end the trial. With a pruner, sizes are measured one by one, and racing
            is switched off
    """

    sampler: BaseSampler | None = None
    pruner: BasePruner | None = None
    storage: BaseStorage | None = None
    callbacks: tuple[Callback, ...] = ()

    @staticmethod
    def of(
        values: Mapping[str, Any], callbacks: Iterable[Callback] | Callback = ()
    ) -> tuple[StudyParts, dict[str, str]]:
        """Split the values that a user gave for sampler, pruner and storage into Optuna objects and names; return both.

        The names are values for the same keys of the campaign. Raises InvalidInput for values of other types.
        """
        names = {key: value for key, value in values.items() if isinstance(value, str)}
        objects = {key: value for key, value in values.items() if value is not None and key not in names}
        for key, value in objects.items():
            if not isinstance(value, _KINDS[key]):
                way_out = f"give a name, or an instance of a class of optuna.{key}s"
                raise InvalidInput(f"`{key}` must be a name or an Optuna object", repr(value), way_out)
        chosen = (callbacks,) if callable(callbacks) else tuple(callbacks)
        for callback in chosen:
            if not callable(callback):
                raise InvalidInput("`callbacks` must be callable", repr(callback), "give functions of study and trial")
        return StudyParts(**objects, callbacks=chosen), names

    @property
    def names(self) -> dict[str, str]:
        """Return the class names of the sampler and pruner objects, under the keys `sampler` and `pruner`."""
        objects = {"sampler": self.sampler, "pruner": self.pruner}
        return {key: type(value).__name__ for key, value in objects.items() if value is not None}

    @property
    def prunes(self) -> bool:
        """Return whether a pruner decides after each size whether to end the trial."""
        return self.pruner is not None and not isinstance(self.pruner, NopPruner)


class LaunchStudy(Study):
    """A study whose trials are run by a launch. Callbacks and samplers may call `stop` to prevent further trials."""

    is_stopped = False

    def stop(self) -> None:
        """End the search once the pending trials are done."""
        self.is_stopped = True


GAINS = "chorale.gains"
"""User attribute of a trial: size in bytes -> logarithm of the speed-up at this size."""

REASON = "chorale.reason"
"""User attribute of a trial without a result: why it has none."""

SENSIBLE, BUILDABLE = "sensible", "buildable"
"""Names of constraints: a point violates the first if it is refused before building, the second if building fails."""

BROKEN = 1.0
"""Value of a violated constraint. It is constant because the degree of violation is unknown."""

_LONGEST = 400

_OF_THE_PROGRAM = (FailureKind.WRONG_RESULT, FailureKind.REJECTED)
"""Failures caused by the program, which would happen again. Other failures may be caused by the machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a trial in the form in which an Optuna study stores it.

    state:       state in Optuna. A trial without a result is failed if it might succeed when repeated, else pruned.
                 Samplers ignore failed trials.
    speedup:     the objective; None if the trial has no result or the objective is not finite
    attributes:  gain at each size for a measured trial, otherwise the reason why there is no result
    constraints: constraints that the trial violates; samplers that support constraints avoid similar points
    """

    state: TrialState
    speedup: float | None
    attributes: dict[str, Any]
    constraints: dict[str, float]

    @staticmethod
    def of(record: TrialRecord) -> Outcome:
        if isinstance(record, FailedTrial):
            kind = record.failure_kind
            state = TrialState.PRUNED if kind in _OF_THE_PROGRAM else TrialState.FAIL
            reason = f"{kind.value}: {record.message}"[:_LONGEST]
            return Outcome(state, None, {REASON: reason}, {kind.value: BROKEN})
        if isinstance(record, PrunedTrial):
            broken = {} if record.program_id else {BUILDABLE: BROKEN}
            return Outcome(TrialState.PRUNED, None, {REASON: record.reason[:_LONGEST]}, broken)
        gains = {str(size.size_bytes): log_speedup(size) for size in record.sizes}
        speedup = float(np.exp(np.average(list(gains.values()), weights=[size.weight for size in record.sizes])))
        attributes = {GAINS: gains} if all(map(math.isfinite, gains.values())) else {}
        if not math.isfinite(speedup):  # measured, but samplers accept only finite numbers
            return Outcome(TrialState.FAIL, None, attributes, {})
        return Outcome(TrialState.COMPLETE, speedup, attributes, {})


def log_speedup(size: SizeResult) -> float:
    """Return the logarithm of the speed-up at a size; nan if a time is unusable, for example zero."""
    try:
        return math.log(size.speedup)
    except (ValueError, ArithmeticError):
        return math.nan


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Return the Optuna storage at `url` (a URL or a path) or, if `url` is None, the storage in the file `journal`.

    If `url` was stored without its password, the password is taken from CHORALE_STORAGE. Only the caller may write to
    `journal`. An incomplete last line, left by a crash, is dropped.
    """
    try:
        if url is None:
            drop_torn_end(journal)
            Path(f"{journal}.lock").unlink(missing_ok=True)  # left by a process that was killed
            return JournalStorage(JournalFileBackend(str(journal)))
        address = re.sub("^file:(//)?", "", with_password(url, "CHORALE_STORAGE"))  # as MLflow accepts it
        is_path = _SCHEME.match(address) is None
        scheme = address.partition(":")[0].partition("+")[0].lower()
        if not is_path:
            name_among("kind of storage", scheme, _SCHEMES)
            if "://" not in address:
                raise InvalidInput(
                    _NO_STORAGE, address, f"write `{scheme}://`, and a third slash before the path of a file"
                )
            if scheme.startswith("redis"):
                return JournalStorage(JournalRedisBackend(address))
        file = Path(address) if is_path else sqlite_file(address)
        if file is not None and file.is_dir():
            name = file / "optuna.journal" if is_path else f"{address.rstrip('/')}/optuna.db"
            raise InvalidInput(_NO_STORAGE, f"{file} is a folder", f"name a file in it: {name}")
        if is_path:
            path = Path(address)
            if not path.absolute().parent.is_dir():
                folder = path.absolute().parent
                raise InvalidInput(_NO_STORAGE, f"{path}: no folder {folder}", "create it, or name another file")
            if path.exists():
                with open_regular(path) as stream:
                    start = stream.read(1 << 16)
                if start.startswith(b"SQLite format 3\0"):
                    is_mlflow = kind_of_tables(tables_in(path)) == "MLflow"
                    whose = "MLflow's database" if is_mlflow else "a database of SQLite"
                    way_out = "give Optuna its own file" if is_mlflow else f"write sqlite:///{path}"
                    raise InvalidInput(_NO_STORAGE, f"{path} is {whose}", way_out)
                if start and b'"op_code"' not in start.partition(b"\n")[0]:
                    raise InvalidInput(
                        _NO_STORAGE, f"{path} is not a journal of Optuna", "name a new file, or a journal"
                    )
            return JournalStorage(JournalFileBackend(str(path)))
        if file is None or file.exists():
            tables = tables_at(address) if file is None else tables_in(file)
            if kind_of_tables(tables) == "MLflow":
                way_out = "give Optuna its own database, or a file"
                raise InvalidInput(_NO_STORAGE, f"{redacted(address)} is MLflow's database", way_out)
        return optuna.storages.get_storage(address)
    except ChoraleError:
        raise
    except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
        raise unreachable(error) from None


def unreachable(error: Exception) -> Unavailable:
    """Return the error to show to the user if the Optuna storage raised `error`."""
    way_out = "check `storage`; without it a journal file is used"
    if "no longer compatible with the table schema" in str(error):  # Optuna suggests pip, which would not help
        way_out = "name a database of this version, or, after a backup, run: optuna storage upgrade --storage URL"
        return Unavailable("the Optuna storage is of another version of Optuna: {}", error, way_out)
    return Unavailable("the Optuna storage cannot be reached: {}", error, way_out)


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
    """Defines a search: its space, its sampler, and what it knows at the start.

    study:            name of the Optuna study
    trial_id:         function that returns a candidate's trial id, as used in all records
    sizes_bytes:      sizes at which every candidate is measured
    weights:          weight of each size; empty means equal weights
    together:         whether one candidate is chosen for all sizes
    priors:           expected gains from other sources; used only by the sampler sizes-gp
    starts:           candidates to try first, best guess first; candidates outside the space are ignored
    parts:            a sampler and a storage that replace those chosen here, a pruner, and callbacks
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
    parts: StudyParts = field(default_factory=StudyParts)


class Search:
    """Suggests candidates in a finite space, with an Optuna study in which no point is tried twice.

    The first suggestions are the plan's `starts` or, without these, one point per method; then the sampler decides. If
    there are priors, their best point is suggested second. Once a prior has a weight above 0, the next suggestions come
    from the priors instead of the remaining first suggestions.

    If the sampler suggests a point again, the sampler is told the point's recorded value. If it suggests a point
    outside the space, the trial is pruned. After several such suggestions in a row, the next untried point in a seeded
    random order is taken. `ask` returns None when every point has been tried.

    Without `storage`, the study is lost when the process ends. `recorded` has the trials of the launch so far; trials
    that the study lacks are added to it. Trials that were pending when the last process ended are marked as failed in
    the study and tried again first.
    """

    def __init__(
        self, plan: SearchPlan, storage: BaseStorage | None = None, recorded: Sequence[TrialRecord] = ()
    ) -> None:
        storage = InMemoryStorage() if storage is None else storage
        self._plan = plan
        self._distributions = {name: distribution_of(values) for name, values in plan.space.dimensions.items()}
        self._records: dict[Candidate, TrialRecord] = {}
        self._notes: Counter[str] = Counter()
        self._gains: dict[Candidate, Floats] = {}  # logarithms of speed-ups at each size
        for trial in recorded:
            if trial.candidate in plan.space:
                self._remember(trial)
        self._taken = set(self._records)
        self._repeats = 0
        self._grid = iter(plan.space.points) if plan.sampler == GRID else plan.space.shuffled(plan.seed)
        seed = plan.seed + len(recorded)  # a resumed search must not repeat its earlier random numbers
        self._priors = PriorMix(plan.priors if plan.sampler == SIZES_GP else (), plan.space.points)
        self._choice = AcquisitionOptimizer(
            plan.space.points, plan.sizes_bytes, plan.together, seed, plan.weights, self._priors or None
        )
        optuna.create_study(study_name=plan.study, storage=storage, direction="maximize", load_if_exists=True)
        sampler = plan.parts.sampler or make_sampler(plan.sampler, seed)
        self._study = LaunchStudy(plan.study, storage, sampler, plan.parts.pruner or NopPruner())
        self._open: dict[int, Trial] = {}
        guesses = [candidate for candidate in plan.starts if candidate in plan.space]
        starts = [] if plan.sampler == GRID else guesses or plan.space.starts()
        known = self._priors.starts()
        self._queue = iter([*self._settle_unfinished(), *starts[:1], *known[:1]])
        self._next_starts = {True: iter(known[1:]), False: iter(starts[1:])}  # key: whether any prior has weight
        self._import_records()

    def ask(self) -> Suggestion | None:
        """Return an untried candidate, or None if all were tried."""
        while len(self._taken) < len(self._plan.space) and not self._study.is_stopped:
            planned = _first_not_in(self._taken, self._queue)
            if planned is None:
                planned = _first_not_in(self._taken, self._next_starts[bool(self._priors.weights(self._gains).any())])
            if planned is None and self._plan.sampler == SIZES_GP:
                # Choose the point with the highest expected improvement, or None before the first measurement
                failed = [candidate for candidate in self._records if candidate not in self._gains]
                busy = sorted(self._taken.difference(self._records), key=lambda candidate: candidate.id)
                planned = self._choice.next(self._gains, failed, busy) if self._gains else None
            if planned is None and (self._plan.sampler in (GRID, SIZES_GP) or self._repeats >= MAX_REPEATS):
                planned = _first_not_in(self._taken, self._grid)
            if planned is not None:
                self._study.enqueue_trial(active_parameters(planned, self._plan.space))
            trial, candidate = self._suggested()
            if candidate in self._taken or candidate not in self._plan.space:
                self._repeats += 1
                record = self._records.get(candidate)
                trial.set_user_attr(REPEAT_OF, self._plan.trial_id(candidate))
                if candidate not in self._plan.space:
                    trial.set_constraint(SENSIBLE, BROKEN)
                    trial.set_user_attr(REASON, self._plan.space.constraints.reason_not_to_try(candidate))
                    self._study.tell(trial.number, state=TrialState.PRUNED)
                elif record is None:  # the point is pending and has no value yet
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
        """Report the speed-up at the latest size as an intermediate value; return whether to end the trial."""
        self._open[ticket].report(math.exp(log_speedup(size)), step)
        return self._open[ticket].should_prune()

    def call_back(self, trial: FrozenTrial) -> None:
        """Call the user's callbacks for a trial that has ended. Raises CheckFailed if a callback fails."""
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
        """Return a mapping: fallback used when the sampler or its model failed -> number of times it was used."""
        return dict(self._choice.notes + self._notes)

    @property
    def priors(self) -> list[dict[str, Any]]:
        """Return a document for each prior: its name, number of known points, and weight from 0 (dropped) to 1."""
        return self._priors.document(self._gains)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials in the study, including repeats (which have the attribute `chorale.repeat_of`)."""
        return self._study.get_trials()

    def _suggested(self) -> tuple[Trial, Candidate]:
        """Ask the sampler for a candidate; if the sampler fails with a numerical error, choose a random candidate."""
        try:
            return self._asked()
        except _ARITHMETIC:
            self._notes[f"the sampler {self._plan.sampler} failed, and a point was drawn at random"] += 1
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

    def _remember(self, record: TrialRecord) -> None:
        self._records[record.candidate] = record
        if isinstance(record, CompleteTrial):
            self._gains[record.candidate] = np.array([log_speedup(size) for size in record.sizes])

    def _end(self, trial: Trial, record: TrialRecord) -> FrozenTrial:
        """Record a trial's outcome in the study. A trial that another process has already ended is not changed."""
        outcome = Outcome.of(record)
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
                whole = set(active_parameters(asked, self._plan.space)) == set(trial.params)
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
            outcome = Outcome.of(record)
            if (record.trial_id, outcome.state) in in_study:
                continue
            parameters = active_parameters(record.candidate, self._plan.space)
            sizes = () if isinstance(record, FailedTrial) else record.sizes
            trial = create_trial(
                params=parameters,
                distributions={name: self._distributions[name] for name in parameters},
                value=outcome.speedup,
                state=outcome.state,
                user_attrs=outcome.attributes | {TRIAL_ID: record.trial_id},
                intermediate_values={step: math.exp(log_speedup(size)) for step, size in enumerate(sizes, 1)},
                constraints=outcome.constraints,
            )
            self._study.add_trial(trial)


def _first_not_in(taken: set[Candidate], source: Iterator[Candidate]) -> Candidate | None:
    return next((candidate for candidate in source if candidate not in taken), None)


def open_search(plan: SearchPlan, url: str | None, journal: Path, recorded: Sequence[TrialRecord]) -> Search:
    """Open the search of `plan`, with the trials in `recorded`, in the storage at `url` or else in the file `journal`.

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


def search_failure(error: Exception, part: str = "sampler") -> ChoraleError:
    """Return the error to show to the user for `error`, which was raised by the storage or by `part` of the search."""
    cause: BaseException | None = error
    while cause is not None:  # whether the error or one of its causes concerns files, databases or drivers
        modules = {kind.__module__ for kind in type(cause).__mro__}
        is_driver = any(module.split(".")[0] in _STORAGES or module.startswith("optuna.storages") for module in modules)
        if isinstance(cause, OSError) or is_driver or type(cause).__name__ == "StorageInternalError":
            break
        cause = cause.__cause__
    if cause is not None:
        way_out = "repair `storage`, then continue with --resume: the launch's journal has every trial"
        return Unavailable("the Optuna storage failed: {}", error, way_out)
    way_out = f"choose another `{part}`, then continue with --resume: the launch's journal has every trial"
    rule = "the pruner failed: {}"
    if part == "sampler":
        rule = "the sampler failed: {}"
    return CheckFailed(rule, f"{type(error).__name__}: {error}", way_out)
