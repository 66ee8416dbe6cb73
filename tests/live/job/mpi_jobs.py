"""MPI jobs under the preloaded library: a table with programs for ring:4, and how such a job is started."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from chorale.job.mpi.preload import preload_library
from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.runners.mpi.launch import find_mpiexec, mpi_version
from tests.live.job.torch.tables import alltoall_program, program_for

RANKS = 4
ROOT = 1
PROGRAM = Path(__file__).parent / "mpi_program.c"
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall")


@cache
def program_of(collective: str) -> TableProgram:
    """Return a program for ring:4."""
    if collective == "alltoall":
        return alltoall_program()
    return program_for(collective, ROOT if collective in ("broadcast", "reduce") else None)


def write_table(path: Path, collectives: Sequence[str], min_bytes: int = 0) -> Path:
    """Write a table whose entries are for all sizes from `min_bytes` on."""
    programs = {name: program_of(name) for name in collectives}
    entries = tuple(
        JobEntry(name, ANY_DTYPE, None, program.root, min_bytes, None, program.digest)
        for name, program in programs.items()
    )
    named = {program.digest: program for program in programs.values()}
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
