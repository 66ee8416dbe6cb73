"""Defines the commands `chorale verify` (replay schedules), `lift` (read programs), `lower` (turn schedules into
programs) and `export` (write job folders for other machines, with programs, scripts, checklists and a manifest).
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from chorale.job.files import read_file
from chorale.runners.api.config import CPU_TARGET
from chorale.runners.api.elements import ELEMENT_TYPES, element_bytes
from chorale.runners.api.units import format_size, parse_size, parse_sizes
from chorale.runners.msccl.commands import RUNTIMES, JobOptions, served_size
from chorale.runners.msccl.job_files import job_files
from chorale.runners.process_launch.slurm import gpus_per_machine
from chorale.synth import InvalidInput, LoweringOptions, Topology, VerifiedSchedule, target_named
from chorale.synth.build.build import build_program, build_switch_plan, unexecuted_text
from chorale.synth.collective import CollectiveName, CustomCollective
from chorale.synth.identity import rational_text
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
from chorale.synth.verify.verify import inspect, verify as verify_schedule
from chorale.tuner import load_topology
from chorale.tuner.cli import options as opt
from chorale.tuner.cli.slurm import Site, SlurmTime
from chorale.tuner.costs.pricing import program_loads
from chorale.tuner.files import program_files
from chorale.tuner.files.collective_files import collective_file_text, load_collective
from chorale.tuner.files.home import write_file, write_folder
from chorale.tuner.files.program_files import is_program_file, load_program
from chorale.tuner.files.schedule_files import load_for_inspection, load_schedule
from chorale.tuner.reports.bound import assumption_facts, network_facts
from chorale.tuner.reports.synthesis import cost_document, loss_document, prediction, program_facts, timing_document
from chorale.tuner.reports.tables import Result, fact_label, fact_text, facts_table
from chorale.tuner.slurm.jobs import load_profile

_SEPARATE = ("violations", "notices", "network", "resources", "predicted", "loss", "order_of_additions")
MAX_SHOWN = 20
_UNNAMED = "{0.compute_count} ranks that are all connected"
COLLECTIVE_SUFFIX = ".collective.json"
"""Suffix of the file that is stored next to a program and describes the program's collective, if that is custom."""
MAX_CHECKED_RANKS = 512
FORMAT = "chorale-job/1"
GPU_TARGETS = ("msccl-xml", "msccl-executor-xml")
JOB_TARGETS = (*GPU_TARGETS, CPU_TARGET)
LAUNCHERS: Mapping[Literal["openmpi", "srun"], str] = {"openmpi": "mpirun", "srun": "srun"}
"""Launcher -> suffix of the names of its folders. A GPU job gets a folder for each launcher."""


def verify(
    file: opt.ReadableFile, spec: opt.SpecOfProgram = None, collective_file: opt.CollectiveFile = None
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
    """Verify a schedule file. Return a title, the unit of bandwidths, and the JSON document of `chorale verify`."""
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
    """Return the table about a program for the terminal, with violations first. Bandwidths are given in `unit`."""
    table = facts_table(title, _verdict_rows(document, MAX_SHOWN))
    facts = {**document, **document.get("resources", {}), **(document.get("predicted") or {})}
    for name, value in {**facts, **(document.get("order_of_additions") or {})}.items():
        if name not in _SEPARATE and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return table


def _verdict_document(verdict: Verdict, is_named: bool) -> dict[str, Any]:
    """Return the JSON document of `verdict`, with a notice unless the user or the program names the network."""
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
    for remark in document.get("notices", []):
        yield remark["rule"], remark["message"]


def _listed(violations: Sequence[ProgramViolation | ScheduleViolation]) -> list[dict[str, str]]:
    return [{"rule": violation.rule, "message": violation.message} for violation in violations]


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
        """Return the lowering options. Unset ones are chosen for the collective, the sizes and the depth of trees."""
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
    """Lower a schedule to a program, and check the program before it is written.

    Its text is parsed again, executed symbolically and checked against its collective. With more than 512 ranks, it is
    not executed, but only compared with the program in memory.

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
        with opt.stage_display(f"{target}, {ranks} ranks") as observe:
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


def folder_files(
    topology: Topology, programs: Sequence[Program], verified: VerifiedSchedule | None, options: JobOptions
) -> dict[str, bytes]:
    """Return path -> content for a job folder: a folder for each runtime and launcher, manifest.json and README.md.

    The same arguments give the same bytes. Raises InvalidInput in the same cases as `job_files`.

    Args:
        topology: The network on which the job runs.
        programs: Checked programs, one per dialect, all for the same collective and ranks.
        verified: The schedule from which the programs were lowered, or None if they were read from files.
        options: Where and how GPU programs run; its launcher is replaced by the launcher of each folder.
    """
    collective, schedule = programs[0].collective, None
    files: dict[str, bytes] = {}
    jobs: list[dict[str, Any]] = []
    for program in programs:
        text = target_named(program.target).emit(program)
        facts = {**program_facts(program), "protocol": program.protocol}
        facts |= {"id": hashlib.sha256(text.encode()).hexdigest()}
        for folder, runtime, contents in _jobs(topology, program, text, options):
            files |= {f"{folder}/{path}": content for path, content in contents.items()}
            jobs.append({"folder": folder, "runtime": runtime, "program": facts})
    cost = "" if verified is None else f" Time per byte {verified.cost.time_per_byte}, verified."
    lines = [
        f"# {collective.name.value} of {len(programs[0].ranks)} ranks on {topology.spec}",
        "",
        f"Each folder is a complete job.{cost} `manifest.json` describes all files; its ids are SHA-256.",
        "",
        "| folder | for | start with |",
        "|---|---|---|",
    ]
    for job in jobs:
        folder, name = job["folder"], job["runtime"]
        title = RUNTIMES[name].title if name in RUNTIMES else "CPUs"
        start = "`sbatch job.sbatch`" if folder.endswith("-srun") else "`./run.sh`"
        lines.append(f"| [{folder}]({folder}/README.md) | {title} | {start} |")
    checks = _CHECKLIST if any(job["runtime"] in RUNTIMES for job in jobs) else _ALWAYS_CHECKED
    files["README.md"] = "\n".join([*lines, "", checks, ""]).encode()
    if verified is not None:
        schedule = {
            "id": verified.schedule.id,
            "method": verified.schedule.method,
            "parameters": dict(verified.schedule.parameters),
            "time_per_byte": rational_text(verified.cost.time_per_byte),
        }
    manifest = {
        "format": FORMAT,
        "versions": {"chorale": version("chorale-collectives"), "numpy": version("numpy")},
        **network_facts(topology),
        "collective": collective.name.value,
        "root": collective.root,
        "schedule": schedule,
        "verification": {
            "schedule": None if schedule is None else "replayed chunk by chunk: right",
            "programs": "read back and executed symbolically: right",
        },
        "sizes_bytes": list(options.sizes_bytes),
        "jobs": jobs,
        "files": {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())},
    }
    files["manifest.json"] = (json.dumps(manifest, indent=2) + "\n").encode()
    return files


def _jobs(
    topology: Topology, program: Program, text: str, options: JobOptions
) -> Iterator[tuple[str, str, Mapping[str, bytes]]]:
    if program.target == CPU_TARGET:
        sizes, spec = ",".join(map(format_size, options.sizes_bytes)), shlex.quote(topology.spec)
        command = f"chorale run program.xml --spec {spec} --sizes {sizes} --dtype {options.dtype}"
        files = {"program.xml": text, "run.sh": _CPU_SCRIPT + f'exec {command} --runner "$runner" "$@"\n'}
        files["README.md"] = _CPU_GUIDE.format(spec=spec)
        yield "oneccl", "chorale run", {name: content.encode() for name, content in files.items()}
    for runtime in (each.name for each in RUNTIMES.values() if each.target == program.target):
        for launcher, end in LAUNCHERS.items():
            chosen = replace(options, runtime=runtime, launcher=launcher)
            yield f"{runtime}-{end}", runtime, job_files(program, chosen)


_CPU_SCRIPT = """\
#!/bin/sh
# ./run.sh [RUNNER [OPTIONS]]: local (default), oneccl, mpi or simulated; all data are checked
set -eu
cd -- "$(dirname -- "$0")"
runner=${1:-local}
[ $# -eq 0 ] || shift
"""
_CPU_GUIDE = """\
# On CPUs

```sh
chorale lift program.xml --spec {spec}    # read it back, check it again
./run.sh                                  # local processes over paced links
./run.sh oneccl                           # oneCCL's point-to-point calls, on a fabric or a cluster
./run.sh mpi                              # the same over MPI
```

## Did it run?

1. The command ends with exit code 0: every element of every result was compared with the definition.
2. Nothing else can have run: these runners have no algorithm to fall back to.
3. With `--json`, the output also names the runner and its environment.
"""
_CHECKLIST = """\
How to see that the program really ran, because some runtimes silently fall back to their own algorithms:

1. Run `./run.sh proof > proof.txt` first. The folder's README says which lines `logs/proof.*` must contain.
2. Check that `#wrong` is 0 in every row.
3. Run `./run.sh library` and `./run.sh program` alternately. Only the times in place or only those out of place may
   differ: the ones for which the program was made.
4. Check that `sha256sum algorithms/program.xml` prints the id in the manifest, on every node."""
_ALWAYS_CHECKED = "The runners check every element and have nothing to fall back to."
_FIRST_BYTES, _DEFAULT_SIZES = 2**16, 7


def export(
    file: opt.RunnableFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR")],
    targets: Annotated[
        list[str] | None,
        opt.named(JOB_TARGETS, opt.target_name, "Dialect of programs; default: the first two", "--target"),
    ] = None,
    sizes: str | None = None,
    spec: opt.SpecOfProgram = None,
    channels: int | None = None,
    instances: int = 1,
    protocol: opt.Protocol = "Simple",
    in_place: Annotated[bool | None, typer.Option("--inplace/--outofplace")] = None,
    hosts: str = "",
    gpus_per_node: int | None = None,
    tests: Annotated[str | None, typer.Option(metavar="DIR")] = None,
    library: Annotated[str | None, typer.Option(metavar="DIR")] = None,
    site: Site = None,
    job_time: SlurmTime = None,
    dtype: opt.ElementTypeName = "float32",
    force: bool = False,
) -> Result:
    """Write a job folder: programs, environment, launch scripts, manifest and checklist.

    A schedule is lowered first; a program is used unchanged. Everything is checked before anything is written. The job
    has scripts for mpirun and srun; the batch script for Slurm follows the site's profile.

    Args:
        output: New or empty folder for the job.
        sizes: Buffer sizes, rounded up to sizes that the programs support; default: 64KiB to 256MiB.
        channels: As for `chorale lower`.
        instances: As for `chorale lower`.
        in_place: Whether input and output share a buffer; default: yes, except for alltoall.
        hosts: Names of the nodes in the order of their ranks, separated by commas.
        gpus_per_node: GPUs per node; default: the size of a box in the spec.
        tests: Folder of nccl-tests on the nodes.
        library: Folder of the runtime's library on the nodes.
        force: Write to the folder even if it contains other files.

    Example: chorale export a100.parquet -o job
    """
    lowering = LoweringOptions(GPU_TARGETS[0], 1 if channels is None else channels, instances, as_protocol(protocol))
    network, verified = None if spec is None else load_topology(spec), None
    if is_program_file(file):
        topology, program = load_program(file, network)
        if targets and targets != [program.target]:
            raise InvalidInput(
                f"a {program.target} program cannot be exported for {{}}", targets[0], "export the schedule"
            )
        programs: tuple[Program, ...] = (program,)
    else:
        verified = verify_schedule(load_schedule(file))
        schedule, topology = verified.schedule, verified.schedule.topology
        if network is not None:
            raise InvalidInput("the schedule file already names its topology", f"--spec {network.spec}", "leave it out")
        if in_place is None:  # no runtime runs an alltoall in place
            in_place = schedule.collective.name is not CollectiveName.ALLTOALL
        programs = ()
        for target in dict.fromkeys(targets or GPU_TARGETS):
            if target not in JOB_TARGETS:
                rule = "a job must be for a dialect that it can be started for"
                raise InvalidInput(rule, target, f"choose from {', '.join(JOB_TARGETS)}")
            options = replace(lowering, target=target, in_place=in_place)
            options = with_default_channels(verified, options) if channels is None else options
            try:
                programs = (*programs, build_program(verified, options).program)
            except InvalidInput as refusal:
                if targets or not programs:  # Without --target, one of the two default targets is enough
                    raise
                opt.notice(f"left out: {refusal}")
    served = _served(sizes, dtype, programs)
    names = tuple(name for name in hosts.split(",") if name)
    per_node = gpus_per_node if gpus_per_node is not None or names else gpus_per_machine(topology)
    profile = load_profile(site, time=job_time)
    job = JobOptions(
        served,
        dtype,
        hosts=names,
        gpus_per_node=per_node,
        tests_folder=tests,
        library_folder=library,
        batch_options=tuple(profile.requests()),
        batch_prologue=tuple(profile.prologue),
    )
    files = folder_files(topology, programs, verified, job)
    write_folder(output, files, force)
    document = {"output": str(output), "files": sorted(files), "sizes_bytes": list(served)}
    return Result(document, f"{output}: {len(files)} files; begin with {output}/README.md")


def _served(sizes: str | None, dtype: str, programs: tuple[Program, ...]) -> tuple[int, ...]:
    """Return sizes that all programs support: the requested sizes, rounded up, or by default a geometric series."""
    if sizes is None:
        first = served_size(_FIRST_BYTES, ELEMENT_TYPES[dtype].dtype.itemsize, programs)
        return tuple(first * 4**power for power in range(_DEFAULT_SIZES))
    requested = parse_sizes(sizes)
    served = tuple(sorted({served_size(size, ELEMENT_TYPES[dtype].dtype.itemsize, programs) for size in requested}))
    if set(served) != set(requested):
        listed = ", ".join(map(format_size, served))
        opt.people.print(f"sizes are rounded up to multiples of the programs' chunks: {listed}")
    return served
