"""`chorale verify`: replay a schedule file and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from synth.errors import InvalidInput
from synth.schedule.schedule import Schedule
from synth.schedule.symmetric import SymmetricSchedule
from synth.verify.symmetric import VerifiedSymmetric, inspect_symmetric
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import inspect
from synth.verify.violation import Violation
from tuner.cli.output import emit_json, results
from tuner.cli.shared_options import AsJson, ScheduleFile
from tuner.schedule_files import load_for_inspection


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("verify")(verify)


def verify(
    file: ScheduleFile,
    as_json: AsJson = False,
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
    size_bytes = _size_bytes(schedule)
    if isinstance(schedule, SymmetricSchedule):
        return inspect_symmetric(schedule, size_bytes)
    return inspect(schedule, size_bytes)


def _size_bytes(schedule: Schedule | SymmetricSchedule) -> int | None:
    """Return the size that the schedule was made for, if it was made for one."""
    size_bytes = schedule.parameters.get("size_bytes")
    if size_bytes is None:
        return None
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        rule = "the size that a schedule was made for must be a whole number of bytes"
        raise InvalidInput(rule, size_bytes, "write the file again with `chorale synth`")
    return size_bytes


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
        if cost.time_s is not None:
            size_bytes = verified.schedule.parameters["size_bytes"]
            document["cost"] |= {"size_bytes": size_bytes, "time_s": str(cost.time_s)}
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
