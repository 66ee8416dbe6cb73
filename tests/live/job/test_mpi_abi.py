"""Programs that are built for MPI's standard ABI, whose handles are others than those of the usual library."""

import json
from pathlib import Path

import pytest

from chorale.job.mpi.preload import preload_library
from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_version
from tests.live.job.mpi_jobs import COLLECTIVES, compiled, compiler, run_job, write_table
from tests.live.mpi import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if mpi_version(find_mpiexec()).name == OPEN_MPI or not compiler("mpicc_abi").exists():
        pytest.skip("THE STANDARD ABI IS NOT TESTED ON THIS MACHINE: its MPI has no mpicc_abi")
    return compiled(tmp_path, compiler("mpicc_abi"))


@pytest.mark.slow
def test_a_program_of_another_mpi_is_refused_in_a_line(program: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", COLLECTIVES)
    done = run_job((program, "1024", "1"), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "all right" not in done.stdout
    said = {line for line in done.stderr.splitlines() if line.startswith("chorale:")}
    assert len(said) == 1
    [line] = said
    assert "the program uses another MPI" in line
    assert "libmpi_abi.so.1" in line
    assert "chorale job mpi-preload" in line


@pytest.mark.slow  # another library is built
def test_a_library_of_its_own_serves_it(program: Path, tmp_path: Path) -> None:
    table, report = write_table(tmp_path / "table", COLLECTIVES), tmp_path / "report"
    environment = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_REPORT": str(report)}
    done = run_job((program, "65536", "2"), environment, preload_library(mpicc=compiler("mpicc_abi")))
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    counted = json.loads(report.read_text())
    assert {entry["collective"] for entry in counted["programs"]} == set(COLLECTIVES)
    assert counted["fallbacks"] == []
