"""Which parameters mattered in a launch, by Optuna's fANOVA."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from chorale.tuner.trials.records import CompleteTrial

MIN_TRIALS = 4

TREES = 16
"""Trees of the forest: each takes as long as ten trials do, and the bars of a picture need no third digit."""


def importances(trials: Sequence[CompleteTrial], seed: int = 0) -> dict[str, float]:
    """Return what part of the variance of the speed-up each parameter explains, the most important first.

    Parameters that never varied are left out. Empty for too few trials, or if all were equally fast.
    """
    values = {name: {trial.candidate.parameters[name]: None for trial in trials} for name in _names(trials)}
    varied = {name: list(choices) for name, choices in values.items() if len(choices) > 1}
    if len(trials) < MIN_TRIALS or len({trial.speedup for trial in trials}) == 1 or not varied:
        return {}
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(choices) for name, choices in varied.items()
    }
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        parameters = {name: trial.candidate.parameters[name] for name in varied}
        study.add_trial(create_trial(params=parameters, distributions=distributions, value=trial.speedup))
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=TREES, seed=seed)))


def _names(trials: Sequence[CompleteTrial]) -> list[str]:
    return list(trials[0].candidate.parameters) if trials else []
