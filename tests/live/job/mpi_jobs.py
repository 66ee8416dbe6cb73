"""MPI jobs under the preloaded library: a table with programs for ring:4, and how such a job is started."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from chorale.job.mpi.preload import preload_library
from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.job.table.verification import table_program
from chorale.runners.mpi.launch import find_mpiexec, mpi_version
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.method import Options
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify

RANKS = 4
ROOT = 1
TARGET = "oneccl-xml"
PROGRAM = Path(__file__).parent / "mpi_program.c"
COLLECTIVES: Mapping[str, tuple[Collective, str]] = {
    "allgather": (ALLGATHER, "ring"),
    "reduce_scatter": (REDUCE_SCATTER, "ring"),
    "allreduce": (ALLREDUCE, "ring"),
    "broadcast": (Collective(CollectiveName.BROADCAST, ROOT), "forest"),
    "reduce": (Collective(CollectiveName.REDUCE, ROOT), "forest"),
    "alltoall": (ALLTOALL, "alltoall"),
}


@cache
def program_of(collective: str, topology: str = "ring:4", method: str | None = None) -> TableProgram:
    """Return a program for `topology`."""
    goal, usual = COLLECTIVES[collective]
    if goal == ALLTOALL:
        schedule = verify(alltoall_schedule(parse_topology(topology), 2))
        text = target_named(TARGET).emit(lower(schedule, LoweringOptions(TARGET)))
        return table_program(text.encode(), TARGET, usual, {})
    source = ScheduleRequest(parse_topology(topology), goal, method or usual, Options(), 1)
    built = build(BuildRequest(source, LoweringOptions(TARGET)))
    assert isinstance(built, BuildResult)
    return table_program(built.program_text.encode(), TARGET, method or usual, {})


def write_table(path: Path, collectives: Sequence[str], min_bytes: int = 0, library: bool = False) -> Path:
    """Write a table whose entries are for all sizes from `min_bytes` on; with `library` they all say the library's."""
    programs = {name: program_of(name) for name in collectives}
    entries = tuple(
        JobEntry(name, ANY_DTYPE, None, program.root, min_bytes, None, None if library else program.digest)
        for name, program in programs.items()
    )
    named = {} if library else {program.digest: program for program in programs.values()}
    path.write_bytes(table_bytes(Table({"spec": "ring:4"}, RANKS, entries, named)))
    return path


def compiler(name: str = "mpicc") -> Path:
    """Return what compiles MPI programs, beside mpiexec."""
    return Path(find_mpiexec()).parent / name


def compiled(folder: Path, mpicc: Path | None = None) -> Path:
    """Return the test program, compiled by `mpicc` or the usual one."""
    mpicc, program = mpicc or compiler(), folder / "mpi_program"
    subprocess.run([mpicc, "-O2", "-Wall", "-Wextra", "-Werror", PROGRAM, "-o", program], check=True)
    return program


def job_command(
    argv: Sequence[str | Path], environment: Mapping[str, str], preload: Path | None = None, ranks: int = RANKS
) -> tuple[list[str], dict[str, str]]:
    """Return a command that runs `argv` on `ranks` ranks on this machine, and its variables.

    preload: by default the library for the MPI that is there
    """
    mpiexec = find_mpiexec()
    variables = {**environment, "LD_PRELOAD": str(preload or preload_library())}
    launcher = mpi_version(mpiexec).launcher
    options = (*launcher.on_hosts("localhost"), *launcher.passing(variables))
    return [mpiexec, *options, "-n", str(ranks), *map(str, argv)], variables


def run_job(
    argv: Sequence[str | Path],
    environment: Mapping[str, str],
    preload: Path | None = None,
    limit_s: float = 100.0,
    ranks: int = RANKS,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` on `ranks` ranks on this machine, by default as many as the table has."""
    command, variables = job_command(argv, environment, preload, ranks)
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=limit_s, check=False
    )
