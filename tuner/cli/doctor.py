"""`chorale doctor`: what works on this machine, what is missing, how to get it."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table

from tuner.cli.output import emit_json, results
from tuner.cli.shared_options import AsJson
from tuner.doctor import Check, diagnose


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine, what is missing and how to get it; exit 3 if a campaign cannot run here."""
    checks = diagnose()
    ready = all(check.ok for check in checks if check.required)
    if as_json:
        emit_json({"ready": ready, "checks": [asdict(check) for check in checks]})
    else:
        results.print(_table(checks, ready))
    if not ready:
        raise typer.Exit(3)


def _table(checks: list[Check], ready: bool) -> Table:
    title = "Ready to run campaigns" if ready else "Campaigns cannot run here yet"
    table = Table("part", "found", "opens up", "to get it", title=title)
    for check in checks:
        colour = "green" if check.ok else "red" if check.required else "yellow"
        state = f"[{colour}]{'ok' if check.ok else 'missing'}[/]"
        table.add_row(f"{state} {check.name}", check.found, check.needed_for, "" if check.ok else check.way_out)
    return table
