"""Experiments: the papers' printed results compared with the results of this code, and our own measurements.

The names below are stable; each is imported when it is first used.
"""

from typing import TYPE_CHECKING

from chorale.synth.lazy_modules import lazy_names

if TYPE_CHECKING:
    from chorale.experiments.framework.catalog import NAMES as NAMES
    from chorale.experiments.framework.catalog import load as load
    from chorale.experiments.framework.catalog import load_all as load_all
    from chorale.experiments.framework.experiment import Column as Column
    from chorale.experiments.framework.experiment import Experiment as Experiment
    from chorale.experiments.framework.experiment import Row as Row
    from chorale.experiments.framework.run import ExperimentResult as ExperimentResult
    from chorale.experiments.framework.run import PartStore as PartStore
    from chorale.experiments.framework.run import run_experiment as run_experiment

_HOMES = {
    "chorale.experiments.framework.catalog": "NAMES load load_all",
    "chorale.experiments.framework.experiment": "Column Experiment Row",
    "chorale.experiments.framework.run": "ExperimentResult PartStore run_experiment",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]  # found on first use
__getattr__ = lazy_names(__name__, _HOMES)
