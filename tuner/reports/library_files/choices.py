"""What a tuning table says about a library's own algorithms: which one runs at which sizes.

An entry says so in two forms. Its program is of a method that the library has too, or the library itself was the best,
by a baseline `library:NAME` whose last word is the library's name of the algorithm. Other entries say nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.api.base import LIBRARY
from chorale.synth.errors import CheckFailed, InvalidInput

Names = Mapping[str, Mapping[str, str]]
"""For each collective that a library knows: method or name here -> the library's name."""


@dataclass(frozen=True, slots=True)
class BuiltinChoice:
    """A library's own algorithm for sizes of the whole vector from min_bytes to max_bytes (None: no limit), both
    included. channels: -1 where the table does not say."""

    collective: str
    min_bytes: int
    max_bytes: int | None
    algorithm: str
    protocol: str
    channels: int


def builtin_choices(table: Table, names: Names, dtype: str | None = None) -> list[BuiltinChoice]:
    """Return the choices of `table` for all its ranks, by collective and size; those for `dtype`, by default for any
    type, else for the only one that it has.

    InvalidInput where types have to be chosen from, CheckFailed where nothing can be said.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective in names]
    chosen = _dtype_of(entries, dtype)
    found = [choice for entry in entries if entry.dtype == chosen for choice in _choices(table, entry, names)]
    if not found:
        known = ", ".join(sorted({name for each in names.values() for name in each}))
        rule = "the table must say where an algorithm of the library is the best"
        raise CheckFailed(rule, "no entry does", f"tune with baselines or methods such as {known}")
    return sorted(found, key=lambda choice: (choice.collective, choice.min_bytes))


def _dtype_of(entries: list[JobEntry], dtype: str | None) -> str:
    there = sorted({entry.dtype for entry in entries})
    if dtype is not None:
        return dtype
    if ANY_DTYPE in there or not there:
        return ANY_DTYPE
    if len(there) > 1:
        rule = "libraries choose by size and not by element type"
        raise InvalidInput(rule, f"entries for {', '.join(there)}", "choose one of them with --dtype")
    return there[0]


def _choices(table: Table, entry: JobEntry, names: Names) -> Iterator[BuiltinChoice]:
    if entry.program is None:
        baseline = str(entry.provenance.get("baseline", ""))
        name = baseline.rpartition(":")[2] if baseline.startswith(LIBRARY) else baseline
        parameters: Mapping[str, object] = {}
    else:
        program = table.programs[entry.program]
        name, parameters = program.method, program.parameters
    algorithm = names[entry.collective].get(name)
    if algorithm is not None:
        protocol = str(parameters.get("protocol", "Simple"))
        channels = _count(parameters.get("channels")) * _count(parameters.get("instances")) if parameters else -1
        yield BuiltinChoice(entry.collective, entry.min_bytes, entry.max_bytes, algorithm, protocol, channels)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1
