"""The Optuna study of a launch: its sampler, plug-ins, content, and the importance of parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from chorale.runners.api.base import FailureKind
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import Value
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate, CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord

Distribution = CategoricalDistribution | IntDistribution

SIZES_GP, GRID = "sizes-gp", "grid"
"""Not samplers of Optuna: with these, every point is planned and the study only records."""


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Return the sampler called tpe, random, nsga2, qmc or gp (the last needs PyTorch), or one for planned points."""
    with warnings.catch_warnings():
        # Optuna calls QMC and grouping experimental; neither is used through anything that could change under us.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":  # one model for each set of parameters that matter together
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
    """Whole numbers in even steps are ordered; everything else is a choice."""
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
"""Called with the study and the trial that ended, as Optuna does; it may call `study.stop()`."""

_KINDS: Mapping[str, type] = {"sampler": BaseSampler, "pruner": BasePruner, "storage": BaseStorage}


@dataclass(frozen=True, slots=True)
class StudyParts:
    """Objects that the caller plugs into a study. None: as the campaign says.

    pruner: decides after each size of a trial; sizes are then measured one after the other, without racing
    """

    sampler: BaseSampler | None = None
    pruner: BasePruner | None = None
    storage: BaseStorage | None = None
    callbacks: tuple[Callback, ...] = ()

    @staticmethod
    def of(
        values: Mapping[str, Any], callbacks: Iterable[Callback] | Callback = ()
    ) -> tuple[StudyParts, dict[str, str]]:
        """Return the objects for sampler, pruner and storage among `values`, and the names, for a campaign.

        Raises InvalidInput for other values.
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
        """Return the classes of sampler and pruner that are objects."""
        objects = {"sampler": self.sampler, "pruner": self.pruner}
        return {key: type(value).__name__ for key, value in objects.items() if value is not None}

    @property
    def prunes(self) -> bool:
        """Return whether a pruner decides after each size."""
        return self.pruner is not None and not isinstance(self.pruner, NopPruner)

    def check(self, campaign: Campaign) -> None:
        """Raise InvalidInput if the objects do not fit the campaign."""
        if self.sampler is not None and campaign.stop is not None:
            rule = "`stop` needs the sampler sizes-gp, not {}"
            raise InvalidInput(rule, type(self.sampler).__name__, "leave one of them out, or stop from a callback")
        if campaign.second_objective != "none" and self.prunes:
            rule = "pruners do not work with a second objective: {}"
            raise InvalidInput(rule, campaign.second_objective, "leave them or `second_objective` out")


class LaunchStudy(Study):
    """A study whose trials a launch runs. Callbacks and samplers call `stop` so that it starts no more."""

    is_stopped = False

    def stop(self) -> None:
        """End the search once the pending trials are done."""
        self.is_stopped = True


def call_back(callbacks: Iterable[Callback], study: Study, trial: FrozenTrial) -> None:
    """Call each of `callbacks`. Raises CheckFailed, with the cause, if one of them fails."""
    for callback in callbacks:
        try:
            callback(study, trial)
        except Exception as error:
            name = getattr(callback, "__name__", type(callback).__name__)
            way_out = "mend it, then go on with resume: the launch's journal has every trial"
            value = f"{name}: {type(error).__name__}: {error}"
            raise CheckFailed("a callback raised {}", value, way_out) from error


GAINS = "chorale.gains"
"""User attribute of a trial: size in bytes -> logarithm of the speed-up there."""

REASON = "chorale.reason"
"""User attribute of a trial without a result: the reason."""

SENSIBLE, BUILDABLE = "sensible", "buildable"
"""Constraints that points break which are refused before anything is made, and while their programs are."""

BROKEN = 1.0
"""Value of a constraint that is broken; no more is known about how far."""

_LONGEST = 400

_OF_THE_PROGRAM = (FailureKind.WRONG_RESULT, FailureKind.REJECTED)
"""Failures that would happen again; others may be the machine's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study has of a recorded trial.

    state:       how it ended: failed if trying again might help (samplers ignore it), else pruned
    values:      speed-up and second objective; None without a result, or if one of them is not a number
    attributes:  gains by size of a measured trial, or why it has none
    constraints: those that it breaks: samplers that know constraints stay away
    """

    state: TrialState
    values: list[float] | None
    attributes: dict[str, Any]
    constraints: dict[str, float]

    @staticmethod
    def of(record: TrialRecord, second_objective: str = "none") -> Outcome:
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
        resources = {"none": [], "channels": [record.channels], "blocks": [record.blocks]}[second_objective]
        values = [speedup, *map(float, resources)]
        attributes = {GAINS: gains} if all(map(math.isfinite, gains.values())) else {}
        if not np.all(np.isfinite(values)):  # measured, but no number that a sampler could take
            return Outcome(TrialState.FAIL, None, attributes, {})
        return Outcome(TrialState.COMPLETE, values, attributes, {})


def ended_trial(
    record: TrialRecord, outcome: Outcome, parameters: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    """Return the trial of a study that does not have `record` yet, with the speed-up at each size as steps from 1."""
    sizes = () if isinstance(record, FailedTrial) else record.sizes
    return create_trial(
        params=dict(parameters),
        distributions=dict(distributions),
        values=outcome.values,
        state=outcome.state,
        user_attrs=outcome.attributes,
        intermediate_values={step: math.exp(log_speedup(size)) for step, size in enumerate(sizes, 1)},
        constraints=outcome.constraints,
    )


def log_speedup(size: SizeResult) -> float:
    """Return the logarithm of the speed-up at a size; nan if times are unusable, such as zero."""
    try:
        return math.log(size.speedup)
    except (ValueError, ArithmeticError):
        return math.nan


MIN_TRIALS = 4

BEST_PART = 0.25
"""Share of trials whose values of a parameter are compared with those of all; a tenth would be too few in most
launches.
"""


def importances(trials: Sequence[CompleteTrial]) -> dict[str, float]:
    """Return how much each parameter decided whether a trial was among the best, the most important first; sum 1.

    PED-ANOVA (Watanabe, Bansal and Hutter, 2023): how much its values among the best differ from those of all.
    Parameters that never varied are left out. Empty for too few trials, or if all were equally fast.
    """
    values = {
        name: {trial.candidate.parameters[name]: None for trial in trials}
        for name in (list(trials[0].candidate.parameters) if trials else [])
    }
    varied = {name: list(choices) for name, choices in values.items() if len(choices) > 1}
    if len(trials) < MIN_TRIALS or len({trial.speedup for trial in trials}) == 1 or not varied:
        return {}
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(choices) for name, choices in varied.items()
    }
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # noqa: PLC0415 - where there is something to say

    study = optuna.create_study(direction="maximize")
    for trial in trials:
        parameters = {name: trial.candidate.parameters[name] for name in varied}
        study.add_trial(create_trial(params=parameters, distributions=distributions, value=trial.speedup))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_PART)
    return dict(get_param_importances(study, evaluator=evaluator))
