"""The experiments by name. `chorale experiment` imports this module by name, as `tuner` is below `experiments`."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping

from chorale.experiments.framework.experiment import Experiment
from chorale.synth.errors import UnknownName

_SWING_FIGURES = tuple(f"swing-figure-{number}" for number in (7, 8, 9, 11, 12, 13, 14, 15, 16))

MODULES: Mapping[str, str] = {
    "channels-live": "ours.channels_live",
    "direct-connect-figure-3": "direct_connect.bandwidth_time",
    "direct-connect-figure-6": "direct_connect.testbed_figures",
    "direct-connect-figure-7": "direct_connect.figure_7",
    "direct-connect-figure-11": "direct_connect.figure_11",
    "direct-connect-figure-13": "direct_connect.testbed_figures",
    "direct-connect-figure-14": "direct_connect.testbed_figures",
    "direct-connect-figure-15": "direct_connect.figure_15",
    "direct-connect-figure-18": "direct_connect.bandwidth_time",
    "direct-connect-table-4": "direct_connect.tables",
    "direct-connect-table-5": "direct_connect.tables",
    "direct-connect-table-6": "direct_connect.table_6",
    "direct-connect-table-7": "direct_connect.tables",
    "direct-connect-table-8": "direct_connect.tables",
    "direct-connect-table-9": "direct_connect.table_9",
    "engine-live": "ours.engine_live",
    "failure-quality": "ours.failure_quality",
    "finder-frontier": "direct_connect.finder_frontier",
    "forestcoll-figure-9": "forestcoll.figure_9",
    "forestcoll-figure-11": "forestcoll.figure_11",
    "forestcoll-optima": "forestcoll.optimality",
    "forestcoll-table-1": "forestcoll.optimality",
    "forestcoll-table-2": "forestcoll.tables",
    "forestcoll-table-3": "forestcoll.tables",
    "frontier-all": "direct_connect.frontier_all",
    "in-network": "ours.in_network",
    "in-network-live": "ours.in_network_live",
    "in-network-published": "ours.in_network",
    "in-network-random": "ours.in_network_random",
    "in-network-random-mixed": "ours.in_network_random",
    "lowering-quality": "ours.lowering_quality",
    "mi250-prediction": "ours.mi250_prediction",
    "pipeline-examples": "forestcoll.pipeline_examples",
    "replayed-tuner": "ours.replayed_tuner",
    "side-by-side": "ours.side_by_side",
    "strong-scaling": "ours.strong_scaling",
    "swing-table-2": "swing.table_2",
    "synthesis-scaling": "ours.synthesis_scaling",
    "tuning-strategies": "ours.tuning_strategies",
    **dict.fromkeys(_SWING_FIGURES, "swing.figures"),
    "training-data-parallel": "direct_connect.training",
    "training-experts": "direct_connect.training",
}
"""Name of an experiment -> the module below `chorale.experiments` that defines it, in the order of lists."""

NAMES = tuple(MODULES)

ALIASES = {
    "direct-connect-figure-8": "training-data-parallel",
    "direct-connect-figure-9": "training-experts",
    "direct-connect-figure-10": "direct-connect-table-6",
}
"""Tables and figures that an experiment of another name reproduces too."""


def load(name: str) -> Experiment:
    """Return the experiment called `name`, in `ALIASES` too; raises InvalidInput with the names that come close."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        close = difflib.get_close_matches(name, (*NAMES, *ALIASES), n=2)
        way_out = f"did you mean {' or '.join(map(repr, close))}?" if close else "see `chorale experiment list`"
        raise UnknownName("experiment", name, way_out)
    module = importlib.import_module(f"chorale.experiments.{MODULES[name]}")
    values = [*vars(module).values(), *getattr(module, "EXPERIMENTS", {}).values()]
    return next(value for value in values if isinstance(value, Experiment) and value.name == name)


def aliases_of(name: str) -> tuple[str, ...]:
    """Return the other names of the experiment called `name`."""
    return tuple(alias for alias, target in ALIASES.items() if target == name)


def load_all() -> tuple[Experiment, ...]:
    """Return all experiments in the order of `NAMES`."""
    return tuple(map(load, NAMES))
