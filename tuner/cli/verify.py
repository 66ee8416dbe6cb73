"""`chorale verify`: replay a schedule file and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from synth.schedule.schedule import Schedule
from synth.schedule.symmetric import SymmetricSchedule
from synth.verify.symmetric import VerifiedSymmetric, inspect_symmetric
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import inspect
from synth.verify.violation import Violation
from tuner.cli.output import emit_json, results
from tuner.schedule_files import load_for_inspection


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("verify")(verify)


def verify(
    file: Annotated[str, typer.Argument(help="Schedule file, .parquet or .json.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Replay a schedule chunk by chunk; exit 0 if it does what its collective demands, 1 if not.

    Example: chorale verify torus.parquet --json
    """
    schedule, stated = load_for_inspection(file)
    violations, verified = _inspect(schedule)
    if stated != schedule.id:
        violations = [
            Violation("content-id", f"the file states id {stated}, its content has {schedule.id}"),
            *violations,
        ]
    document = _document(violations, verified)
    if as_json:
        emit_json(document)
    else:
        results.print(_table(file, schedule, document))
    if violations:
        raise typer.Exit(1)


def _inspect(
    schedule: Schedule | SymmetricSchedule,
) -> tuple[list[Violation], VerifiedSchedule | VerifiedSymmetric | None]:
    return inspect_symmetric(schedule) if isinstance(schedule, SymmetricSchedule) else inspect(schedule)


def _document(violations: list[Violation], verified: VerifiedSchedule | VerifiedSymmetric | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "ok": not violations,
        "violations": [{"rule": violation.rule, "message": violation.message} for violation in violations],
        "link_loads": None,
        "cost": None,
    }
    if verified is not None:
        loads, cost = verified.link_loads, verified.cost
        document["link_loads"] = {
            "largest": str(loads.largest),
            "smallest": str(loads.smallest),
            "total": str(loads.total),
            "idle_links": loads.idle_links,
            "duplicate_deliveries": loads.duplicate_deliveries,
        }
        factor = cost.bandwidth_factor
        document["cost"] = {
            "steps": cost.steps,
            "bandwidth_factor": None if factor is None else str(factor),
            "time_per_byte": str(cost.time_per_byte),
            "algbw": float(1 / cost.time_per_byte),
            "latency_s": float(cost.latency_s),
        }
    return document


def _table(file: str, schedule: Schedule | SymmetricSchedule, document: Mapping[str, Any]) -> Table:
    verdict = "verified" if document["ok"] else "NOT correct"
    title = f"{file}: {schedule.method} {schedule.collective} on {schedule.topology.spec} is {verdict}"
    table = Table(title=title, show_header=False)
    for violation in document["violations"]:
        table.add_row(violation["rule"], violation["message"])
    for part in ("cost", "link_loads"):
        for name, value in (document[part] or {}).items():
            table.add_row(name.replace("_", " "), str(value))
    return table
