"""Ranges of sizes in bytes, both ends included: text, overlaps, what is left of one beside others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from chorale.job.table.model import JobEntry
from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.synth.errors import InvalidInput

MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class SizeRange:
    """From `first` to `last` bytes; None for no limit."""

    first: int
    last: int | None

    @staticmethod
    def of(entry: JobEntry) -> SizeRange:
        """Return the sizes of an entry."""
        return SizeRange(entry.min_bytes, entry.max_bytes)

    def overlaps(self, other: SizeRange) -> bool:
        """Return whether a size is in both."""
        return not (self._ends_before(other) or other._ends_before(self))

    def without(self, others: Iterable[SizeRange]) -> list[SizeRange]:
        """Return what none of `others`, which do not overlap, has; ascending."""
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
    """Return the range that `text` means: both ends belong to it, and either may be left out. Sizes such as
    4KiB:1GiB:x4 mean the range from the first to the last.

    >>> parse_range("1KiB-64MiB"), parse_range("64KiB-")
    (SizeRange(first=1024, last=67108864), SizeRange(first=65536, last=None))
    """
    way_out = "write 1KiB-64MiB, 64KiB- or -4KiB; both ends belong to it"
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
    """Return by what the entries of a table are sorted: what they are for, then sizes."""
    root = -1 if entry.root is None else entry.root
    return entry.collective, entry.group or (), root, entry.dtype, entry.min_bytes


def describe(entry: JobEntry) -> str:
    """Return in a few words what an entry is for."""
    group = "" if entry.group is None else f" of ranks {','.join(map(str, entry.group))}"
    root = "" if entry.root is None else f" from rank {entry.root}"
    return f"{entry.collective}{root}{group}, {entry.dtype}, {SizeRange.of(entry)}"


def overlapping(entries: Sequence[JobEntry]) -> list[tuple[JobEntry, JobEntry]]:
    """Return the neighbours by size that are for the same and overlap; none if no two entries of a key do."""
    pairs = []
    for _, group in groupby(sorted(entries, key=sort_key), key=lambda entry: entry.key):
        pairs += [pair for pair in pairwise(group) if SizeRange.of(pair[0]).overlaps(SizeRange.of(pair[1]))]
    return pairs


def require_disjoint(entries: Sequence[JobEntry], way_out: str) -> None:
    """Raise InvalidInput, with the first few, if entries of one key overlap."""
    pairs = overlapping(entries)
    if pairs:
        texts = [f"{describe(one)} and {SizeRange.of(other)}" for one, other in pairs[:MAX_NAMED]]
        more = [f"{len(pairs) - MAX_NAMED} more"] if len(pairs) > MAX_NAMED else []
        raise InvalidInput("entries for the same must not overlap in size", "; ".join([*texts, *more]), way_out)
