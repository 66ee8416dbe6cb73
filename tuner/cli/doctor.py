"""`chorale doctor`: what works on this machine, what is missing, how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from chorale.job.mpi.preload import preload_library
from chorale.synth.errors import Unavailable
from chorale.tuner.cli.application import AsJson
from chorale.tuner.cli.output import print_result
from chorale.tuner.doctor.diagnosis import Check, Diagnosis, diagnose
from chorale.tuner.reports.tables import Result


def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine and what is missing; exit 3 if no campaign can run."""
    diagnosis = diagnose()
    parts, checks = ([asdict(item) for item in items] for items in (diagnosis.parts, diagnosis.checks))
    document = {"ready": diagnosis.ready, "parts": parts, "checks": checks}
    if as_json:  # it may have to be compiled
        document |= _mpi_preload()
    exit_code = 0 if diagnosis.ready else Unavailable.exit_code
    print_result(Result(document, _checks(diagnosis.checks), _parts(diagnosis), exit_code=exit_code), as_json)


def _mpi_preload() -> dict[str, str | None]:
    """Return the library for LD_PRELOAD under MPI programs, built at the first time, or why there is none."""
    try:
        return {"mpi_preload": str(preload_library()), "mpi_preload_reason": None}
    except Unavailable as missing:
        return {"mpi_preload": None, "mpi_preload_reason": str(missing)}


def _parts(diagnosis: Diagnosis) -> Table:
    title = "Ready to run campaigns" if diagnosis.ready else "Campaigns cannot run here yet"
    table = Table("part", "found", "missing", "run")
    table.title = title
    for part in diagnosis.parts:
        word, colour = ("usable", "green") if part.usable else ("not yet", "yellow")
        table.add_row(Text.assemble((word, colour), f" {part.name}"), part.found, ", ".join(part.missing), part.mend)
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("finding", "found", "needed for", "to get it")
    for check in checks:
        colour = "green" if check.ok else "red" if check.required else "yellow"
        way_out = "" if check.ok else check.way_out
        state = Text.assemble(("ok" if check.ok else "missing", colour), f" {check.name}")
        table.add_row(state, check.found, check.needed_for, way_out)
    return table
