"""`chorale verify` and `chorale lift`: replay a schedule, or read a program back, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.runners.api.units import parse_size
from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.check_execution import Verdict
from chorale.synth.programs.explanation import Explanation, explanations
from chorale.synth.programs.plans.explanation import plan_explanations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program, ProgramViolation
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.targets.judge import judge
from chorale.synth.targets.lift import read_program, with_max_bytes
from chorale.synth.targets.mscclpp_reading import is_plan_text
from chorale.synth.targets.xml_reading import MAX_TEXT_BYTES
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import ScheduleViolation, VerifiedSchedule
from chorale.synth.verify.verify import inspect
from chorale.tuner.cli.options import (
    CollectiveFile,
    LinkGbps,
    PlotFile,
    PredictedSize,
    ProgramOutput,
    ReadableFile,
    SpecOfProgram,
)
from chorale.tuner.costs.pricing import program_loads
from chorale.tuner.files.collective_files import load_collective
from chorale.tuner.files.program_files import is_program_file, load_unchecked, network_of_program
from chorale.tuner.files.program_output import read_program_text
from chorale.tuner.files.read_write import read_file, require_plot_format, write_file
from chorale.tuner.files.schedule_files import load_for_inspection
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.programs import prediction, program_facts
from chorale.tuner.reports.tables import Result, fact_label, fact_text, facts_table

_FOUND_BY_EXECUTION = frozenset(
    {"limit", "idle rank", "channels", "never used", "route", "race", "deadlock", "uninitialised", "reduction"}
    | {"result", "input changed", "late put"}
)
_SEPARATE = ("violations", "notices", "explanations", "resources", "predicted", "loss", "order_of_additions")
MAX_SHOWN = 20

Fix = Annotated[
    bool,
    typer.Option("--fix", help="Write the program with the maxBytes that keeps it from hanging to the file of -o."),
]


def verify(
    file: ReadableFile,
    spec: SpecOfProgram = None,
    collective_file: CollectiveFile = None,
    fix: Fix = False,
    output: ProgramOutput = None,
) -> Result:
    """Replay a schedule, or execute a program, chunk by chunk; exit 0 if it is right, 1 if not.

    Right is what does what its collective demands. A program that hangs above some size is judged up to it:
    `max_bytes` says which, and --fix writes it to the file of -o. `chorale lift` says more of a program: what it uses,
    which dialects it fits, what it is predicted to take.

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
    verdict = "verified" if document["ok"] else "NOT correct"
    table = facts_table(f"{file}: {title} is {verdict}", verdict_rows(document, most=len(document["violations"])))
    bound = {} if document.get("max_bytes") is None else {"max_bytes": document["max_bytes"]}
    for part in (bound, *(document.get(name) or {} for name in ("cost", "link_loads", "order_of_additions"))):
        for name, value in part.items():
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return Result(document, table, exit_code=int(not document["ok"]))


def lift(
    file: Annotated[str, typer.Argument(help="Program file of any known dialect.")],
    spec: SpecOfProgram = None,
    collective_file: CollectiveFile = None,
    output: ProgramOutput = None,
    fix: Fix = False,
    plot: PlotFile = None,
    size: PredictedSize = None,
    link_gbps: LinkGbps = None,
) -> Result:
    """Read a program back and check it against its collective; exit 0 if it is right, 1 if not.

    A program that hangs above some size is judged up to it: `max_bytes` says which. With --fix the file of -o is the
    program as it is, with that bound; otherwise it is written again in the form that `chorale lower` writes. --plot
    draws the instructions in their order and marks those that are wrong, or behind what is wrong.

    A program for a collective that has no name, or another than the file says, is checked against --collective-file.

    Example: chorale lift torus.xml --spec torus:4x4 --json
    """
    require_plot_format(plot)
    size_bytes, collective = None if size is None else parse_size(size), load_collective(collective_file)
    topology = network_of_program(file, collective) if spec is None else load_topology(spec)
    reading = read_program(read_program_text(file, MAX_TEXT_BYTES), topology, collective)
    program, verdict, violations = reading.program, reading.verdict, reading.verdict.violations
    if fix:
        _write_bounded(file, verdict, output)
    elif output is not None and not violations:
        write_file(output, reading.text.encode())
    behind = _explained(program, verdict)
    title = f"{file} on {topology.spec}: {'NOT right' if violations else 'right'}"
    if plot is not None:
        if not _sound_enough(verdict):
            rule = "--plot draws programs whose instructions can be executed"
            raise InvalidInput(rule, violations[0].message, "leave it out")
        from chorale.tuner.plots.judged_plot import plot_judged  # noqa: PLC0415 - matplotlib is optional

        plot_judged(program, violations, behind, title, plot)
    document = {
        **_verdict_document(verdict, behind),
        **program_facts(program),
        "dialects": list(reading.fitting_targets),
        "order_of_additions": None if violations else additions_document(program),
        "predicted": None if violations else prediction(program, topology, size_bytes, link_gbps),
    }
    table = program_table(title, document, topology.bandwidth_unit)
    return Result(document | {"plot": None if plot is None else str(plot)}, table, exit_code=int(bool(violations)))


def program_table(title: str, document: dict[str, Any], unit: str) -> Table:
    """Return what is known of a program on a network with bandwidths in `unit`, its faults first."""
    table = facts_table(title, verdict_rows(document, MAX_SHOWN))
    facts = {**document, **document.get("resources", {}), **(document.get("predicted") or {})}
    for name, value in {**facts, **(document.get("order_of_additions") or {})}.items():
        if name not in _SEPARATE and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return table


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
        _write_bounded(file, verdict, output)
    document = {**_verdict_document(verdict, _explained(program, verdict)), "link_loads": None, "cost": None}
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


def _document(violations: list[ScheduleViolation], verified: VerifiedSchedule | None) -> dict[str, Any]:
    document: dict[str, Any] = {"ok": not violations, "violations": _listed(violations)}
    document |= {"link_loads": None, "cost": None}
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


def _explained(program: AnyProgram, verdict: Verdict) -> list[Explanation | None]:
    """Return what is behind each violation of `verdict`; None where no more is known."""
    if not _sound_enough(verdict):
        return [None] * len(verdict.violations)
    if isinstance(program, ExecutionPlan):
        return plan_explanations(program, verdict.violations)
    assert isinstance(program, Program)
    return explanations(program, verdict.violations)


def _sound_enough(verdict: Verdict) -> bool:
    """Return whether a program can be executed, so that its instructions have turns and its faults a history."""
    return all(violation.rule in _FOUND_BY_EXECUTION for violation in verdict.violations)


def _verdict_document(verdict: Verdict, behind: Sequence[Explanation | None]) -> dict[str, Any]:
    """Return `verdict` as JSON has it; `behind`: what is behind each violation."""
    texts = [
        {"violation": number, "text": item.text, "positions": [list(position) for position in item.positions]}
        for number, item in enumerate(behind)
        if item is not None
    ]
    return {
        "ok": not verdict.violations,
        "violations": _listed(verdict.violations),
        "explanations": texts,
        "notices": _listed(verdict.notices),
        "max_bytes": verdict.max_bytes,
    }


def _write_bounded(file: str, verdict: Verdict, output: str | None) -> None:
    """Write the program in `file` to `output`, bounded to the sizes at which it cannot hang.

    InvalidInput without an output, or where a bound repairs nothing.
    """
    if output is None:
        raise InvalidInput("--fix writes a file", "no --output", "add -o FILE")
    text = read_file(file)
    if verdict.violations or is_plan_text(text):
        found = verdict.violations[0].message if verdict.violations else "a plan of one-sided operations"
        raise InvalidInput("--fix bounds programs that are right up to some size", found, "repair the program itself")
    write_file(output, text if verdict.max_bytes is None else with_max_bytes(text, verdict.max_bytes))


def verdict_rows(document: Mapping[str, Any], most: int) -> Iterator[tuple[str, str]]:
    """Yield rule and words of each violation, with what is behind it, and of each notice; at most `most` violations."""
    violations = document.get("violations", [])
    behind = {item["violation"]: item["text"] for item in document.get("explanations", [])}
    for number, violation in enumerate(violations[:most]):
        yield violation["rule"], violation["message"]
        if number in behind:
            yield "", behind[number]
    if len(violations) > most:
        yield "...", f"{len(violations) - most} more"
    for notice in document.get("notices", []):
        yield notice["rule"], notice["message"]


def _listed(violations: Sequence[ProgramViolation | ScheduleViolation]) -> list[dict[str, str]]:
    return [{"rule": violation.rule, "message": violation.message} for violation in violations]
