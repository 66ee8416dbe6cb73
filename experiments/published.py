"""Numbers that a paper printed: facts to compare with, never used as results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

FILE = "direct-connect.json"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of a table.

    topology: as the paper names it; "bound" for what no network can beat
    spec, method: what we read that as, and the method of its schedule; empty for a bound
    printed: texts by quantity, with the digits that were printed
    note: what the paper leaves open, or prints in a way that has to be explained
    """

    topology: str
    nodes: int
    printed: Mapping[str, str]
    spec: str = ""
    method: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.topology}"

    @property
    def is_bound(self) -> bool:
        """Whether the row is what no network can beat."""
        return not self.spec


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The rows of a table in the order of the paper, and where they stand."""

    source: str
    rows: tuple[PublishedRow, ...]


def published(table: str) -> PublishedTable:
    """Return table `table` of the direct-connect paper, such as "7"."""
    document = json.loads(resources.files("chorale.experiments").joinpath("data", FILE).read_bytes())
    found = document["tables"][table]
    return PublishedTable(
        f"{document['source']}, {found['where']}", tuple(PublishedRow(**row) for row in found["rows"])
    )
