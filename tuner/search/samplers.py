"""Optuna's samplers by name, and how a trial is asked for the parameters that matter."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import Trial

from chorale.synth.errors import Unavailable
from chorale.tuner.config.values import Value
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate

Distribution = CategoricalDistribution | IntDistribution

SIZES_GP, GRID = "sizes-gp", "grid"
"""Not samplers of Optuna: with these every point is planned, and the study only records."""


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
            raise Unavailable("the gp sampler needs PyTorch", error, way_out) from error
    return NSGAIISampler(seed=seed) if name == "nsga2" else RandomSampler(seed=seed)


def distributions_of(dimensions: Mapping[str, Sequence[Value]]) -> dict[str, Distribution]:
    """Return Optuna's distribution of each parameter."""
    return {name: distribution_of(values) for name, values in dimensions.items()}


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
    method = str(_value(trial, "method", distributions["method"]))
    names = [name for name in distributions if name != "method" and space.matters(name, method)]
    chosen: dict[str, Any] = {name: _value(trial, name, distributions[name]) for name in names}
    return Candidate(method, **chosen)


def active_parameters(candidate: Candidate, space: SearchSpace) -> dict[str, Any]:
    """Return the parameters that `suggested_candidate` asks for, with their values in `candidate`."""
    parameters = candidate.parameters
    return {name: parameters[name] for name in space.dimensions if space.matters(name, candidate.method)}


def _value(trial: Trial, name: str, distribution: Distribution) -> Any:
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step)
    return trial.suggest_categorical(name, distribution.choices)
