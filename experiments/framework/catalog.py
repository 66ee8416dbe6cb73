"""The experiments by name. The command imports this module by name, and nothing else does."""

from __future__ import annotations

import difflib
import importlib

from chorale.experiments.framework.experiment import Experiment
from chorale.synth.errors import InvalidInput

_SWING_FIGURES = tuple(f"swing-figure-{number}" for number in (7, 8, 9, 11, 12, 13, 14, 15, 16))
_TRAINING = ("training-data-parallel", "training-experts")
_SHARED = {**dict.fromkeys(_SWING_FIGURES, "swing_figures"), **dict.fromkeys(_TRAINING, "training")}
"""Experiments that share a file, which defines EXPERIMENTS by name."""

NAMES = (
    "channels-live",
    "direct-connect-figure-3",
    "direct-connect-figure-6",
    "direct-connect-figure-7",
    "direct-connect-figure-11",
    "direct-connect-figure-13",
    "direct-connect-figure-14",
    "direct-connect-figure-15",
    "direct-connect-figure-18",
    "direct-connect-table-4",
    "direct-connect-table-5",
    "direct-connect-table-6",
    "direct-connect-table-7",
    "direct-connect-table-8",
    "direct-connect-table-9",
    "failure-quality",
    "finder-frontier",
    "forestcoll-figure-9",
    "forestcoll-figure-11",
    "forestcoll-optima",
    "forestcoll-table-1",
    "forestcoll-table-2",
    "forestcoll-table-3",
    "frontier-all",
    "lowering-quality",
    "mi250-prediction",
    "pipeline-examples",
    "side-by-side",
    "strong-scaling",
    "swing-table-2",
    "synthesis-scaling",
    "tuning-strategies",
    *_SWING_FIGURES,
    *_TRAINING,
)
"""Each is a file of this package, with underscores, that defines EXPERIMENT, or shares one."""

ALIASES = {
    "direct-connect-figure-8": "training-data-parallel",
    "direct-connect-figure-9": "training-experts",
    "direct-connect-figure-10": "direct-connect-table-6",
}
"""Tables and figures that an experiment of another name answers too."""


def module_of(name: str) -> str:
    """Return the name of the module that defines the experiment called `name`."""
    return f"chorale.experiments.{_SHARED.get(name, name.replace('-', '_'))}"


def load(name: str) -> Experiment:
    """Return the experiment called `name`, in `ALIASES` too; raises InvalidInput with the names that come close."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        close = difflib.get_close_matches(name, (*NAMES, *ALIASES), n=2)
        way_out = f"did you mean {' or '.join(close)}" if close else "see `chorale experiment list`"
        raise InvalidInput("an experiment must be one that is known", name or '""', way_out)
    module = importlib.import_module(module_of(name))
    experiment: Experiment = module.EXPERIMENTS[name] if name in _SHARED else module.EXPERIMENT
    return experiment


def aliases_of(name: str) -> tuple[str, ...]:
    """Return what else finds the experiment called `name`."""
    return tuple(alias for alias, meant in ALIASES.items() if meant == name)


def load_all() -> tuple[Experiment, ...]:
    """Return all experiments in the order of `NAMES`."""
    return tuple(map(load, NAMES))
