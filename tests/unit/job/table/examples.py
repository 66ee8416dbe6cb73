"""Small tables for tests."""

from dataclasses import replace
from typing import Any

from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table, TableProgram, pack, parse_table, table_bytes, unpack
from chorale.job.table.verification import table_program


def any_entry(program: str | None, first: int, last: int | None = None, **changes: Any) -> JobEntry:
    """Return an entry for allreduce of all ranks; the program need not exist."""
    fields = {"collective": "allreduce", "dtype": ANY_DTYPE, "group": None, "root": None}
    return JobEntry(**{**fields, "min_bytes": first, "max_bytes": last, "program": program, **changes})


def any_program(digest: str) -> TableProgram:
    """Return a program of no content, for what looks at names only."""
    return TableProgram(digest, "oneccl-xml", "ring", {}, "allreduce", None, 4, b"", (b"",) * 4)


def table_of(*entries: JobEntry, ranks: int = 4, spec: str | None = "ring:4") -> Table:
    """Return a table with `entries`, and a program of no content for each digest that they name."""
    topology = {} if spec is None else {"spec": spec, "id": f"id of {spec}"}
    digests = sorted({entry.program for entry in entries if entry.program is not None})
    return Table(topology, ranks, entries, {digest: any_program(digest) for digest in digests}, {"source": "test"})


def real_program(text: bytes) -> TableProgram:
    return table_program(text, "oneccl-xml", "ring", {})


def forged(data: bytes) -> bytes:
    """Return a table with a right checksum and right texts, of which the engine's words say something else."""
    table, _ = parse_table(data)
    programs = {}
    for digest, program in table.programs.items():
        words = tuple(pack([*unpack(each)[:-1], 0]) for each in program.words)
        programs[digest] = replace(program, words=words)
    return table_bytes(replace(table, programs=programs))
