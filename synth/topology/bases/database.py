"""Loads the base graphs that ship with this package: edges or groups, claims, and stored schedules.

This is the only module in `synth` that reads files. The files are part of the package and never change.
"""

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from typing import Any

from chorale.synth.errors import UnknownName

BASE_FILES = ("special.json", "cayley.json", "searched.json")


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that an allgather with `method` takes `steps` steps and a bandwidth time of `bandwidth_factor` M / B.

    method: "bfb" for breadth-first broadcast, or "own" for the stored schedule
    """

    method: str
    steps: int
    bandwidth_factor: Fraction


@dataclass(frozen=True, slots=True)
class StoredSends:
    """A stored schedule as rows (step from 0, link, shard, lo, hi), with `chunks_per_shard` chunks per shard.

    `link` is an index into the entry's edges, which are sorted by link id. In a schedule for the transpose, `link` is a
    link id of the transpose.
    """

    chunks_per_shard: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A base graph, given either by its `edges` or as the Cayley digraph of a `group`.

    edges:      (source, target), sorted by (target, source)
    group:      (m, k, r, l) of `chorale.synth.topology.families.directed.SemidirectProduct`
    generators: ranks of the group elements that generate the group
    claim:      steps and bandwidth, re-derived by a test; no code relies on the claim without verifying it
    schedule:   stored schedule, if it is better than BFB
    transposed_schedule: schedule for the transpose, if the transpose is a different network; the link loads in each
                step are the same as in `schedule`, and the claim holds for both
    source:     paper or search from which the graph comes
    """

    name: str
    nodes: int
    degree: int
    claim: Claim
    source: str
    edges: tuple[tuple[int, int], ...] | None = None
    group: tuple[int, int, int, int] | None = None
    generators: tuple[int, ...] = ()
    schedule: StoredSends | None = None
    transposed_schedule: StoredSends | None = None

    @property
    def has_stored_schedule(self) -> bool:
        return self.schedule is not None


def base_documents(file_name: str) -> list[dict[str, Any]]:
    """Return the entries of a database file as parsed JSON. An entry's `id` is the hash of its other members."""
    content = pkgutil.get_data("chorale.synth.topology.bases", file_name)
    assert content is not None  # the package is in a folder or a zip file
    return list(json.loads(content)["entries"])


@cache
def load_bases() -> Mapping[str, BaseEntry]:
    """Return all entries of the database by name, in file order."""
    entries: dict[str, BaseEntry] = {}
    for facts in (facts for file_name in BASE_FILES for facts in base_documents(file_name)):
        claim, edges, group = facts["claim"], facts.get("edges"), facts.get("group")
        schedules = {
            key: StoredSends(facts[key]["chunks_per_shard"], tuple(map(tuple, facts[key]["rows"])))
            for key in ("schedule", "transposed_schedule")
            if key in facts
        }
        entries[facts["name"]] = BaseEntry(
            name=facts["name"],
            nodes=facts["nodes"],
            degree=facts["degree"],
            claim=Claim(claim["method"], claim["steps"], Fraction(claim["bandwidth_factor"])),
            source=facts["source"],
            edges=None if edges is None else tuple((source, target) for source, target in edges),
            group=None if group is None else (group[0], group[1], group[2], group[3]),
            generators=tuple(facts.get("generators", ())),
            **schedules,
        )
    return entries


@cache
def names_of(nodes: int, degree: int) -> tuple[str, ...]:
    """Return the names of the entries with this node count and degree, in file order."""
    return tuple(name for name, entry in load_bases().items() if (entry.nodes, entry.degree) == (nodes, degree))


def base_entry(name: str) -> BaseEntry:
    """Return the entry called `name`. Raises UnknownName with similar names."""
    entries = load_bases()
    if name in entries:
        return entries[name]
    close = " or ".join(map(repr, get_close_matches(name, entries, n=3)))
    hint = f"did you mean {close}?" if close else f"choose from {', '.join(list(entries)[:8])}, …"
    raise UnknownName("base", name, hint)
