"""`chorale export`: a folder with everything that another machine needs to run a schedule or a program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import format_size, parse_sizes
from chorale.runners.msccl.commands import JobOptions, gpus_per_machine, served_size
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import verify_schedule
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program, as_protocol
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.cli.options import RunnableFile, SpecOfProgram, offer
from chorale.tuner.cli.output import people
from chorale.tuner.cli.program_options import ElementTypeName, Protocol, target_name
from chorale.tuner.cli.slurm import Site, SlurmTime
from chorale.tuner.files.program_files import is_program_file, load_program
from chorale.tuner.files.read_write import write_folder
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.job_export import GPU_TARGETS, JOB_TARGETS, Export, export_files, require_job_target
from chorale.tuner.reports.tables import Result
from chorale.tuner.slurm.jobs import load_profile

_FIRST_BYTES, _DEFAULT_SIZES = 2**16, 7


def export(
    file: RunnableFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to fill: a new or empty one.")],
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME",
            parser=target_name,
            autocompletion=offer(JOB_TARGETS),
            help=f"{', '.join(JOB_TARGETS)}; default: the first two.",
        ),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Buffer sizes, rounded up to what the programs serve; default: 64KiB to 256MiB.")
    ] = None,
    spec: SpecOfProgram = None,
    channels: Annotated[int | None, typer.Option(help="As `chorale lower` has it.")] = None,
    instances: Annotated[int, typer.Option(help="As `chorale lower` has it.")] = 1,
    protocol: Protocol = "Simple",
    in_place: Annotated[
        bool | None, typer.Option("--inplace/--outofplace", help="Default: in place, but for an alltoall.")
    ] = None,
    hosts: Annotated[str, typer.Option(help="Names of the nodes, with commas, in the order of their ranks.")] = "",
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs of a node; default: as the boxes of the spec.")
    ] = None,
    tests: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of nccl-tests on the nodes.")] = None,
    library: Annotated[str | None, typer.Option(metavar="DIR", help="Folder of the runtime's library.")] = None,
    site: Site = None,
    job_time: SlurmTime = None,
    dtype: ElementTypeName = "float32",
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that holds other files.")] = False,
) -> Result:
    """Write a job folder: programs, environment, launch scripts, manifest and checklist.

    A schedule is lowered, a program taken as it is. Everything is checked before anything is written. There are scripts
    for mpirun and srun; the batch script for Slurm has what the profile of the site says.

    Example: chorale export a100.parquet -o job
    """
    lowering = LoweringOptions(GPU_TARGETS[0], 1 if channels is None else channels, instances, as_protocol(protocol))
    network = None if spec is None else load_topology(spec)
    verified = None
    if is_program_file(file):
        topology, program = load_program(file, network)
        if targets and targets != [program.target]:
            raise InvalidInput(f"a program stays what it is, {program.target}", targets[0], "export the schedule")
        programs: tuple[Program, ...] = (program,)
    else:
        verified = verify_schedule(load_schedule(file))
        topology = verified.schedule.topology
        if network is not None:
            raise InvalidInput("a schedule file names its topology itself", f"--spec {network.spec}", "leave it out")
        programs = tuple(
            _lowered(verified, replace(lowering, target=target), in_place, channels is None)
            for target in dict.fromkeys(targets or GPU_TARGETS)
        )
    served = _served(sizes, dtype, programs)
    names = tuple(name for name in hosts.split(",") if name)
    per_node = gpus_per_node if gpus_per_node is not None or names else gpus_per_machine(topology)
    profile = load_profile(site, time=job_time)
    options = JobOptions(
        served,
        dtype,
        hosts=names,
        gpus_per_node=per_node,
        tests_folder=tests,
        library_folder=library,
        batch_options=tuple(profile.requests()),
        batch_prologue=tuple(profile.prologue),
    )
    files = export_files(Export(topology, programs, verified, options))
    write_folder(output, files, force)
    document = {"output": str(output), "files": sorted(files), "sizes_bytes": list(served)}
    return Result(document, f"{output}: {len(files)} files; begin with {output}/README.md")


def _lowered(
    verified: VerifiedSchedule, options: LoweringOptions, in_place: bool | None, with_default: bool
) -> Program:
    """Return the checked program: in place by default, except for an alltoall, which runtimes never call so."""
    require_job_target(options.target)
    is_alltoall = verified.schedule.collective.name is CollectiveName.ALLTOALL
    options = replace(options, in_place=not is_alltoall if in_place is None else in_place)
    return build_program(verified, with_default_channels(verified, options) if with_default else options).program


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
