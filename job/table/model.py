"""A tuning table in memory: programs, and entries that say which program runs for which calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = "chorale-table/1"
"""First line of a table file."""

ANY_DTYPE = "any"
"""Element type of an entry that serves all types."""

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
    provenance: campaign, MLflow run and version from which the entry comes
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
        """What a call must match for this entry to apply, except the size: collective, type, group and root."""
        return self.collective, self.dtype, self.group, self.root

    def covers(self, size_bytes: int) -> bool:
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)


@dataclass(frozen=True, slots=True)
class TableProgram:
    """A program: its text, which `lift` parses, and each rank's part in the engine's encoding.

    digest:  SHA-256 of the text
    ranks:   number of ranks
    words:   each rank's part, encoded by `chorale.runners.engine.library`; empty for a plan
    order_of_additions: order proven by `chorale.synth.programs.additions`; None if nothing is added or it is not proven
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
