"""The experiments by name. `chorale experiment` imports this module by name, because `tuner` is a lower layer."""

import difflib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from chorale.experiments.framework.experiment import Experiment
from chorale.synth.errors import UnknownName

FILE = Path(__file__).with_name("summaries.json")
"""The list of experiments: the name, the module in `chorale.experiments` that defines it, question and source.

To add an experiment, add its name and module, and run this module, which fills in the rest.
"""
_ENTRIES: Mapping[str, Mapping[str, str]] = {entry["name"]: entry for entry in json.loads(FILE.read_bytes())}

NAMES = tuple(_ENTRIES)

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
    module = importlib.import_module(f"chorale.experiments.{_ENTRIES[name]['module']}")
    values = [*vars(module).values(), *getattr(module, "EXPERIMENTS", {}).values()]
    return next(value for value in values if isinstance(value, Experiment) and value.name == name)


def load_all() -> tuple[Experiment, ...]:
    """Return all experiments in the order of `NAMES`."""
    return tuple(map(load, NAMES))


class Summary(NamedTuple):
    """A list entry for an experiment: its name, its aliases, its question, and the question's source."""

    name: str
    aliases: tuple[str, ...]
    question: str
    source: str


def summaries() -> tuple[Summary, ...]:
    """Return the summaries of all experiments, in list order."""
    aliases = {name: tuple(alias for alias, target in ALIASES.items() if target == name) for name in NAMES}
    return tuple(Summary(name, aliases[name], one["question"], one["source"]) for name, one in _ENTRIES.items())


def file_text() -> str:
    """Return the up-to-date content of summaries.json. This imports all experiments."""
    entries = [
        {"name": e.name, "module": _ENTRIES[e.name]["module"], "question": e.question, "source": e.source}
        for e in load_all()
    ]
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_text(), encoding="utf-8")
