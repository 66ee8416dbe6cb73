"""What a study holds of the record of a trial, for samplers and dashboards: state, gains, why not, broken limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from chorale.runners.api.base import FailureKind
from chorale.tuner.search.history import GAINS
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord

REASON = "chorale.reason"
"""User attribute of a trial without a result: why there is none."""

SENSIBLE, BUILDABLE = "sensible", "buildable"
"""Constraints that points break which are refused before anything is made, and while their programs are."""

BROKEN = 1.0
"""Value of a constraint that is broken; no more is known about how far."""

_LONGEST = 400

_OF_THE_PROGRAM = (FailureKind.WRONG_RESULT, FailureKind.REJECTED)
"""Failures that would happen again; others may be the machine's."""


def state_of(record: TrialRecord) -> TrialState:
    """Return how a trial ended: failed where trying again might help, which samplers leave out; else pruned."""
    if isinstance(record, CompleteTrial):
        return TrialState.COMPLETE
    is_infeasible = isinstance(record, PrunedTrial) or record.failure_kind in _OF_THE_PROGRAM
    return TrialState.PRUNED if is_infeasible else TrialState.FAIL


def values_of(record: TrialRecord, second_objective: str = "none") -> list[float] | None:
    """Return speed-up and second objective of a trial, None where one of them is no number."""
    if not isinstance(record, CompleteTrial):
        return None
    resources = {"none": [], "channels": [record.channels], "blocks": [record.blocks]}[second_objective]
    weights = np.array([size.weight for size in record.sizes])
    speedup = np.exp(np.average([log_speedup(size) for size in record.sizes], weights=weights))
    values = [float(speedup), *map(float, resources)]
    return values if np.all(np.isfinite(values)) else None


def constraints_of(record: TrialRecord) -> dict[str, float]:
    """Return the constraints that a trial breaks: samplers that know constraints stay away, none is set for others."""
    if isinstance(record, FailedTrial):
        return {record.failure_kind.value: BROKEN}
    return {BUILDABLE: BROKEN} if isinstance(record, PrunedTrial) and not record.program_id else {}


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """Return the gains by size of a measured trial, which `SizesSampler` understands, or why it has none."""
    if isinstance(record, CompleteTrial):
        gains = {str(size.size_bytes): log_speedup(size) for size in record.sizes}
        return {GAINS: gains} if all(map(math.isfinite, gains.values())) else {}
    if isinstance(record, FailedTrial):
        return {REASON: f"{record.failure_kind.value}: {record.message}"[:_LONGEST]}
    return {REASON: record.reason[:_LONGEST]}


def ended_trial(
    record: TrialRecord,
    values: list[float] | None,
    parameters: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    """Return the trial of a study that does not have `record` yet."""
    state = state_of(record)
    return create_trial(
        params=dict(parameters),
        distributions=dict(distributions),
        values=values,
        state=TrialState.FAIL if state == TrialState.COMPLETE and values is None else state,
        user_attrs=attributes_of(record),
        intermediate_values=steps_of(record),
        constraints=constraints_of(record),
    )


def steps_of(record: TrialRecord) -> dict[int, float]:
    """Return the intermediate values of a trial: the speed-up at each measured size, whose steps count from 1."""
    if isinstance(record, FailedTrial):
        return {}
    return {step: math.exp(log_speedup(size)) for step, size in enumerate(record.sizes, 1)}


def log_speedup(size: SizeResult) -> float:
    """Return the logarithm of the speed-up at a size; nan where times are none, such as zero."""
    try:
        return math.log(size.speedup)
    except (ValueError, ArithmeticError):
        return math.nan
