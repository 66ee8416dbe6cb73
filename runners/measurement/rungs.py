"""Few repetitions first, and the others for programs that may still win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chorale.runners.api import Measurement, Outcome, RunFailure, Runner, RunRequest, SizeMeasurement
from chorale.runners.race import Race


def measure_in_rungs(runner: Runner, request: RunRequest) -> Outcome:
    """Measure `request`, the first repetitions alone where it is a race; a program that is out has only these.

    Both parts have the whole time limit for themselves, and a part that fails is the answer.
    """
    race = request.race
    if race is None or race.first_repeats >= request.repeats:
        return runner.submit(request)
    first = runner.submit(replace(request, repeats=race.first_repeats))
    if isinstance(first, RunFailure) or is_eliminated(first, race):
        return first
    rest = runner.submit(replace(request, repeats=request.repeats - race.first_repeats, seed=request.seed + 2**31))
    return rest if isinstance(rest, RunFailure) else _joined(first, rest)


def is_eliminated(measurement: Measurement, race: Race) -> bool:
    """Whether a program is clearly slower than the best known at every size.

    Repetitions are compared one by one with those of the reference that ran beside them, so that a load on the machine
    that slows both changes nothing. Were the program as fast as the best known, n repetitions at one size would all
    exceed the ratio with probability 2^-n or less.
    """
    sizes = enumerate(race.ratios)
    return all(_lowest_ratio(measurement, race, index) > ratio * (1 + race.margin) for index, ratio in sizes)


def _lowest_ratio(measurement: Measurement, race: Race, index: int) -> float:
    references = [measurement.results[name][index] for name in race.references]
    fastest = min(references, key=lambda one: one.median_s)
    return float(np.min(np.array(measurement.results[race.name][index].times_s) / np.array(fastest.times_s)))


def _joined(first: Measurement, rest: Measurement) -> Measurement:
    results = {name: _in_order(early, rest.results[name]) for name, early in first.results.items()}
    return Measurement(first.runner, results, rest.environment)


def _in_order(early: Sequence[SizeMeasurement], late: Sequence[SizeMeasurement]) -> tuple[SizeMeasurement, ...]:
    return tuple(replace(one, times_s=one.times_s + more.times_s) for one, more in zip(early, late, strict=True))
