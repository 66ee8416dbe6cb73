"""Which parameters mattered for the best trials of a launch, by Optuna's PED-ANOVA."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import create_trial

from chorale.tuner.trials.records import CompleteTrial

MIN_TRIALS = 4

BEST_PART = 0.25
"""The trials among which values of a parameter are compared with those of all; of a tenth, few launches have enough."""


def importances(trials: Sequence[CompleteTrial]) -> dict[str, float]:
    """Return how much each parameter decided whether a trial was among the best, the most important first; sum 1.

    PED-ANOVA (Watanabe, Bansal and Hutter, 2023): how far its values among the best are from those of all. Parameters
    that never varied are left out. Empty for too few trials, or if all were equally fast.
    """
    values = {name: {trial.candidate.parameters[name]: None for trial in trials} for name in _names(trials)}
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


def _names(trials: Sequence[CompleteTrial]) -> list[str]:
    return list(trials[0].candidate.parameters) if trials else []
