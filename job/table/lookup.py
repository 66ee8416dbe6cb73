"""Look up the table entry for a call, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table


class Fallback(StrEnum):
    """Reason why the library's own algorithm runs instead of a program."""

    NO_TABLE = "no table"
    GROUP = "group not in the table"
    COLLECTIVE = "collective not in the table"
    ROOT = "root not in the table"
    DTYPE = "element type not in the table"
    SIZE = "size not in the table"
    LIBRARY = "the table says the library's own"
    OPERATION = "operation that no program supports"
    LAYOUT = "elements that are not contiguous"
    SHAPE = "vector that ranks do not divide into equal shards"
    DEVICE = "device that programs do not run on"
    PLAN = "plans need tensors on GPUs that reach each other's memory"
    HOSTS = "group on several hosts, whose GPUs one plan cannot reach: only programs run there, as rounds of sends"
    ROOM = "larger than the memory that plans have"


@dataclass(frozen=True, slots=True)
class GroupEntries:
    """A table's entries for one group. A look-up takes time proportional to their number."""

    entries: tuple[JobEntry, ...]

    @staticmethod
    def of(table: Table, group: Sequence[int]) -> GroupEntries:
        """Return the entries for the group that consists of the ranks `group`, in this order."""
        everyone = tuple(group) == tuple(range(table.ranks))
        return GroupEntries(
            tuple(e for e in table.entries if (e.group is None and everyone) or e.group == tuple(group))
        )

    def find(self, collective: str, root: int | None, dtype: str, size_bytes: int) -> JobEntry | Fallback:
        """Return the entry for a call on a whole vector of `size_bytes`, or the reason why no program serves it.
        An entry for exactly this element type takes precedence over one for any type.
        """
        found, reason = self.entries, Fallback.GROUP
        tests = (
            (Fallback.COLLECTIVE, lambda entry: entry.collective == collective),
            (Fallback.ROOT, lambda entry: entry.root == root),
            (Fallback.DTYPE, lambda entry: entry.dtype in (dtype, ANY_DTYPE)),
            (Fallback.SIZE, lambda entry: entry.covers(size_bytes)),
        )
        for next_reason, holds in tests:
            if not found:
                return reason
            found, reason = tuple(filter(holds, found)), next_reason
        if not found:
            return reason
        entry = min(found, key=lambda entry: entry.dtype == ANY_DTYPE)
        return Fallback.LIBRARY if entry.program is None else entry
