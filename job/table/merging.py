"""Several tables as one: for the same ranks, on the same network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from chorale.job.table.model import JobEntry, Json, Table
from chorale.job.table.ranges import MAX_NAMED, SizeRange, describe, sort_key
from chorale.synth.errors import InvalidInput

PREFERENCES = ("first", "last")


def merge(tables: Sequence[Table], prefer: str | None = None) -> Table:
    """Return what all `tables` (at least one) say.

    prefer: whose entry counts where two are for the same sizes, `first` or `last` of them; the other keeps the sizes
            that are left to it. InvalidInput with the conflicts for None. Entries of the same program are none: of
            what was measured there, that of the first counts.

    InvalidInput too for tables of different jobs: another number of ranks, another network. A table of groups does
    not say the network of the job, and goes with any.
    """
    if prefer not in (None, *PREFERENCES):
        raise InvalidInput("the preference must be one that there is", prefer, f"choose {' or '.join(PREFERENCES)}")
    topology = _common_topology(tables)
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


def _common_topology(tables: Sequence[Table]) -> Json:
    """Return the network of all that say one; InvalidInput for different jobs."""
    way_out = "merge tables of one job only"
    ranks = sorted({table.ranks for table in tables})
    if len(ranks) > 1:
        raise InvalidInput("tables must be for the same ranks", f"{', '.join(map(str, ranks))} ranks", way_out)
    known = {table.topology["id"]: table.topology for table in tables if table.topology}
    if len(known) > 1:
        specs = ", ".join(str(topology["spec"]) for topology in known.values())
        raise InvalidInput("tables must be for the same network", specs, way_out)
    return next(iter(known.values()), {})


def _joined(tables: Sequence[Table], strict: bool) -> list[JobEntry]:
    """Return the entries of all, those of earlier tables first; `strict` refuses conflicts."""
    joined: dict[object, list[JobEntry]] = defaultdict(list)
    conflicts: list[str] = []
    for table in tables:
        for entry in table.entries:
            earlier = joined[entry.key]
            if entry in earlier:
                continue
            conflicts += _conflicts(entry, earlier)
            pieces = SizeRange.of(entry).without([SizeRange.of(other) for other in earlier])
            earlier += [replace(entry, min_bytes=piece.first, max_bytes=piece.last) for piece in pieces]
    if strict and conflicts:
        more = [f"{len(conflicts) - MAX_NAMED} more"] if len(conflicts) > MAX_NAMED else []
        value = "; ".join([*conflicts[:MAX_NAMED], *more])
        raise InvalidInput("tables must not say different things of the same sizes", value, "choose one with --prefer")
    return [entry for entries in joined.values() for entry in entries]


def _conflicts(entry: JobEntry, earlier: Sequence[JobEntry]) -> Iterator[str]:
    for other in earlier:
        if entry.program != other.program and SizeRange.of(entry).overlaps(SizeRange.of(other)):
            yield f"{describe(other)}: {_program(other)}; {SizeRange.of(entry)}: {_program(entry)}"


def _program(entry: JobEntry) -> str:
    return "the library's own" if entry.program is None else entry.program[:12]
