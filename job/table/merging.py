"""Merges and compares tuning tables for the same ranks on the same network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from chorale.job.table.layout import JobEntry, Json, Table, table_bytes
from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.synth.errors import InvalidInput

MAX_NAMED = 5
PREFERENCES = ("first", "last")
NOTHING = "nothing"
LIBRARY = "library"
_Key = tuple[str, str, tuple[int, ...] | None, int | None]


@dataclass(frozen=True, slots=True)
class SizeRange:
    """A range of sizes from `first` to `last` bytes, both inclusive; None means no limit."""

    first: int
    last: int | None

    @staticmethod
    def of(entry: JobEntry) -> SizeRange:
        return SizeRange(entry.min_bytes, entry.max_bytes)

    def overlaps(self, other: SizeRange) -> bool:
        return not (self._ends_before(other) or other._ends_before(self))

    def without(self, others: Iterable[SizeRange]) -> list[SizeRange]:
        """Return the parts of this range that are in none of `others` (which must not overlap), in ascending order."""
        pieces, first = [], self.first
        for other in sorted((other for other in others if self.overlaps(other)), key=lambda item: item.first):
            if first < other.first:
                pieces.append(SizeRange(first, other.first - 1))
            if other.last is None:
                return pieces
            first = max(first, other.last + 1)
        return [*pieces, SizeRange(first, self.last)] if self.last is None or first <= self.last else pieces

    def _ends_before(self, other: SizeRange) -> bool:
        return self.last is not None and self.last < other.first

    def __str__(self) -> str:
        return f"{format_size(self.first) if self.first else 0}-{'' if self.last is None else format_size(self.last)}"


def parse_range(text: str) -> SizeRange:
    """Parse a size range. Both ends are inclusive, and either may be missing. A series of sizes such as 4KiB:1GiB:x4
    means the range from its first to its last size.

    >>> parse_range("1KiB-64MiB"), parse_range("64KiB-")
    (SizeRange(first=1024, last=67108864), SizeRange(first=65536, last=None))
    """
    way_out = "write, for example, 1KiB-64MiB, 64KiB- or -4KiB; both ends are included"
    if text.count(":") == 2:
        listed = parse_sizes(text)
        return SizeRange(min(listed), max(listed))
    first, dash, last = (part.strip() for part in text.replace(":", "-", 1).partition("-"))
    if not dash:
        raise InvalidInput("a range of sizes must have the form FIRST-LAST", text, way_out)
    low = 0 if first in ("", "0") else parse_size(first)
    high = parse_size(last) if last else None
    if high is not None and high < low:
        raise InvalidInput("a range of sizes must not end before it begins", text, way_out)
    return SizeRange(low, high)


def sort_key(entry: JobEntry) -> tuple[object, ...]:
    """Return the key by which a table's entries are sorted: collective, group, root, type, then size."""
    root = -1 if entry.root is None else entry.root
    return entry.collective, entry.group or (), root, entry.dtype, entry.min_bytes


def describe(entry: JobEntry) -> str:
    group = "" if entry.group is None else f" of ranks {','.join(map(str, entry.group))}"
    root = "" if entry.root is None else f" from rank {entry.root}"
    return f"{entry.collective}{root}{group}, {entry.dtype}, {SizeRange.of(entry)}"


def overlapping(entries: Sequence[JobEntry]) -> list[tuple[JobEntry, JobEntry]]:
    """Return the pairs of overlapping entries that have the same key and are neighbours when sorted by size.

    If the result is empty, no two entries with the same key overlap.
    """
    pairs = []
    for _, group in groupby(sorted(entries, key=sort_key), key=lambda entry: entry.key):
        pairs += [pair for pair in pairwise(group) if SizeRange.of(pair[0]).overlaps(SizeRange.of(pair[1]))]
    return pairs


def require_disjoint(entries: Sequence[JobEntry], way_out: str) -> None:
    """Raise InvalidInput if entries with the same key overlap. The error lists the first few pairs."""
    pairs = overlapping(entries)
    if pairs:
        texts = [f"{describe(one)} and {SizeRange.of(other)}" for one, other in pairs[:MAX_NAMED]]
        more = [f"{len(pairs) - MAX_NAMED} more"] if len(pairs) > MAX_NAMED else []
        raise InvalidInput("two entries cover the same sizes: {}", "; ".join([*texts, *more]), way_out)


def merge(tables: Sequence[Table], prefer: str | None = None) -> Table:
    """Merge `tables` (at least one) into one table.

    prefer: `first` or `last`: the table whose entry wins a conflict, that is, if two entries cover the same sizes. The
            other entry keeps its remaining sizes. With None, a conflict raises InvalidInput. Entries with the same
            program and settings do not conflict; sizes that both cover stay in the entry of the first table (with
            `last`, of the last table).

    Also raises InvalidInput if the tables are for different rank counts or networks. A table that only has entries for
    groups does not name the job's network, so it can be merged with a table for any network.
    """
    if prefer not in (None, *PREFERENCES):
        raise InvalidInput("unknown preference '{}'", prefer, f"choose {' or '.join(PREFERENCES)}")
    # Refuse tables of different jobs
    way_out = "merge tables of one job only"
    ranks = sorted({table.ranks for table in tables})
    if len(ranks) > 1:
        raise InvalidInput("the tables differ in their rank counts: {}", f"{', '.join(map(str, ranks))} ranks", way_out)
    known = {table.topology.get("id"): table.topology for table in tables if table.topology}
    if len(known) > 1:
        specs = ", ".join(str(topology.get("spec")) for topology in known.values())
        raise InvalidInput("the tables are for different networks: {}", specs, way_out)
    topology = next(iter(known.values()), {})
    ordered = tables[::-1] if prefer == "last" else tables
    entries = _joined(ordered, strict=prefer is None)
    programs = {digest: program for table in ordered for digest, program in table.programs.items()}
    used = {entry.program for entry in entries}
    sources: Json = {"merged": [dict(table.provenance) for table in tables]}
    return Table(
        topology,
        tables[0].ranks,
        tuple(sorted(entries, key=sort_key)),
        {digest: program for digest, program in sorted(programs.items()) if digest in used},
        tables[0].provenance if len(tables) == 1 else sources,
    )


def _joined(tables: Sequence[Table], strict: bool) -> list[JobEntry]:
    """Return the merged entries. In a conflict, the earlier table wins or, if `strict`, InvalidInput is raised."""
    joined: dict[object, list[JobEntry]] = defaultdict(list)
    conflicts: list[str] = []
    for table in tables:
        for entry in table.entries:
            earlier = joined[entry.key]
            if entry in earlier:
                continue
            for other in earlier:
                is_same = (entry.program, entry.settings) == (other.program, other.settings)
                if not is_same and SizeRange.of(entry).overlaps(SizeRange.of(other)):
                    sizes = f"{SizeRange.of(entry)}: {_program(entry)}"
                    conflicts.append(f"{describe(other)}: {_program(other)}; {sizes}")
            pieces = SizeRange.of(entry).without([SizeRange.of(other) for other in earlier])
            earlier += [replace(entry, min_bytes=piece.first, max_bytes=piece.last) for piece in pieces]
    if strict and conflicts:
        more = [f"{len(conflicts) - MAX_NAMED} more"] if len(conflicts) > MAX_NAMED else []
        value = "; ".join([*conflicts[:MAX_NAMED], *more])
        raise InvalidInput(
            "the tables name different programs for the same sizes: {}", value, "choose one with --prefer"
        )
    return [entry for entries in joined.values() for entry in entries]


def _program(entry: JobEntry) -> str:
    if entry.settings is not None:
        return "the library's " + " ".join(map(str, entry.settings.values()))
    return "the library's own" if entry.program is None else entry.program[:12]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A size range for which two tables differ.

    before, after: digest of a program, `LIBRARY`, or `NOTHING` if no entry covers the range
    """

    key: _Key
    sizes: SizeRange
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `chorale table diff --json` prints for this change."""
        names = ("collective", "dtype", "group", "root")
        sizes = {"min_bytes": self.sizes.first, "max_bytes": self.sizes.last}
        return dict(zip(names, self.key, strict=True)) | sizes | {"before": self.before, "after": self.after}


def changes(before: Table, after: Table) -> list[TableChange]:
    """Return the size ranges for which the two tables run different programs, sorted by key and size."""
    entries = sorted((entry for table in (before, after) for entry in table.entries), key=sort_key)
    return [change for key in dict.fromkeys(entry.key for entry in entries) for change in _of_key(key, before, after)]


def comparison(before: Table, after: Table) -> dict[str, Any]:
    """Return the document that `chorale table diff --json` prints.

    equal:        whether the tables are identical
    same_in_jobs: whether a job runs the same programs with both tables; their measurements may differ
    """
    found = changes(before, after)
    facts = {name: [getattr(before, name), getattr(after, name)] for name in ("ranks", "topology")}
    different = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
    return {
        "equal": table_bytes(before) == table_bytes(after),
        "same_in_jobs": not found and before.ranks == after.ranks,
        "facts": different,
        "changes": [change.to_json() for change in found],
        "programs": {
            "removed": sorted(set(before.programs) - set(after.programs)),
            "added": sorted(set(after.programs) - set(before.programs)),
        },
    }


def _of_key(key: _Key, before: Table, after: Table) -> Iterator[TableChange]:
    tables = [[entry for entry in table.entries if entry.key == key] for table in (before, after)]
    entries = [*tables[0], *tables[1]]
    starts = {0, *(entry.min_bytes for entry in entries)}
    starts |= {entry.max_bytes + 1 for entry in entries if entry.max_bytes is not None}
    ordered = sorted(starts)  # no entry begins or ends between two neighbouring starts
    ends = [*(start - 1 for start in ordered[1:]), None]
    for (old, new), ranges in groupby(
        zip(ordered, ends, strict=True), key=lambda sizes: tuple(_at(entries, sizes[0]) for entries in tables)
    ):
        first, *more = ranges
        if old != new:
            yield TableChange(key, SizeRange(first[0], (more or [first])[-1][1]), old, new)


def _at(entries: Sequence[JobEntry], size_bytes: int) -> str:
    for entry in entries:
        if entry.covers(size_bytes):
            return entry.program or (LIBRARY if entry.settings is None else _program(entry))
    return NOTHING
