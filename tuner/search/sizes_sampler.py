"""An Optuna sampler: the Gaussian process over parameters and sizes of campaigns, for any study with one objective."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from chorale.tuner.search.acquisition import MAX_UNTRIED, AcquisitionOptimizer, Fitted
from chorale.tuner.search.conditions import Leaf, Split
from chorale.tuner.search.history import GAINS, PROPOSED, History, conditions_of, history_of, space_of
from chorale.tuner.search.points import ParameterPoint, ParameterSpace
from chorale.tuner.search.prior import FIRST_STARTS
from chorale.tuner.search.study_prior import PriorValues, StudyPrior

DRAWN, NEAR, BEST = 500, 40, 5
"""Points that are compared for one choice where there is no end of points: drawn anywhere, and near each of the best
that were tried."""

LONGEST = 2045
"""Characters of an attribute that every storage takes; without it, workers may choose neighbours of each other."""

REACHES = (0.1, 0.03, 0.01)
"""How far the points lie, in parts of a range, that are compared with the choice afterwards."""


class SizesSampler(BaseSampler):
    """Chooses parameters by expected improvement under a Gaussian process; minimize or maximize, one objective.

    Parameters may be of any distribution, and may depend on each other: which are asked for is learned from trials.
    What a trial's value means is not known, so values are standardized. A study whose trials carry the user attribute
    `gains` (size in bytes -> logarithm of a speed-up, more is better) is searched for the best point of each size
    instead, or for one that serves all of them `together`; `weights` say how much a size counts (1 unless said).

    Constraints of trials are predicted, and what probably breaks them is left alone. Running trials are taken to end
    as the average, failed ones as the worst. Choices depend on the seed, the number of the trial and the other trials;
    without a seed one is drawn.

    prior: what to expect, as pairs of parameters and a value of the objective (or gains by size), a mapping whose keys
           are the items of such parameters, or another study. It is believed as far as it predicts, see
           `chorale.tuner.search.prior`
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        prior: Study | PriorValues | None = None,
        together: bool = False,
        weights: Mapping[int, float] | None = None,
        gains: str = GAINS,
    ) -> None:
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._prior = None if prior is None else StudyPrior.of(prior, gains)
        self._together = together
        self._weights = dict(weights or {})
        self._gains = gains
        self._fitted: dict[tuple[object, ...], Fitted] = {}

    def reseed_rng(self) -> None:
        """Change nothing: no two trials of a study have the same number, so that workers never draw the same."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all parameters that any trial asked for, as the last of them did. ValueError for two objectives."""
        self._raise_error_if_multi_objective(study)
        return space_of(_others(study, trial))

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for the parameters of `search_space` that will probably be asked for."""
        if not search_space:
            return {}
        space = ParameterSpace(search_space)
        point = self._chosen(study, trial, space)
        chosen = {name: number for name, number in zip(search_space, point, strict=True) if number is not None}
        if len(json.dumps(chosen)) <= LONGEST:
            study._storage.set_trial_system_attr(trial._trial_id, PROPOSED, chosen)
        return space.parameters(point)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value for a parameter that nobody knew of, or that has another range now."""
        space = ParameterSpace({**space_of(_others(study, trial)), param_name: param_distribution})
        return space.parameters(self._chosen(study, trial, space, param_name))[param_name]

    def _chosen(self, study: Study, trial: FrozenTrial, space: ParameterSpace, name: str = "") -> ParameterPoint:
        """Choose a point with the values that `trial` has already, at which `name` is asked for."""
        self._raise_error_if_multi_objective(study)
        trials = _others(study, trial)
        seed = [self._seed, trial.number, zlib.crc32(name.encode())]
        random = np.random.default_rng(seed)
        maximize = study.direction == StudyDirection.MAXIMIZE
        history = history_of(trials, space, maximize, self._gains)
        fixed = space.allowed({**trial.system_attrs.get("fixed_params", {}), **trial.params})
        needed = frozenset(fixed) - {name} | ({name} if name else frozenset())
        fixed = {key: number for key, number in fixed.items() if key != name}
        pool = _Pool(space, conditions_of(trials, space), fixed, needed, frozenset(history.tried))
        start = self._start(trial, space, maximize)
        if start or not history.gains:
            return pool.any_point(random, {**start, **fixed})
        grid = space.grid(MAX_UNTRIED)
        points = pool.untried(grid if grid is not None else _spread(space, history, random))
        if not points:
            return pool.any_point(random, fixed)
        chosen = self._best(space, history, points, [*seed, 0], maximize)
        for number, reach in enumerate(() if grid is not None else REACHES, 1):
            near = pool.untried(chain([chosen], space.near(chosen, reach, random, 2 * NEAR)))
            chosen = self._best(space, history, near, [*seed, number], maximize)
        return chosen

    def _best(
        self,
        space: ParameterSpace,
        history: History,
        points: Sequence[ParameterPoint],
        seed: Sequence[int],
        maximize: bool,
    ) -> ParameterPoint:
        """Return the one of `points` with the highest expected improvement."""
        every = [*history.tried, *points]
        sizes = history.sizes_bytes or (1,)
        prior = None if self._prior is None else self._prior.over(space, every, history.sizes_bytes, maximize)
        key = (*space.distributions, sizes)
        optimizer = AcquisitionOptimizer(
            every,
            sizes,
            self._together,
            seed,
            [self._weights.get(size, 1.0) for size in sizes],
            prior,
            axes=space.axes(every),
            fitted=self._fitted.get(key, Fitted()),
        )
        point = optimizer.next(history.gains, history.failed, history.busy, history.limits)
        self._fitted[key] = optimizer.fitted
        return point

    def _start(self, trial: FrozenTrial, space: ParameterSpace, maximize: bool) -> dict[str, float]:
        """Return the values of the first trials where a prior names them."""
        if self._prior is None or trial.number >= FIRST_STARTS:
            return {}
        starts = self._prior.starts(maximize)
        return space.allowed(starts[trial.number]) if trial.number < len(starts) else {}


class _Pool:
    """Makes points that an objective may ask for, with the numbers `fixed`; `needed` is asked for in any case."""

    def __init__(
        self,
        space: ParameterSpace,
        asked: Leaf | Split,
        fixed: Mapping[str, float],
        needed: frozenset[str],
        tried: frozenset[ParameterPoint],
    ) -> None:
        self._space = space
        self._asked = asked
        self._fixed = fixed
        self._needed = needed
        self._tried = tried

    def untried(self, points: Iterable[ParameterPoint]) -> list[ParameterPoint]:
        """Return the points that `points` stand for, each once."""
        distinct = dict.fromkeys(self._point(point, self._fixed) for point in points)
        return [point for point in distinct if point not in self._tried]

    def any_point(self, random: np.random.Generator, fixed: Mapping[str, float]) -> ParameterPoint:
        """Return a point that was not tried, if there is one among a few."""
        drawn = [self._point(point, fixed) for point in self._space.drawn(random, NEAR)]
        return next((point for point in drawn if point not in self._tried), drawn[0])

    def _point(self, point: ParameterPoint, fixed: Mapping[str, float]) -> ParameterPoint:
        values = zip(self._space.distributions, point, strict=True)
        numbers = {name: number for name, number in values if number is not None} | dict(fixed)
        asked = self._asked.at(numbers) | self._needed
        return tuple(numbers.get(name) if name in asked else None for name in self._space.distributions)


def _spread(space: ParameterSpace, history: History, random: np.random.Generator) -> Iterable[ParameterPoint]:
    """Return points anywhere, and near the best that were tried."""
    best = sorted(history.gains, key=lambda point: -float(history.gains[point].mean()))
    allowed = [point for point in best if history.limits.get(point, 0.0) <= 0] or best
    near = (space.near(point, REACHES[0], random, NEAR) for point in allowed[:BEST])
    return chain(space.drawn(random, DRAWN), chain.from_iterable(near))


def _others(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """Return the trials that have begun, without `trial`."""
    trials = study.get_trials(deepcopy=False)
    return [one for one in trials if one.number != trial.number and one.state != TrialState.WAITING]
