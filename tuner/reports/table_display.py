"""Tuning tables and how two differ, as documents and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table as RichTable

from chorale.job.table.merging import SizeRange
from chorale.job.table.model import FORMAT, JobEntry, Table
from chorale.runners.api.units import format_us

SHOWN_DIGITS = 12


def table_document(table: Table, digest: str) -> dict[str, Any]:
    """Return what `chorale table show --json` prints."""
    return {
        "format": FORMAT,
        "digest": digest,
        "topology": dict(table.topology),
        "ranks": table.ranks,
        "provenance": dict(table.provenance),
        "entries": [_entry_document(entry) for entry in table.entries],
        "programs": {
            program.digest: {
                "target": program.target,
                "method": program.method,
                "parameters": dict(program.parameters),
                "collective": program.collective,
                "root": program.root,
                "ranks": program.ranks,
                "order_of_additions": program.order_of_additions,
                "bytes": len(program.text),
            }
            for _, program in sorted(table.programs.items())
        },
    }


def _entry_document(entry: JobEntry) -> dict[str, Any]:
    return {
        "collective": entry.collective,
        "dtype": entry.dtype,
        "group": None if entry.group is None else list(entry.group),
        "root": entry.root,
        "min_bytes": entry.min_bytes,
        "max_bytes": entry.max_bytes,
        "program": entry.program,
        "measured": None if entry.measured is None else dict(entry.measured),
        "certificate": None if entry.certificate is None else dict(entry.certificate),
        "provenance": dict(entry.provenance),
    }


def table_lines(table: Table, digest: str, name: str) -> RichTable:
    """Return the entries for the terminal."""
    network = table.topology.get("spec", "a network that it does not name")
    title = f"{name}: {table.ranks} ranks, {network}, digest {digest[:SHOWN_DIGITS]}"
    rows = RichTable("collective", "type", "ranks", "sizes", "runs", "median", "gap", "from", title=title)
    for entry in table.entries:
        rows.add_row(
            entry.collective if entry.root is None else f"{entry.collective} from {entry.root}",
            entry.dtype,
            "all" if entry.group is None else ",".join(map(str, entry.group)),
            str(SizeRange.of(entry)),
            _what_runs(table, entry),
            _medians(entry),
            "" if entry.certificate is None else str(entry.certificate.get("gap", "")),
            str(entry.provenance.get("campaign", "")),
        )
    return rows


def _what_runs(table: Table, entry: JobEntry) -> str:
    if entry.program is None:
        return "the library's own"
    return f"{table.programs[entry.program].method or 'a program'} {entry.program[:SHOWN_DIGITS]}"


def _medians(entry: JobEntry) -> str:
    """Return the median times of the smallest and the largest size."""
    sizes = [] if entry.measured is None else entry.measured.get("sizes", [])
    times = [format_us(size["time_us"] / 1e6) for size in sizes]
    return " to ".join(dict.fromkeys([*times[:1], *times[-1:]]))


def diff_lines(document: Mapping[str, Any], before: str, after: str) -> RichTable:
    """Return the differences in `document` for the terminal."""
    rows = RichTable("collective", "type", "ranks", "sizes", before, after, title="What differs")
    for name, (old, new) in document["facts"].items():
        texts = (str(value.get("spec") if name == "topology" else value) for value in (old, new))
        rows.add_row(name, "", "", "", *texts)
    for change in document["changes"]:
        rows.add_row(
            change["collective"] if change["root"] is None else f"{change['collective']} from {change['root']}",
            change["dtype"],
            "all" if change["group"] is None else ",".join(map(str, change["group"])),
            str(SizeRange(change["min_bytes"], change["max_bytes"])),
            change["before"][:SHOWN_DIGITS],
            change["after"][:SHOWN_DIGITS],
        )
    if not document["facts"] and not document["changes"]:
        rows.add_row("all", "", "", "", "the same runs;", "what is said of it differs")
    return rows
