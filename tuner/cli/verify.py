"""`chorale verify`: replay a schedule or program file and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

import typer

from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.additions import additions_document
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.targets.judge import judge
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import ScheduleViolation, VerifiedSchedule
from chorale.synth.verify.verify import inspect
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson, CollectiveFile, ReadableFile, SpecOfProgram
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.cli.verdicts import Fix, explained, verdict_document, verdict_rows, write_bounded
from chorale.tuner.costs.program_costs import program_loads
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.program_files import is_program_file, load_unchecked
from chorale.tuner.files.schedule_files import load_for_inspection
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.light_table import LightTable, facts_table
from chorale.tuner.reports.quantities import fact_label, fact_text


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("verify")(verify)


def verify(
    file: ReadableFile,
    spec: SpecOfProgram = None,
    collective_file: CollectiveFile = None,
    fix: Fix = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", callback=file_to_write, help="File that --fix writes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a schedule, or execute a program, chunk by chunk; exit 0 if it does what its collective demands, 1 if not.

    A program that hangs above some size is judged up to it: `max_bytes` says which, and --fix writes it to the file of
    -o. `chorale lift` says more of a program: what it uses, which dialects it fits, what it is predicted to take.

    Example: chorale verify torus.parquet --json
    """
    if fix != (output is not None):
        raise InvalidInput("--fix and --output belong together", "one of them", "give both, or neither")
    if is_program_file(file):
        network, collective = None if spec is None else load_topology(spec), load_collective(collective_file)
        title, unit, document = _verify_program(file, network, collective, output if fix else None)
    elif collective_file is not None:
        raise InvalidInput("a schedule says itself which collective it is for", collective_file, "leave it out")
    else:
        title, unit, document = _verify_schedule(file, spec, fix)
    if as_json:
        emit_json(document)
    else:
        verdict = "verified" if document["ok"] else "NOT correct"
        results.print(_table(f"{file}: {title} is {verdict}", document, unit))
    if not document["ok"]:
        raise typer.Exit(1)


def _verify_schedule(file: str, spec: str | None, fix: bool) -> tuple[str, str, dict[str, Any]]:
    if fix:
        raise InvalidInput("--fix is for programs", file, "leave it out: a schedule has no sizes at which it hangs")
    if spec is not None:
        raise InvalidInput("a schedule file names its topology itself", f"--spec {spec}", "leave it out")
    schedule, stated = load_for_inspection(file)
    violations, verified = inspect(schedule, _size_bytes(schedule))
    if stated != schedule.id:
        violations = [
            ScheduleViolation("content-id", f"the file states id {stated}, its content has {schedule.id}"),
            *violations,
        ]
    title = f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"
    return title, schedule.topology.bandwidth_unit, _document(violations, verified)


def _verify_program(
    file: str, network: Topology | None, collective: CustomCollective | None, output: str | None
) -> tuple[str, str, dict[str, Any]]:
    topology, lifted = load_unchecked(file, network, collective=collective)
    program = lifted.program
    verdict = judge(lifted, topology)
    if output is not None:
        write_bounded(file, verdict, output)
    document = {**verdict_document(verdict, explained(program, verdict)), "link_loads": None, "cost": None}
    if document["ok"]:
        loads = program_loads(program, topology)
        time_per_byte = topology.links.longest_time(loads) / program.chunks
        document["link_loads"] = {
            "largest": str(Fraction(int(loads.max()), program.chunks)),
            "smallest": str(Fraction(int(loads.min()), program.chunks)),
            "total": str(Fraction(int(loads.sum()), program.chunks)),
            "idle_links": int((loads == 0).sum()),
        }
        document["cost"] = {"time_per_byte": str(time_per_byte), "algbw": float(1 / time_per_byte)}
        document["order_of_additions"] = additions_document(program)
    return f"{program.name} on {topology.spec}", topology.bandwidth_unit, document


def _size_bytes(schedule: AnySchedule) -> int | None:
    """Return the size that the schedule was made for, if it was made for one."""
    size_bytes = schedule.parameters.get("size_bytes")
    if size_bytes is None:
        return None
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 1:
        rule = "the size that a schedule was made for must be a whole number of bytes"
        raise InvalidInput(rule, size_bytes, "write the file again with `chorale synth`")
    return size_bytes


def _listed(violations: Sequence[ScheduleViolation]) -> dict[str, Any]:
    """Return the document of `violations`, without loads and cost."""
    return {
        "ok": not violations,
        "violations": [{"rule": violation.rule, "message": violation.message} for violation in violations],
        "link_loads": None,
        "cost": None,
    }


def _document(violations: list[ScheduleViolation], verified: VerifiedSchedule | None) -> dict[str, Any]:
    document = _listed(violations)
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


def _table(title: str, document: Mapping[str, Any], unit: str) -> LightTable:
    table = facts_table(title)
    for rule, message in verdict_rows(document, most=len(document["violations"])):
        table.add_row(rule, message)
    if document.get("max_bytes") is not None:
        table.add_row(fact_label("max_bytes"), fact_text("max_bytes", document["max_bytes"], unit))
    for part in ("cost", "link_loads", "order_of_additions"):
        for name, value in (document.get(part) or {}).items():
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return table
