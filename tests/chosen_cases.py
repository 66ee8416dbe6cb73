"""Experiments on a few cases only."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chorale.experiments.framework.experiment import Experiment, Row
from chorale.experiments.framework.run import load, run_experiment


def with_cases(name: str, choose: Callable[[Sequence[Any]], Sequence[Any]]) -> Experiment:
    """Return the experiment `name` on what `choose` makes of its cases."""
    experiment = load(name)
    return replace(experiment, cases=choose(experiment.cases), quick=choose(experiment.chosen(quick=True)))


def rows_of(name: str, choose: Callable[[Sequence[Any]], Sequence[Any]], quick: bool = True) -> Sequence[Row]:
    """Return the rows of the experiment `name` on what `choose` makes of its cases."""
    return run_experiment(with_cases(name, choose), quick).rows
