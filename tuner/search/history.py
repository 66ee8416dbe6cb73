"""What the trials of any study say about the points of its space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from chorale.tuner.search.conditions import Leaf, Split, conditions
from chorale.tuner.search.points import ParameterPoint, ParameterSpace
from chorale.tuner.search.size_model import EXPECTED_SPREAD, Floats

GAINS = "chorale.gains"
"""User attribute of a trial: size in bytes -> logarithm of the speed-up there."""

PROPOSED = "chorale.proposed"
"""System attribute of a trial: what a sampler chose before the objective asked for it."""

WORST = 30.0
"""How many times as far behind the best as half of the trials a value counts at most, so that a value that stands for a
failure, such as 1e9, leaves differences between the others."""

_HUGE = 1e150


@dataclass(slots=True)
class History:
    """Points of trials, as `AcquisitionOptimizer.next` takes them; `gains` are means where a point was tried again.

    sizes_bytes: none where trials have one value each; that is standardized then, and 0 for the best
    """

    sizes_bytes: tuple[int, ...] = ()
    gains: dict[ParameterPoint, Floats] = field(default_factory=dict)
    failed: list[ParameterPoint] = field(default_factory=list)
    busy: list[ParameterPoint] = field(default_factory=list)
    limits: dict[ParameterPoint, float] = field(default_factory=dict)

    @property
    def tried(self) -> list[ParameterPoint]:
        return [*self.gains, *self.failed, *self.busy]


def space_of(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the distribution of every parameter that trials asked for, as the last of them did, and that varies."""
    latest = {name: one for trial in trials for name, one in trial.distributions.items()}
    return {name: latest[name] for name in sorted(latest) if not latest[name].single()}


def conditions_of(trials: Iterable[FrozenTrial], space: ParameterSpace) -> Leaf | Split:
    """Return which parameters of `space` are asked for, by the trials that asked for all they wanted."""
    names = space.distributions
    numbers = [
        {name: value for name, value in zip(names, space.point(trial.params), strict=True) if value is not None}
        for trial in trials
        if trial.state == TrialState.COMPLETE
    ]
    named = frozenset(name for name, one in names.items() if isinstance(one, CategoricalDistribution))
    return conditions(numbers, named)


def history_of(trials: Sequence[FrozenTrial], space: ParameterSpace, maximize: bool, attribute: str) -> History:
    """Return what `trials` say; `attribute` names their gains.

    A pruned trial counts by its last intermediate value, but is not taken to be better than half of the others. Failed
    trials, and pruned ones without a value, count as slow as the slowest.
    """
    history = History(sizes_of(trials, attribute))
    rows: dict[ParameterPoint, list[Floats]] = {}
    pruned: dict[ParameterPoint, float] = {}
    sign = 1.0 if maximize else -1.0
    for trial in trials:
        point = space.point({**_proposed(trial, space), **trial.params})
        if all(number is None for number in point):
            continue
        row = _row(trial, history.sizes_bytes, sign, attribute)
        if trial.state == TrialState.COMPLETE and row is not None:
            rows.setdefault(point, []).append(row)
        elif trial.state in (TrialState.COMPLETE, TrialState.RUNNING):
            history.busy.append(point)
        elif trial.state == TrialState.PRUNED and _is_within(trial) and row is not None:
            pruned[point] = float(row.mean())
        elif trial.state.is_finished():
            history.failed.append(point)
    limits = _limits(trials, space)
    history.limits = {point: limits[point] for point in (*rows, *pruned, *history.tried) if point in limits}
    _add_gains(history, {point: np.mean(found, axis=0) for point, found in rows.items()}, pruned)
    history.failed = _others(history.failed, history.gains)
    history.busy = _others(history.busy, {**history.gains, **dict.fromkeys(history.failed, 0)})
    return history


def standardized(values: Floats, best: float | None = None) -> Floats:
    """Return `values` by their deviation, 0 for `best` (none: the highest of them)."""
    usable = np.clip(np.nan_to_num(values, nan=-_HUGE), -_HUGE, _HUGE)
    behind = (usable.max() if best is None else min(max(best, -_HUGE), _HUGE)) - usable
    behind = np.minimum(behind, WORST * (np.median(np.abs(behind)) or np.max(np.abs(behind))))
    spread = float(behind.std())
    return np.asarray(-behind / (spread or 1.0) * EXPECTED_SPREAD)


def sizes_of(trials: Iterable[FrozenTrial], attribute: str) -> tuple[int, ...]:
    """Return the sizes at which the first trial with gains has them, smallest first."""
    found = (gains_by_size(trial.user_attrs.get(attribute)) for trial in trials if trial.state.is_finished())
    return tuple(sorted(next((gains for gains in found if gains), ())))


def gains_by_size(value: Any) -> dict[int, float]:
    """Return the gains in a user attribute, empty where it has none; storages make text out of numbers as keys."""
    try:
        return {int(size): float(gain) for size, gain in value.items()} if isinstance(value, Mapping) else {}
    except (TypeError, ValueError):
        return {}


def _row(trial: FrozenTrial, sizes_bytes: Sequence[int], sign: float, attribute: str) -> Floats | None:
    if sizes_bytes:
        gains = gains_by_size(trial.user_attrs.get(attribute))
        return np.array([gains[size] for size in sizes_bytes]) if set(sizes_bytes) <= set(gains) else None
    if trial.state == TrialState.PRUNED:
        step = trial.last_step
        value = math.nan if step is None else trial.intermediate_values[step]
        return None if math.isnan(value) else np.array([sign * value])
    return np.array([sign * trial.value]) if trial.state == TrialState.COMPLETE and trial.value is not None else None


def _add_gains(history: History, rows: Mapping[ParameterPoint, Floats], pruned: Mapping[ParameterPoint, float]) -> None:
    if not rows:
        history.failed += pruned
        return
    if history.sizes_bytes:
        history.gains = dict(rows)
        history.failed += _others(pruned, rows)
        return
    values = {point: float(row[0]) for point, row in rows.items()}
    middle = float(np.median(list(values.values())))
    best = max((value for point, value in values.items() if history.limits.get(point, 0.0) <= 0), default=None)
    every = values | {point: min(pruned[point], middle) for point in _others(pruned, values)}
    gains = standardized(np.array(list(every.values())), best)
    history.gains = {point: gains[number : number + 1] for number, point in enumerate(every)}


def _limits(trials: Sequence[FrozenTrial], space: ParameterSpace) -> dict[ParameterPoint, float]:
    """Return by how much each point exceeds the constraint that it exceeds most, -1 to 1; none without constraints."""
    bound = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    values: dict[str, list[float]] = {}
    for trial in bound:
        for name, value in trial.constraints.items():
            values.setdefault(name, []).extend([abs(value)] if 0 < abs(value) < math.inf else [])
    if not values:
        return {}
    scales = {name: float(np.median(found)) if found else 1.0 for name, found in values.items()}
    limits: dict[ParameterPoint, float] = {}
    for trial in bound:
        excess = [value / scales[name] for name, value in trial.constraints.items()]
        point = space.point(trial.params)
        if trial.constraints or trial.state == TrialState.COMPLETE:
            limits[point] = float(np.clip(max(excess, default=-1.0), -1.0, 1.0))
    return limits


def _is_within(trial: FrozenTrial) -> bool:
    return all(value <= 0 for value in trial.constraints.values())


def _proposed(trial: FrozenTrial, space: ParameterSpace) -> dict[str, Any]:
    """Return what was chosen for a running trial, most of which it may not have asked for yet."""
    numbers = trial.system_attrs.get(PROPOSED) if trial.state == TrialState.RUNNING else None
    names = space.distributions
    return {name: names[name].to_external_repr(one) for name, one in (numbers or {}).items() if name in names}


def _others(points: Iterable[ParameterPoint], known: Mapping[ParameterPoint, Any]) -> list[ParameterPoint]:
    return [point for point in dict.fromkeys(points) if point not in known]
