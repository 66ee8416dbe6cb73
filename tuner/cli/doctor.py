"""`chorale doctor`: what works on this machine, what is missing, how to get it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from chorale.job.mpi.preload import preload_library
from chorale.runners.engine.build import native_home
from chorale.synth.errors import Unavailable
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.doctor.diagnosis import Diagnosis, diagnose
from chorale.tuner.doctor.machine import Check
from chorale.tuner.files.home import Home
from chorale.tuner.reports.lazy_rich import Table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine, what is missing and how to get it; exit 3 if a campaign cannot run here."""
    diagnosis = diagnose()
    if as_json:
        parts, checks = ([asdict(item) for item in items] for items in (diagnosis.parts, diagnosis.checks))
        emit_json({"ready": diagnosis.ready, "parts": parts, "checks": checks, **_mpi_preload()})
    else:
        results.print(_checks(diagnosis.checks))
        results.print(_parts(diagnosis))
    if not diagnosis.ready:
        raise typer.Exit(3)


def _mpi_preload() -> dict[str, str | None]:
    """Return the library for LD_PRELOAD under MPI programs, built at the first time, or why there is none."""
    try:
        return {"mpi_preload": str(preload_library(_native_folder())), "mpi_preload_reason": None}
    except Unavailable as missing:
        return {"mpi_preload": None, "mpi_preload_reason": str(missing)}


def _native_folder() -> Path:
    """Return where native code is built: the data folder if there is one, which looking does not make, else a cache."""
    if Home.from_environment().root.exists():
        return native_home()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "chorale" / "native"


def _parts(diagnosis: Diagnosis) -> Table:
    title = "Ready to run campaigns" if diagnosis.ready else "Campaigns cannot run here yet"
    table = Table("part", "found", "missing", "run")
    table.title = title
    for part in diagnosis.parts:
        state = coloured("usable", "green") if part.usable else coloured("not yet", "yellow")
        table.add_row(state.append(f" {part.name}", ""), part.found, ", ".join(part.missing), part.mend)
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("finding", "found", "needed for", "to get it")
    for check in checks:
        colour = "green" if check.ok else "red" if check.required else "yellow"
        state = coloured("ok" if check.ok else "missing", colour)
        way_out = "" if check.ok else check.way_out
        table.add_row(state.append(f" {check.name}", ""), check.found, check.needed_for, way_out)
    return table


def coloured(word: str, colour: str) -> Text:
    """Return a text that begins with a coloured word."""
    return Text.assemble((word, colour))
