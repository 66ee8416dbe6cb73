"""The base graphs that ship with this package: entries with edges or a group, claims and a content id.

The only file in `synth` that reads files: data of the package itself, as constant as its code.
"""

from __future__ import annotations

import difflib
import json
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar

from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.identity import content_id, parse_rational

FORMAT = "chorale-bases/1"
_KEYS = {"name", "nodes", "degree", "claim", "source", "id"}
_FORMS = (
    {"edges"},
    {"edges", "schedule"},
    {"edges", "transposed_schedule"},
    {"edges", "schedule", "transposed_schedule"},
    {"group", "generators"},
)
_WAY_OUT = (
    "restore the file from the distribution, or write it anew with chorale.synth.topology.bases.database.write_entries"
)

ParsedT = TypeVar("ParsedT")


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

    @property
    def id(self) -> str:
        """Content id over everything else."""
        return content_id(_facts(self))


def read_entries(content: bytes, file_name: str) -> dict[str, BaseEntry]:
    """Return the entries in `content` by name, each checked against its content id.

    Raises InvalidInput naming the file and entry for anything that is not as it was written.
    """
    return dict(StoredEntries(_named_items(content, file_name)))


class StoredEntries(Mapping[str, BaseEntry]):
    """Entries by name, each made and checked against its content id when it is first asked for."""

    def __init__(self, stored: Iterable[StoredItem]) -> None:
        self._items = {item.name: item for item in stored}
        self._made: dict[str, BaseEntry] = {}

    def __getitem__(self, name: str) -> BaseEntry:
        """Return the entry. Raises InvalidInput naming file and entry where it is not as it was written."""
        if name not in self._made:
            self._made[name] = self._items[name].entry()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def names_of(self, nodes: int, degree: int) -> tuple[str, ...]:
        """Return the names of the entries of one size, in order; none of them is made."""
        return self._names_by_size.get((nodes, degree), ())

    @cached_property
    def _names_by_size(self) -> dict[tuple[int, int], tuple[str, ...]]:
        sizes: dict[tuple[int, int], tuple[str, ...]] = {}
        for name, item in self._items.items():
            size = int(item.fields["nodes"]), int(item.fields["degree"])
            sizes[size] = (*sizes.get(size, ()), name)
        return sizes


class StoredItem(NamedTuple):
    """An entry as JSON has it; nothing but its name is checked."""

    name: str
    fields: dict[str, Any]
    file_name: str

    def entry(self) -> BaseEntry:
        """Return the entry. Raises InvalidInput as `read_entries` does."""
        what = f"entry {self.name} of {self.file_name}"
        entry = _parsed(partial(_entry, self.fields), f"{what} must be of the format {FORMAT}")
        if self.fields["id"] != entry.id:
            value = f"id {self.fields['id']}, content {entry.id}"
            raise InvalidInput(f"{what} must have the content that its id names", value, _WAY_OUT)
        return entry


def _named_items(content: bytes, file_name: str) -> list[StoredItem]:
    document = _parsed(lambda: json.loads(content), f"{file_name} must be valid JSON")
    listed = _parsed(lambda: _listed(document), f"{file_name} must be of the format {FORMAT}")
    items = [StoredItem(str(item.get("name", f"number {n}")), item, file_name) for n, item in enumerate(listed)]
    again = [name for name, count in Counter(item.name for item in items).items() if count > 1]
    if again:
        raise InvalidInput(f"entries of {file_name} must have names of their own", again[0], _WAY_OUT)
    return items


def write_entries(entries: Iterable[BaseEntry]) -> bytes:
    """Return the file that `read_entries` reads: JSON, one entry a line, with content ids."""
    lines = [json.dumps(_plain({**_facts(entry), "id": entry.id}), separators=(",", ":")) for entry in entries]
    return (f'{{"format":"{FORMAT}","entries":[\n' + ",\n".join(lines) + "\n]}\n").encode()


def _facts(entry: BaseEntry) -> dict[str, Any]:
    claim = {
        "method": entry.claim.method,
        "steps": entry.claim.steps,
        "bandwidth_factor": entry.claim.bandwidth_factor,
    }
    facts: dict[str, Any] = {"name": entry.name, "nodes": entry.nodes, "degree": entry.degree, "claim": claim}
    if entry.edges is not None:
        facts["edges"] = entry.edges
    if entry.group is not None:
        facts |= {"group": entry.group, "generators": entry.generators}
    for key, sends in (("schedule", entry.schedule), ("transposed_schedule", entry.transposed_schedule)):
        if sends is not None:
            facts[key] = {"chunks_per_shard": sends.chunks_per_shard, "rows": sends.rows}
    return facts | {"source": entry.source}


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    claim = facts["claim"] | {"bandwidth_factor": str(facts["claim"]["bandwidth_factor"])}
    return {**facts, "claim": claim}


def _listed(document: Any) -> list[dict[str, Any]]:
    if set(document) != {"format", "entries"} or document["format"] != FORMAT:
        raise ValueError
    if not all(isinstance(item, dict) for item in document["entries"]):
        raise ValueError
    return list(document["entries"])


def _entry(item: dict[str, Any]) -> BaseEntry:
    if item.keys() - _KEYS not in _FORMS or not item.keys() >= _KEYS:
        raise ValueError
    claim, group = item["claim"], item.get("group")
    factor = parse_rational(claim["bandwidth_factor"], "bandwidth_factor")
    entry = BaseEntry(
        name=item["name"],
        nodes=_count(item["nodes"]),
        degree=_count(item["degree"]),
        claim=Claim(claim["method"], _count(claim["steps"]), factor),
        source=item["source"],
        edges=_pairs(item["edges"]) if "edges" in item else None,
        group=None if group is None else _four(group),
        generators=_counts(item.get("generators", [])),
        schedule=_sends(item.get("schedule")),
        transposed_schedule=_sends(item.get("transposed_schedule")),
    )
    links = len(entry.edges) if entry.edges is not None else entry.nodes * len(entry.generators)
    if links != entry.nodes * entry.degree:
        raise ValueError
    return entry


def _sends(item: Any) -> StoredSends | None:
    if item is None:
        return None
    return StoredSends(_count(item["chunks_per_shard"]), tuple(_counts(row) for row in item["rows"]))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def _counts(values: Any) -> tuple[int, ...]:
    return tuple(_count(value) for value in values)


def _pairs(values: Any) -> tuple[tuple[int, int], ...]:
    pairs = tuple((_count(source), _count(target)) for source, target in values)
    if list(pairs) != sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        raise ValueError("edges that are not sorted by (target, source)")
    return pairs


def _four(values: Any) -> tuple[int, int, int, int]:
    m, k, r, l = _counts(values)  # noqa: E741 - the letters that files and specs use
    return m, k, r, l


def _parsed(read: Callable[[], ParsedT], rule: str) -> ParsedT:
    try:
        return read()
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(rule, str(error) or "something else", _WAY_OUT) from None


BASE_FILES = ("special.json", "cayley.json", "searched.json")


@cache
def load_bases() -> StoredEntries:
    """Return all shipped entries by name, read once; each is checked against its content id when it is asked for."""
    return StoredEntries(item for name in BASE_FILES for item in _named_items(base_file_content(name), name))


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
