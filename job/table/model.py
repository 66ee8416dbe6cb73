"""A tuning table in memory: programs, entries that say which program runs for which calls, and their look-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

FORMAT = "chorale-table/1"
"""First line of a table file."""

ANY_DTYPE = "any"
"""Element type of an entry that applies to all types."""

PLAN_TARGET = "mscclpp-json"
"""Target of programs that are plans. In jobs, only GPUs run them, as kernels."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobEntry:
    """Says what runs for one collective in one size range.

    dtype:     name of an element type, or ANY_DTYPE
    group:     ranks of the job in the order of the program's ranks; None for all ranks of the job in order
    root:      position in the group for broadcast and reduce, None for other collectives
    min_bytes, max_bytes: sizes of the whole vector, both inclusive; None for no limit
    program:   digest of the program, or None for the library's own algorithm
    measured:  the measurement with its confidence interval; None if nothing was measured
    certificate: proven quality of the schedule; None for the library's own algorithm
    provenance: campaign, MLflow run and version of Chorale that produced the entry
    settings:  library settings if the library runs the collective; None to leave them to the library
    """

    collective: str
    dtype: str
    group: tuple[int, ...] | None
    root: int | None
    min_bytes: int
    max_bytes: int | None
    program: str | None
    measured: Json | None = None
    certificate: Json | None = None
    provenance: Json = field(default_factory=dict)
    settings: Json | None = None

    @property
    def key(self) -> tuple[str, str, tuple[int, ...] | None, int | None]:
        """Return the collective, type, group and root that a call must have for this entry to apply."""
        return self.collective, self.dtype, self.group, self.root

    def covers(self, size_bytes: int) -> bool:
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)


@dataclass(frozen=True, slots=True)
class TableProgram:
    """A program: its text, which `lift` parses, and each rank's part in the engine's encoding.

    digest:  SHA-256 of the text
    ranks:   number of ranks
    words:   each rank's part, encoded by `chorale.runners.engine.library`; empty for a plan (run as GPU kernels)
    order_of_additions: order proven by `chorale.synth.programs.additions`; None without additions or without a proof
    """

    digest: str
    target: str
    method: str
    parameters: Json
    collective: str
    root: int | None
    ranks: int
    text: bytes = field(repr=False)
    words: tuple[bytes, ...] = field(repr=False)
    order_of_additions: Json | None = None

    @property
    def is_plan(self) -> bool:
        return self.target == PLAN_TARGET


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """The complete content of a table file. Entries with the same key do not overlap. programs: digest -> program"""

    topology: Json
    ranks: int
    entries: tuple[JobEntry, ...]
    programs: Mapping[str, TableProgram]
    provenance: Json = field(default_factory=dict)

    def __repr__(self) -> str:
        collectives = ", ".join(sorted({entry.collective for entry in self.entries})) or "nothing"
        counts = f"{len(self.entries)} entries, {len(self.programs)} programs"
        return f"<Table of {self.ranks} ranks on {self.topology.get('spec', 'any network')}: {collectives}; {counts}>"


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
        """Return the entry for a call on a whole vector of `size_bytes`, or the reason why no program runs.
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
