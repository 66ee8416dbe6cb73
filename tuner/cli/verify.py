"""`chorale verify`, `lift` and `lower`: replay schedules, read programs back, and lower schedules to programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from shlex import quote
from typing import Annotated, Any

import typer
from rich.table import Table

from chorale.job.files import read_file
from chorale.runners.api.elements import element_bytes
from chorale.runners.api.units import parse_size, parse_sizes
from chorale.synth import InvalidInput, LoweringOptions, VerifiedSchedule, target_named
from chorale.synth.build.build import build_program, build_switch_plan, unexecuted_text
from chorale.synth.collective import CustomCollective
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.lowering.switches import PROCESS_TARGET
from chorale.synth.lowering.vector_layout import options_for_sizes
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.check_execution import Verdict
from chorale.synth.programs.library_call import LibraryCall
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import Program, ProgramViolation, as_protocol
from chorale.synth.targets.judge import bounded, judge
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import TARGETS, is_in_place_by_default
from chorale.synth.targets.xml_text import MAX_TEXT_BYTES
from chorale.synth.verify.verified import ScheduleViolation
from chorale.synth.verify.verify import inspect
from chorale.synth.verify.verify import verify as verify_schedule
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.output import stage_display
from chorale.tuner.costs.pricing import program_loads
from chorale.tuner.files import program_files
from chorale.tuner.files.collective_files import collective_file_text, load_collective
from chorale.tuner.files.home import write_file
from chorale.tuner.files.schedule_files import load_for_inspection, load_schedule
from chorale.tuner.reports.bound import assumption_facts
from chorale.tuner.reports.synthesis import cost_document, loss_document, prediction, program_facts, timing_document
from chorale.tuner.reports.tables import Result, fact_label, fact_text, facts_table

_SEPARATE = ("violations", "notices", "network", "resources", "predicted", "loss", "order_of_additions")
MAX_SHOWN = 20


def verify(
    file: opt.ReadableFile,
    spec: opt.SpecOfProgram = None,
    collective_file: opt.CollectiveFile = None,
) -> Result:
    """Replay a schedule or execute a program chunk by chunk; exit 0 if it is correct, 1 if not.

    A file is correct if it computes its collective. A program that hangs above some size is checked up to this size,
    which is reported as `max_bytes`. `chorale lift` reports more about a program: the resources it uses, and its
    predicted time.

    Example: chorale verify torus.parquet --json
    """
    if program_files.is_program_file(file):
        title, unit, document = _verify_program(file, spec, load_collective(collective_file))
    elif collective_file is not None:
        raise InvalidInput("the schedule already names its collective", collective_file, "leave it out")
    elif spec is not None:
        raise InvalidInput("the schedule file already names its topology", f"--spec {spec}", "leave it out")
    else:
        title, unit, document = _verify_schedule(file)
    verdict = "verified" if document["ok"] else "NOT correct"
    table = facts_table(f"{file}: {title} is {verdict}", _verdict_rows(document, most=len(document["violations"])))
    bound = {} if document.get("max_bytes") is None else {"max_bytes": document["max_bytes"]}
    for part in (bound, *(document.get(name) or {} for name in ("cost", "link_loads", "order_of_additions"))):
        for name, value in part.items():
            table.add_row(fact_label(name), fact_text(name, value, unit))
    step = f"chorale run {quote(file)} --runner local" if document["ok"] else None
    return Result(document, table, exit_code=int(not document["ok"]), next_step=step)


def _verify_schedule(file: str) -> tuple[str, str, dict[str, Any]]:
    """Return title, bandwidth unit and JSON document; times are for the size for which the schedule was made."""
    schedule, stated = load_for_inspection(file)
    size_bytes = schedule.parameters.get("size_bytes")
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int | None) or (size_bytes or 1) < 1:
        rule = "the schedule is for a size that is not a whole number of bytes: {}"
        raise InvalidInput(rule, size_bytes, "write the file again with `chorale synth`")
    violations, verified = inspect(schedule)
    if stated != schedule.id:
        message = f"the file states id {stated}, its content has {schedule.id}"
        violations = [ScheduleViolation("content-id", message), *violations]
    document: dict[str, Any] = {"ok": not violations, "violations": _listed(violations)}
    document |= {"link_loads": None, "cost": None}
    if verified is not None:
        loads, cost = verified.link_loads, verified.cost
        rationals = {name: str(getattr(loads, name)) for name in ("largest", "smallest", "total")}
        counts = {name: getattr(loads, name) for name in ("idle_links", "duplicate_deliveries")}
        document["link_loads"] = rationals | counts
        document["cost"] = {"steps": cost.steps, **cost_document(verified), "latency_s": float(cost.latency_s)}
        if size_bytes is not None:
            document["cost"] |= timing_document(verified, size_bytes)
    title = f"{schedule.method} {schedule.collective} on {schedule.topology.spec}"
    return title, schedule.topology.bandwidth_unit, document | assumption_facts(schedule.topology)


def _verify_program(
    file: str, spec: str | None, collective: CustomCollective | None
) -> tuple[str, str, dict[str, Any]]:
    """Return title, bandwidth unit and JSON document."""
    lifted = read_unchecked(read_file(file, MAX_TEXT_BYTES), collective)
    program = lifted.program
    topology, is_named = program_files.network_to_judge_on(spec, program)
    verdict = judge(lifted, topology)
    document = _verdict_document(verdict, is_named)
    document |= {"link_loads": None, "cost": None, "network": topology.spec if is_named else None}
    if document["ok"]:
        document["order_of_additions"] = additions_document(program)
    if document["ok"] and is_named:
        loads = program_loads(program, topology)
        totals = {"largest": loads.max(), "smallest": loads.min(), "total": loads.sum()}
        document["link_loads"] = {name: str(Fraction(int(load), program.chunks)) for name, load in totals.items()}
        document["link_loads"]["idle_links"] = int((loads == 0).sum())
        time_per_byte = topology.links.longest_time(loads) / program.chunks
        document["cost"] = {"time_per_byte": str(time_per_byte), "algbw": float(1 / time_per_byte)}
    place = topology.spec if is_named else _UNNAMED.format(topology)
    return f"{program.name} on {place}", topology.bandwidth_unit, document


_UNNAMED = "{0.compute_count} ranks that are all connected"


def lift(
    file: str,
    spec: opt.SpecOfProgram = None,
    collective_file: opt.CollectiveFile = None,
    output: opt.ProgramOutput = None,
    size: opt.PredictedSize = None,
    link_gbps: opt.LinkGbps = None,
) -> Result:
    """Read a program back and check it against its collective; exit 0 if it is correct, 1 if not.

    A program that hangs above some size is checked up to this size, which is reported as `max_bytes`. The output is the
    program with this limit, in the form that `chorale lower` writes.

    If the collective has no name, or the file names the wrong one, give --collective-file.

    Args:
        file: Program file of any known dialect.

    Example: chorale lift torus.xml --spec torus:4x4 --json
    """
    size_bytes, collective = None if size is None else parse_size(size), load_collective(collective_file)
    text = read_file(file, MAX_TEXT_BYTES)
    lifted = read_unchecked(text, collective)
    if isinstance(lifted.program, LibraryCall):
        raise InvalidInput("a library call has no instructions: {}", lifted.program.name, "give another program")
    topology, is_named = program_files.network_to_judge_on(spec, lifted.program)
    verdict = judge(lifted, topology)
    program, violations = bounded(lifted.program, verdict.max_bytes), verdict.violations
    if output is not None and not violations:
        if isinstance(program, ExecutionPlan):
            written = plan_text(program)
        else:
            assert isinstance(program, Program)
            written = target_named(program.target).emit(program)
        write_file(output, written.encode())
    place = topology.spec if is_named else _UNNAMED.format(topology)
    title = f"{file} on {place}: {'NOT right' if violations else 'right'}"
    document = {
        **_verdict_document(verdict, is_named),
        **program_facts(program),
        "order_of_additions": None if violations else additions_document(program),
        "predicted": None if violations or not is_named else prediction(program, topology, size_bytes, link_gbps),
        "network": topology.spec if is_named else None,
    }
    table = _program_table(title, document, topology.bandwidth_unit)
    return Result(document, table, exit_code=int(bool(violations)))


def _program_table(title: str, document: dict[str, Any], unit: str) -> Table:
    """Return the terminal table about a program, violations first. `unit` is the unit of bandwidths."""
    table = facts_table(title, _verdict_rows(document, MAX_SHOWN))
    facts = {**document, **document.get("resources", {}), **(document.get("predicted") or {})}
    for name, value in {**facts, **(document.get("order_of_additions") or {})}.items():
        if name not in _SEPARATE and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return table


def _verdict_document(verdict: Verdict, is_named: bool) -> dict[str, Any]:
    """Return the JSON document of `verdict`. is_named: whether the user or the program named the network"""
    alone = "no topology is named: all pairs of ranks are assumed to be connected; --spec adds loads, bounds and time"
    return {
        "ok": not verdict.violations,
        "violations": _listed(verdict.violations),
        "notices": _listed(verdict.notices) + ([] if is_named else [{"rule": "network", "message": alone}]),
        "max_bytes": verdict.max_bytes,
    }


def _verdict_rows(document: Mapping[str, Any], most: int) -> Iterator[tuple[str, str]]:
    violations = document.get("violations", [])
    for violation in violations[:most]:
        yield violation["rule"], violation["message"]
    if len(violations) > most:
        yield "...", f"{len(violations) - most} more"
    for notice in document.get("notices", []):
        yield notice["rule"], notice["message"]


def _listed(violations: Sequence[ProgramViolation | ScheduleViolation]) -> list[dict[str, str]]:
    return [{"rule": violation.rule, "message": violation.message} for violation in violations]


COLLECTIVE_SUFFIX = ".collective.json"
"""Suffix of the file, next to a program for given sizes, that describes its collective."""
MAX_CHECKED_RANKS = 512


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options for turning a schedule into a program.

    Args:
        channels: Channels over which the transfers of each step and connection are distributed.
            [default: 1; for deep trees with long chunks 2 to 8, if they fit]
        instances: Copies of the schedule, each for a part of the data.
        in_place: Whether input and output share a buffer; default: yes, except for an alltoall of MSCCL.
        sm_count: Multiprocessors of the GPU, the number of thread blocks that run at the same time. [default: 108]
        fuse: Receive and forward in one instruction, as in rings, which needs fewer thread blocks.
        split: Parts into which each chunk of the schedule is cut, so that trees can stream and channels can share it.
        reads: MSCCL++: receivers read from the senders' buffers, instead of senders writing to the receivers.
        block_group: MSCCL++: number of thread blocks that share the chunks of each connection.
        pipeline_bytes: MSCCL++: size of the parts in which chunks pass through the steps of a block; 0: whole chunks.
        ranks_per_box: MSCCL++: ranks that share memory; others are reached through ports. [default: by the topology]
        sizes: Buffer sizes for which the program is made, such as 4KiB:1GiB:x4. The number of instances and of parts is
            lowered until all these sizes are cut into equal chunks, and chunks are joined if that helps. Other sizes
            are left to the runtime.
    """

    target: Annotated[str, opt.named(TARGETS, opt.target_name, "Dialect of the program")] = "msccl-xml"
    channels: int | None = None
    instances: int = 1
    protocol: opt.Protocol = "Simple"
    in_place: Annotated[bool | None, typer.Option("--inplace/--outofplace")] = None
    sm_count: int | None = None
    fuse: bool = False
    split: Annotated[int, typer.Option(min=1)] = 1
    reads: bool = False
    block_group: int = 1
    pipeline_bytes: Annotated[str, typer.Option(metavar="BYTES")] = "0"
    ranks_per_box: int | None = None
    sizes: str | None = None
    dtype: opt.ElementTypeName = "float32"

    def lowering(self, verified: VerifiedSchedule) -> LoweringOptions:
        """Return the lowering options; unset ones are derived from the schedule's sizes and the depth of its trees."""
        schedule = verified.schedule
        in_place = self.in_place
        if in_place is None:
            in_place = is_in_place_by_default(schedule.collective, self.target)
        options = LoweringOptions(
            self.target, 1 if self.channels is None else self.channels, self.instances, as_protocol(self.protocol),
            in_place, sm_count=self.sm_count, fuse=self.fuse, reads=self.reads, block_group=self.block_group,
            ranks_per_box=self.ranks_per_box,
            pipeline_bytes=0 if self.pipeline_bytes == "0" else parse_size(self.pipeline_bytes),
        )  # fmt: skip
        if self.split != 1:
            options = replace(options, chunks=self.split * schedule.chunks_per_shard)
        if self.sizes is not None:
            granule_bytes = max(element_bytes(self.dtype), target_named(self.target).limits.alignment_bytes)
            options = options_for_sizes(schedule.expand(), options, parse_sizes(self.sizes), granule_bytes)
        if self.channels is None and not (schedule.is_in_network and self.target != PROCESS_TARGET):
            options = with_default_channels(verified, options)
        return options


def lower(
    *,
    file: opt.ScheduleFile,
    output: Annotated[str, typer.Option("--output", "-o", callback=opt.file_to_write, metavar="FILE")],
    program: ProgramOptions,
    size: opt.PredictedSize = None,
    link_gbps: opt.LinkGbps = None,
) -> Result:
    """Lower a schedule to a program, which is read back and checked before it is written.

    The program is executed symbolically and checked against its collective. With more than 512 ranks, it is not
    executed, but only read back and compared with the program in memory.

    Args:
        output: Program file to write.

    Example: chorale lower torus.parquet --target msccl-xml --channels 2 -o torus.xml
    """
    verified = verify_schedule(load_schedule(file))
    schedule, options, target = verified.schedule, program.lowering(verified), program.target
    acts = schedule.is_in_network and target != PROCESS_TARGET
    ranks, unit = schedule.topology.compute_count, schedule.topology.bandwidth_unit
    document: dict[str, Any] = {"target": target, "ranks": ranks, "checked": "structure"}
    custom = None
    if ranks > MAX_CHECKED_RANKS and not acts:
        text = unexecuted_text(verified, options).encode()
    else:
        size_bytes = None if size is None else parse_size(size)
        with stage_display(f"{target}, {ranks} ranks") as observe:
            built = None if acts else build_program(verified, options, observe)
            written, read_back = (built.text, built.read_back) if built else build_switch_plan(verified, options)
        predicted = prediction(read_back, schedule.topology, size_bytes, link_gbps)
        document = {**program_facts(read_back), "checked": "execution", "predicted": predicted}
        text = written.encode()
        if built is not None:
            document["order_of_additions"] = additions_document(built.read_back)
            document |= loss_document(verified, options, built.program, size_bytes)
            custom = None if built.program.switches else built.program.collective.custom
    write_file(output, text)
    if custom is not None:
        document["collective_file"] = output + COLLECTIVE_SUFFIX
        write_file(document["collective_file"], collective_file_text(custom).encode())
    if not acts:
        document |= {"chunks_per_shard": options.chunks or schedule.chunks_per_shard, "instances": options.instances}
    document |= {"schedule": schedule.id, "output": output}
    table = _program_table(f"{output}: checked", document, unit)
    return Result(document, table, next_step=f"chorale export {quote(file)} -o job, or chorale run {quote(output)}")
