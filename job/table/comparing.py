"""What two tables say differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import JobEntry, Table
from chorale.job.table.ranges import SizeRange

NOTHING = "nothing"
LIBRARY = "library"
_Key = tuple[str, str, tuple[int, ...] | None, int | None]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A range of sizes for which tables say different things.

    before, after: the digest of a program, `LIBRARY`, or `NOTHING` where no entry is for it
    """

    key: _Key
    sizes: SizeRange
    before: str
    after: str

    def to_json(self) -> dict[str, Any]:
        """Return it as `chorale table diff --json` prints it."""
        names = ("collective", "dtype", "group", "root")
        sizes = {"min_bytes": self.sizes.first, "max_bytes": self.sizes.last}
        return dict(zip(names, self.key, strict=True)) | sizes | {"before": self.before, "after": self.after}


def changes(before: Table, after: Table) -> list[TableChange]:
    """Return what would run differently, by key and size."""
    keys = {entry.key for table in (before, after) for entry in table.entries}
    return [change for key in sorted(keys, key=_sortable) for change in _of_key(key, before, after)]


def comparison(before: Table, after: Table) -> dict[str, Any]:
    """Return the document of `chorale table diff --json`.

    equal: nothing differs at all; same_in_jobs: a job runs the same with either, what was measured may differ
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
    pending: TableChange | None = None
    for sizes in _segments([*tables[0], *tables[1]]):
        old, new = (_at(entries, sizes.first) for entries in tables)
        if pending is not None and (pending.before, pending.after) == (old, new):
            pending = TableChange(key, SizeRange(pending.sizes.first, sizes.last), old, new)
            continue
        if pending is not None and pending.before != pending.after:
            yield pending
        pending = TableChange(key, sizes, old, new)
    if pending is not None and pending.before != pending.after:
        yield pending


def _segments(entries: Sequence[JobEntry]) -> Iterator[SizeRange]:
    """Yield ranges from 0 on, in each of which no entry begins or ends."""
    starts = {0} | {entry.min_bytes for entry in entries}
    starts |= {entry.max_bytes + 1 for entry in entries if entry.max_bytes is not None}
    ordered = sorted(starts)
    for first, following in zip(ordered, [*ordered[1:], None], strict=True):
        yield SizeRange(first, None if following is None else following - 1)


def _at(entries: Sequence[JobEntry], size_bytes: int) -> str:
    for entry in entries:
        if entry.covers(size_bytes):
            return entry.program or LIBRARY
    return NOTHING


def _sortable(key: _Key) -> tuple[object, ...]:
    collective, dtype, group, root = key
    return collective, group or (), -1 if root is None else root, dtype
