"""The base graphs that ship with this package: entries with edges or a group, claims and a content id.

The only file in `synth` that reads files: data of the package itself, as constant as its code.
"""

import difflib
import json
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from chorale.synth.errors import ChoraleError, InvalidInput, UnknownName
from chorale.synth.identity import content_id, parse_rational

FORMAT = "chorale-bases/1"
_WAY_OUT = (
    "restore the file from the distribution, or write it anew with chorale.synth.topology.bases.database.write_entries"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Allgather in `steps` steps at T_B = `bandwidth_factor` M / B, by `method`: "bfb", or "own" for what is stored."""

    method: str
    steps: int
    bandwidth_factor: Fraction


@dataclass(frozen=True, slots=True)
class StoredSends:
    """A stored schedule: rows (0-based step, link, shard, lo, hi), chunks in units of 1 / `chunks_per_shard`.

    A link is an index into the edges of the entry, which are in the order of link ids; for the transpose, into its
    links in the order of their ids there.
    """

    chunks_per_shard: int
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A base graph of `nodes` nodes and `degree`: either by `edges` or as a Cayley digraph.

    edges:      (source, target), sorted by (target, source)
    group:      (m, k, r, l) of `chorale.synth.topology.families.directed`, with `generators` by rank
    claim:      what a test re-derives; nothing relies on it unverified
    schedule:   its own schedule where that is better than BFB
    transposed_schedule: the same for the transpose, where that is not the same network, of equal loads in every step;
                the claim holds for it too
    source:     where it comes from
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


def read_entries(content: bytes, file_name: str) -> dict[str, BaseEntry]:
    """Return the entries in `content` by name, each checked against its content id.

    Raises InvalidInput naming the file and entry for anything that is not as it was written.
    """
    rule = f"{file_name} must be of the format {FORMAT}"
    try:
        document = json.loads(content)
        if set(document) != {"format", "entries"} or document["format"] != FORMAT:
            raise ValueError(rule)
        items: list[dict[str, Any]] = [dict(item) for item in document["entries"]]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(rule, str(error) or "something else", _WAY_OUT) from None
    entries: dict[str, BaseEntry] = {}
    for number, item in enumerate(items):
        what = f"entry {item.get('name', f'number {number}')} of {file_name}"
        facts = {key: value for key, value in item.items() if key != "id"}
        try:
            stated, found = item["id"], content_id(facts)
            entry = _entry(facts) if stated == found else None
        except (AttributeError, KeyError, TypeError, ValueError, ChoraleError) as error:
            raise InvalidInput(f"{what} must be of the format {FORMAT}", str(error), _WAY_OUT) from None
        if entry is None:
            rule = f"{what} must have the content that its id names"
            raise InvalidInput(rule, f"id {stated}, content {found}", _WAY_OUT)
        if entry.name in entries:
            raise InvalidInput(f"entries of {file_name} must have names of their own", entry.name, _WAY_OUT)
        entries[entry.name] = entry
    return entries


def write_entries(entries: Iterable[BaseEntry]) -> bytes:
    """Return the file that `read_entries` reads: JSON, one entry a line, with content ids."""
    all_facts = [_facts(entry) for entry in entries]
    lines = [json.dumps({**facts, "id": content_id(facts)}, separators=(",", ":")) for facts in all_facts]
    return (f'{{"format":"{FORMAT}","entries":[\n' + ",\n".join(lines) + "\n]}\n").encode()


def _facts(entry: BaseEntry) -> dict[str, Any]:
    """Return the entry as JSON has it, in the order of the files; its content id is that of these facts."""
    claim = entry.claim
    facts: dict[str, Any] = {
        "name": entry.name,
        "nodes": entry.nodes,
        "degree": entry.degree,
        "claim": {
            "method": claim.method,
            "steps": claim.steps,
            "bandwidth_factor": str(claim.bandwidth_factor),
        },
    }
    if entry.edges is not None:
        facts["edges"] = entry.edges
    if entry.group is not None:
        facts |= {"group": entry.group, "generators": entry.generators}
    for key, sends in (("schedule", entry.schedule), ("transposed_schedule", entry.transposed_schedule)):
        if sends is not None:
            facts[key] = {"chunks_per_shard": sends.chunks_per_shard, "rows": sends.rows}
    return facts | {"source": entry.source}


def _entry(facts: Mapping[str, Any]) -> BaseEntry:
    """Return the entry of `facts`, whose content id has been checked."""
    claim, edges = facts["claim"], facts.get("edges")
    factor = parse_rational(claim["bandwidth_factor"], "bandwidth_factor")
    schedules = {
        key: StoredSends(sends["chunks_per_shard"], tuple(map(tuple, sends["rows"])))
        for key in ("schedule", "transposed_schedule")
        if (sends := facts.get(key)) is not None
    }
    group = facts.get("group")
    return BaseEntry(
        name=facts["name"],
        nodes=facts["nodes"],
        degree=facts["degree"],
        claim=Claim(claim["method"], claim["steps"], factor),
        source=facts["source"],
        edges=None if edges is None else tuple((source, target) for source, target in edges),
        group=None if group is None else (group[0], group[1], group[2], group[3]),
        generators=tuple(facts.get("generators", ())),
        **schedules,
    )


BASE_FILES = ("special.json", "cayley.json", "searched.json")


@cache
def load_bases() -> Mapping[str, BaseEntry]:
    """Return all shipped entries by name, read and checked once."""
    entries: dict[str, BaseEntry] = {}
    for file_name in BASE_FILES:
        entries |= read_entries(base_file_content(file_name), file_name)
    return entries


@cache
def names_of(nodes: int, degree: int) -> tuple[str, ...]:
    """Return the names of the entries of one size, in order."""
    return tuple(name for name, entry in load_bases().items() if (entry.nodes, entry.degree) == (nodes, degree))


def base_names() -> tuple[str, ...]:
    """Return the names of all shipped entries, in the order of the files."""
    return tuple(load_bases())


def base_entry(name: str) -> BaseEntry:
    """Return the entry called `name`; raises InvalidInput with the names that come close."""
    entries = load_bases()
    if name in entries:
        return entries[name]
    close = difflib.get_close_matches(name, entries, n=3)
    suggestion = (
        f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose from {', '.join(list(entries)[:8])}, …"
    )
    raise UnknownName("base", name, suggestion)


def base_file_content(file_name: str) -> bytes:
    """Return the bytes of a file of the database."""
    content = pkgutil.get_data("chorale.synth.topology.bases", file_name)
    assert content is not None  # the package is in a folder or a zip file
    return content
