"""The experiments by name. `chorale experiment` imports this module by name, because `tuner` is a lower layer."""

import difflib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from chorale.experiments.framework.experiment import Experiment
from chorale.synth.errors import UnknownName

_SWING_FIGURES = tuple(f"swing-figure-{number}" for number in (7, 8, 9, 11, 12, 13, 14, 15, 16))

MODULES: Mapping[str, str] = {
    "channels-live": "ours.live",
    "direct-connect-figure-3": "direct_connect.models",
    "direct-connect-figure-6": "direct_connect.testbed",
    "direct-connect-figure-7": "direct_connect.models",
    "direct-connect-figure-11": "direct_connect.testbed",
    "direct-connect-figure-13": "direct_connect.testbed",
    "direct-connect-figure-14": "direct_connect.testbed",
    "direct-connect-figure-15": "direct_connect.frontiers",
    "direct-connect-figure-18": "direct_connect.models",
    "direct-connect-table-4": "direct_connect.tables",
    "direct-connect-table-5": "direct_connect.tables",
    "direct-connect-table-6": "direct_connect.tables",
    "direct-connect-table-7": "direct_connect.tables",
    "direct-connect-table-8": "direct_connect.tables",
    "direct-connect-table-9": "direct_connect.tables",
    "engine-live": "ours.live",
    "failure-quality": "ours.quality",
    "finder-frontier": "direct_connect.frontiers",
    "forestcoll-figure-9": "forestcoll.figures",
    "forestcoll-figure-11": "forestcoll.figures",
    "forestcoll-optima": "forestcoll.tables",
    "forestcoll-table-1": "forestcoll.tables",
    "forestcoll-table-2": "forestcoll.tables",
    "forestcoll-table-3": "forestcoll.tables",
    "frontier-all": "direct_connect.frontiers",
    "in-network": "ours.in_network",
    "in-network-live": "ours.in_network",
    "in-network-published": "ours.in_network",
    "in-network-random": "ours.in_network",
    "in-network-random-mixed": "ours.in_network",
    "lowering-quality": "ours.quality",
    "mi250-prediction": "ours.tuning",
    "pipeline-examples": "forestcoll.figures",
    "replayed-tuner": "ours.tuning",
    "side-by-side": "ours.quality",
    "strong-scaling": "ours.scaling",
    "swing-table-2": "swing.figures",
    "synthesis-scaling": "ours.scaling",
    "tuning-strategies": "ours.tuning",
    **dict.fromkeys(_SWING_FIGURES, "swing.figures"),
    "training-data-parallel": "direct_connect.training",
    "training-experts": "direct_connect.training",
}
"""The module in `chorale.experiments` that defines each experiment, in list order."""

NAMES = tuple(MODULES)

ALIASES = {
    "direct-connect-figure-8": "training-data-parallel",
    "direct-connect-figure-9": "training-experts",
    "direct-connect-figure-10": "direct-connect-table-6",
}
"""Maps tables and figures to the experiment that reproduces them under another name."""


def load(name: str) -> Experiment:
    """Return the experiment called `name`, which may be one of `ALIASES`. Raises UnknownName with similar names."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        close = difflib.get_close_matches(name, (*NAMES, *ALIASES), n=2)
        way_out = f"did you mean {' or '.join(map(repr, close))}?" if close else "see `chorale experiment list`"
        raise UnknownName("experiment", name, way_out)
    module = importlib.import_module(f"chorale.experiments.{MODULES[name]}")
    values = [*vars(module).values(), *getattr(module, "EXPERIMENTS", {}).values()]
    return next(value for value in values if isinstance(value, Experiment) and value.name == name)


def aliases_of(name: str) -> tuple[str, ...]:
    return tuple(alias for alias, target in ALIASES.items() if target == name)


def load_all() -> tuple[Experiment, ...]:
    """Return all experiments in the order of `NAMES`."""
    return tuple(map(load, NAMES))


FILE = Path(__file__).with_name("summaries.json")


class Summary(NamedTuple):
    """A list entry for an experiment: its name, its aliases, its question, and the question's source."""

    name: str
    aliases: tuple[str, ...]
    question: str
    source: str


def summaries() -> tuple[Summary, ...]:
    """Return the summaries of all experiments, in list order."""
    return tuple(Summary(aliases=aliases_of(entry["name"]), **entry) for entry in json.loads(FILE.read_bytes()))


def file_text() -> str:
    """Return the summary file's content, computed from the experiments, all of which are imported."""
    entries = [{"name": e.name, "question": e.question, "source": e.source} for e in load_all()]
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_text(), encoding="utf-8")
