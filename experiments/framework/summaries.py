"""Question and source of every experiment, in a file: a list of them imports none.

`python -m chorale.experiments.framework.summaries` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from chorale.experiments.framework.catalog import aliases_of, load_all

FILE = Path(__file__).with_name("summaries.json")


class Summary(NamedTuple):
    """What an experiment answers: its name, others that mean it, the question and where that comes from."""

    name: str
    aliases: tuple[str, ...]
    question: str
    source: str


def summaries() -> tuple[Summary, ...]:
    """Return those of all experiments, in the order of lists."""
    return tuple(Summary(aliases=aliases_of(entry["name"]), **entry) for entry in json.loads(FILE.read_bytes()))


def file_text() -> str:
    """Return the file as the experiments have it. Imports all of them."""
    entries = [{"name": e.name, "question": e.question, "source": e.source} for e in load_all()]
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(file_text(), encoding="utf-8")
