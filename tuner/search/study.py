"""A launch's Optuna study: its storage, sampler and plug-ins, and the data stored per trial."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from chorale.job.files import open_regular
from chorale.runners.api.base import FailureKind
from chorale.synth.errors import ChoraleError, InvalidInput, Unavailable
from chorale.synth.names import name_among
from chorale.synth.redaction import redacted
from chorale.tuner.config.values import Value, kind_of_tables, sqlite_file, tables_at, tables_in, with_password
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.journal import drop_torn_end
from chorale.tuner.trials.records import Candidate, FailedTrial, PrunedTrial, SizeResult, TrialRecord

Distribution = CategoricalDistribution | IntDistribution

SIZES_GP, GRID = "sizes-gp", "grid"
"""Names of searches that are not Optuna samplers: Chorale chooses every point and the study only records it."""


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler called tpe, nsga2, qmc or gp (gp needs PyTorch); for all other names, a random sampler."""
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
    """Ask `trial` for the method, then for the parameters that matter for it."""

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
    """Return the parameters that `suggested_candidate` asks for, with their values in `candidate`."""
    parameters = candidate.parameters
    return {name: parameters[name] for name in space.dimensions if space.matters(name, candidate.method)}


Callback = Callable[[Study, FrozenTrial], object]
"""Function that is called with the study and the ended trial, as in Optuna; it may call `study.stop()`."""

_KINDS: Mapping[str, type] = {"sampler": BaseSampler, "pruner": BasePruner, "storage": BaseStorage}


@dataclass(frozen=True, slots=True)
class StudyParts:
    """Objects that the caller plugs into a study. If an attribute is None, the campaign's setting is used.

    pruner: decides after each size whether to end the trial; sizes are then measured one by one, without racing
    """

    sampler: BaseSampler | None = None
    pruner: BasePruner | None = None
    storage: BaseStorage | None = None
    callbacks: tuple[Callback, ...] = ()

    @staticmethod
    def of(
        values: Mapping[str, Any], callbacks: Iterable[Callback] | Callback = ()
    ) -> tuple[StudyParts, dict[str, str]]:
        """Separate a user's `values` (for sampler, pruner and storage): return the Optuna objects, then the names.

        The names are meant for the campaign file. Raises InvalidInput for values that are neither.
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
        """Return whether a pruner decides after each size."""
        return self.pruner is not None and not isinstance(self.pruner, NopPruner)


class LaunchStudy(Study):
    """A study whose trials are run by a launch. Callbacks and samplers may call `stop` to start no further trials."""

    is_stopped = False

    def stop(self) -> None:
        """End the search once the pending trials are done."""
        self.is_stopped = True


GAINS = "chorale.gains"
"""User attribute of a trial: size in bytes -> logarithm of the speed-up at this size."""

REASON = "chorale.reason"
"""User attribute of a trial without a result: the reason."""

SENSIBLE, BUILDABLE = "sensible", "buildable"
"""Names of constraints: a point violates the first if it is refused before building, the second if building fails."""

BROKEN = 1.0
"""Value of a violated constraint. It is constant because the degree of violation is unknown."""

_LONGEST = 400

_OF_THE_PROGRAM = (FailureKind.WRONG_RESULT, FailureKind.REJECTED)
"""Failures caused by the program, which would happen again. Other failures may be caused by the machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The form in which a study stores a recorded trial.

    state:       state in Optuna. A trial without a result is failed (samplers ignore it) if it might succeed when
                 repeated, otherwise pruned.
    speedup:     the objective; None without a result, or if it is not finite
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


_NO_STORAGE = "`storage` is neither a database, nor Redis, nor the path of a journal file: {}"
_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb", "mssql", "oracle", "redis", "rediss")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+_.-]+:/")


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Return the Optuna storage at `url`, which may be a path, or one in the file `journal`.

    If `url` was stored without its password, the password is taken from CHORALE_STORAGE. The caller must be the file's
    only writer. An incomplete last line, left by a crash, is dropped.
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
                    way_out = "give Optuna a file of its own" if is_mlflow else f"write sqlite:///{path}"
                    raise InvalidInput(_NO_STORAGE, f"{path} is {whose}", way_out)
                if start and b'"op_code"' not in start.partition(b"\n")[0]:
                    raise InvalidInput(
                        _NO_STORAGE, f"{path} is not a journal of Optuna", "name a new file, or a journal"
                    )
            return JournalStorage(JournalFileBackend(str(path)))
        if file is None or file.exists():
            tables = tables_at(address) if file is None else tables_in(file)
            if kind_of_tables(tables) == "MLflow":
                way_out = "give Optuna a database of its own, or a file"
                raise InvalidInput(_NO_STORAGE, f"{redacted(address)} is MLflow's database", way_out)
        return optuna.storages.get_storage(address)
    except ChoraleError:
        raise
    except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
        raise unreachable(error) from None


def unreachable(error: Exception) -> Unavailable:
    """Return the error to show to the user for an `error` from an Optuna storage."""
    way_out = "check `storage`; without it a journal file is used"
    if "no longer compatible with the table schema" in str(error):  # Optuna suggests pip, which would not help
        way_out = "name a database of this version, or, after a backup, run: optuna storage upgrade --storage URL"
        return Unavailable("the Optuna storage is of another version of Optuna: {}", error, way_out)
    return Unavailable("the Optuna storage cannot be reached: {}", error, way_out)
