"""`chorale export`: job folders for other machines: programs, scripts, checklists and a manifest."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.runners.api.config import CPU_TARGET
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import format_size, parse_sizes
from chorale.runners.msccl.commands import RUNTIMES, JobOptions, served_size
from chorale.runners.msccl.job_files import job_files
from chorale.runners.process_launch.launchers import Launcher, gpus_per_machine
from chorale.synth import InvalidInput, LoweringOptions, Program, Topology, VerifiedSchedule, target_named
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import verify_schedule
from chorale.synth.collective import CollectiveName
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.programs.program import as_protocol
from chorale.tuner.cli.options import ElementTypeName, Protocol, RunnableFile, SpecOfProgram, named, target_name
from chorale.tuner.cli.output import notice, people
from chorale.tuner.cli.slurm import Site, SlurmTime
from chorale.tuner.files.program_files import is_program_file, load_program
from chorale.tuner.files.read_write import write_folder
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.programs import program_facts, topology_document
from chorale.tuner.reports.tables import Result
from chorale.tuner.slurm.jobs import load_profile

FORMAT = "chorale-job/1"
GPU_TARGETS = ("msccl-xml", "msccl-executor-xml")
JOB_TARGETS = (*GPU_TARGETS, CPU_TARGET)
LAUNCHERS: Mapping[Launcher, str] = {"openmpi": "mpirun", "srun": "srun"}
"""Each job for GPUs is written for both; value: the end of its folder's name."""


@dataclass(frozen=True, slots=True)
class Export:
    """The content of a job folder.

    programs: checked programs, one per dialect, all for the same collective and ranks
    verified: the schedule from which they were lowered, None for a program from elsewhere
    options:  where and how programs for GPUs run; the launcher is chosen per folder
    """

    topology: Topology
    programs: tuple[Program, ...]
    verified: VerifiedSchedule | None
    options: JobOptions

    def files(self) -> dict[str, bytes]:
        """Return the files of the folder by path: a folder for each runtime and launcher, manifest.json and README.md.

        The same export gives the same bytes. InvalidInput as `job_files` raises it.
        """
        files: dict[str, bytes] = {}
        jobs: list[dict[str, Any]] = []
        for program in self.programs:
            text = target_named(program.target).emit(program)
            facts = {**program_facts(program), "protocol": program.protocol}
            facts |= {"id": hashlib.sha256(text.encode()).hexdigest()}
            for folder, runtime, contents in self._jobs(program, text):
                files |= {f"{folder}/{path}": content for path, content in contents.items()}
                jobs.append({"folder": folder, "runtime": runtime, "program": facts})
        files["README.md"] = self._readme(jobs).encode()
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}
        files["manifest.json"] = (json.dumps(self._manifest(jobs) | {"files": hashes}, indent=2) + "\n").encode()
        return files

    def _jobs(self, program: Program, text: str) -> Iterator[tuple[str, str, Mapping[str, bytes]]]:
        """Yield (folder, name of the runtime, files) of each job for `program`."""
        if program.target == CPU_TARGET:
            sizes, spec = ",".join(map(format_size, self.options.sizes_bytes)), shlex.quote(self.topology.spec)
            command = f"chorale run program.xml --spec {spec} --sizes {sizes} --dtype {self.options.dtype}"
            files = {"program.xml": text, "run.sh": _CPU_SCRIPT + f'exec {command} --runner "$runner" "$@"\n'}
            files["README.md"] = _CPU_GUIDE.format(spec=spec)
            yield "oneccl", "chorale run", {name: content.encode() for name, content in files.items()}
        for runtime in (each.name for each in RUNTIMES.values() if each.target == program.target):
            for launcher, end in LAUNCHERS.items():
                options = replace(self.options, runtime=runtime, launcher=launcher)
                yield f"{runtime}-{end}", runtime, job_files(program, options)

    def _readme(self, jobs: Sequence[Mapping[str, Any]]) -> str:
        program = self.programs[0]
        cost = "" if self.verified is None else f" Time per byte {self.verified.cost.time_per_byte}, verified."
        lines = [
            f"# {program.collective.name.value} of {len(program.ranks)} ranks on {self.topology.spec}",
            "",
            f"Every folder is a job by itself.{cost} `manifest.json` says what everything is; its ids are SHA-256.",
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
        return "\n".join([*lines, "", checks, ""])

    def _manifest(self, jobs: list[dict[str, Any]]) -> dict[str, Any]:
        schedule = None
        if self.verified is not None:
            schedule = {
                "id": self.verified.schedule.id,
                "method": self.verified.schedule.method,
                "parameters": dict(self.verified.schedule.parameters),
                "time_per_byte": rational_text(self.verified.cost.time_per_byte),
            }
        return {
            "format": FORMAT,
            "versions": {"chorale": version("chorale-collectives"), "numpy": version("numpy")},
            "topology": topology_document(self.topology),
            "collective": self.programs[0].collective.name.value,
            "root": self.programs[0].collective.root,
            "schedule": schedule,
            "verification": {
                "schedule": None if schedule is None else "replayed chunk by chunk: right",
                "programs": "read back and executed symbolically: right",
            },
            "sizes_bytes": list(self.options.sizes_bytes),
            "jobs": jobs,
        }


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
3. `--json` names the runner and its environment beside the times.
"""
_CHECKLIST = """\
How to see that the program really ran, for runtimes that fall back to their own algorithms without a word:

1. `./run.sh proof > proof.txt` first. The README of the folder says which lines `logs/proof.*` must hold, and how many.
2. `#wrong` is 0 in every row.
3. `./run.sh library` and `./run.sh program` in turns: the times of the placement that the program serves differ, those
   of the other placement do not.
4. `sha256sum algorithms/program.xml` is what the manifest says, on every node."""
_ALWAYS_CHECKED = "The runners check every element and have nothing to fall back to."
_FIRST_BYTES, _DEFAULT_SIZES = 2**16, 7


def export(
    file: RunnableFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR")],
    targets: Annotated[
        list[str] | None, named(JOB_TARGETS, target_name, "Dialect of programs, by default the first two", "--target")
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

    A schedule is lowered, a program taken as it is. Everything is checked before anything is written. There are scripts
    for mpirun and srun; the batch script for Slurm has what the profile of the site says.

    Args:
        output: Folder to fill: a new or empty one.
        sizes: Buffer sizes, rounded up to what the programs serve; default: 64KiB to 256MiB.
        channels: As `chorale lower` has it.
        instances: As `chorale lower` has it.
        in_place: Default: in place, but for an alltoall.
        hosts: Names of the nodes, with commas, in the order of their ranks.
        gpus_per_node: GPUs of a node; default: as the boxes of the spec.
        tests: Folder of nccl-tests on the nodes.
        library: Folder of the runtime's library.
        force: Write into a folder that holds other files.

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
        if in_place is None:  # runtimes never call an alltoall so
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
                if targets or not programs:  # a job with one of the default targets is a job
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
    files = Export(topology, programs, verified, job).files()
    write_folder(output, files, force)
    document = {"output": str(output), "files": sorted(files), "sizes_bytes": list(served)}
    return Result(document, f"{output}: {len(files)} files; begin with {output}/README.md")


def _served(sizes: str | None, dtype: str, programs: tuple[Program, ...]) -> tuple[int, ...]:
    """Return the sizes that all programs serve: those asked for, rounded up, or a series that one command can name."""
    if sizes is None:
        first = served_size(_FIRST_BYTES, ELEMENT_TYPES[dtype].dtype.itemsize, programs)
        return tuple(first * 4**power for power in range(_DEFAULT_SIZES))
    requested = parse_sizes(sizes)
    served = tuple(sorted({served_size(size, ELEMENT_TYPES[dtype].dtype.itemsize, programs) for size in requested}))
    if set(served) != set(requested):
        listed = ", ".join(map(format_size, served))
        people.print(f"sizes are rounded up to what the chunks of the programs divide: {listed}")
    return served
