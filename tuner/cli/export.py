"""`chorale export`: job folders for other machines, with programs, scripts, checklists and a manifest."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from chorale.runners.api.config import CPU_TARGET
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import format_size, parse_sizes
from chorale.runners.msccl.commands import RUNTIMES, JobOptions, served_size
from chorale.runners.msccl.job_files import job_files
from chorale.runners.process_launch.launchers import gpus_per_machine
from chorale.synth import InvalidInput, LoweringOptions, Program, Topology, VerifiedSchedule, target_named
from chorale.synth.build.build import build_program
from chorale.synth.collective import CollectiveName
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.programs.program import as_protocol
from chorale.synth.verify.verify import verify
from chorale.tuner import load_schedule, load_topology
from chorale.tuner.cli.options import ElementTypeName, Protocol, RunnableFile, SpecOfProgram, named, target_name
from chorale.tuner.cli.output import notice, people
from chorale.tuner.cli.slurm import Site, SlurmTime
from chorale.tuner.files.home import write_folder
from chorale.tuner.files.program_files import is_program_file, load_program
from chorale.tuner.reports.bound import network_facts
from chorale.tuner.reports.synthesis import program_facts
from chorale.tuner.reports.tables import Result
from chorale.tuner.slurm.jobs import load_profile

FORMAT = "chorale-job/1"
GPU_TARGETS = ("msccl-xml", "msccl-executor-xml")
JOB_TARGETS = (*GPU_TARGETS, CPU_TARGET)
LAUNCHERS: Mapping[Literal["openmpi", "srun"], str] = {"openmpi": "mpirun", "srun": "srun"}
"""Launcher -> suffix of the folder name. Each GPU job is written for both launchers."""


def folder_files(
    topology: Topology, programs: Sequence[Program], verified: VerifiedSchedule | None, options: JobOptions
) -> dict[str, bytes]:
    """Return the files of a job folder by path: a folder for each runtime and launcher, manifest.json and README.md.

    The same arguments give the same bytes. Raises InvalidInput as `job_files` does.

    Args:
        topology: The network on which the job runs.
        programs: Checked programs, one per dialect, all for the same collective and ranks.
        verified: The schedule from which the programs were lowered, or None if they were read from files.
        options: Where and how GPU programs run; the launcher is chosen for each folder.
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
    file: RunnableFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR")],
    targets: Annotated[
        list[str] | None, named(JOB_TARGETS, target_name, "Dialect of programs; default: the first two", "--target")
    ] = None,
    sizes: str | None = None,
    spec: SpecOfProgram = None,
    channels: int | None = None,
    instances: int = 1,
    protocol: Protocol = "Simple",
    in_place: Annotated[bool | None, typer.Option("--inplace/--outofplace")] = None,
    hosts: str = "",
    gpus_per_node: int | None = None,
    tests: Annotated[str | None, typer.Option(metavar="DIR")] = None,
    library: Annotated[str | None, typer.Option(metavar="DIR")] = None,
    site: Site = None,
    job_time: SlurmTime = None,
    dtype: ElementTypeName = "float32",
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
        verified = verify(load_schedule(file))
        schedule, topology = verified.schedule, verified.schedule.topology
        if network is not None:
            raise InvalidInput("the schedule file already names its topology", f"--spec {network.spec}", "leave it out")
        if in_place is None:  # runtimes never run an alltoall in place
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
                notice(f"left out: {refusal}")
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
    """Return sizes that all programs support: the requested ones, rounded up, or by default a geometric series."""
    if sizes is None:
        first = served_size(_FIRST_BYTES, ELEMENT_TYPES[dtype].dtype.itemsize, programs)
        return tuple(first * 4**power for power in range(_DEFAULT_SIZES))
    requested = parse_sizes(sizes)
    served = tuple(sorted({served_size(size, ELEMENT_TYPES[dtype].dtype.itemsize, programs) for size in requested}))
    if set(served) != set(requested):
        listed = ", ".join(map(format_size, served))
        people.print(f"sizes are rounded up to multiples of the programs' chunks: {listed}")
    return served
