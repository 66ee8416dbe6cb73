"""Unmodified MPI programs under the preloaded library, on this machine."""

import json
import os
import sys
from pathlib import Path

import pytest

from chorale.job.mpi.preload import preload_library
from chorale.job.record import read_record
from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_version
from tests.live.job.mpi_jobs import COLLECTIVES, compiled, compiler, run_job, write_table
from tests.live.support import needs_mpi
from tests.unit.job.table.examples import forged

pytestmark = [needs_mpi, pytest.mark.timeout(300)]


def test_a_c_program_runs_tuned_programs_and_its_results_are_right(program: Path, tmp_path: Path) -> None:
    report, record = tmp_path / "report", tmp_path / "record"
    served = set(COLLECTIVES) - {"alltoall"}
    table = write_table(tmp_path / "table", tuple(sorted(served)))
    environment = {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report), "CHORALE_RECORD": str(record)}
    done = run_job((program, "1048576", "3"), environment)
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    counted = json.loads(report.read_text())
    assert {entry["collective"] for entry in counted["programs"]} == served
    assert [entry["reason"] for entry in counted["fallbacks"]] == ["collective not in the table"]
    calls = json.loads(record.read_text())
    assert (calls["format"], calls["ranks"]) == ("chorale-record/1", 4)
    assert {call["collective"] for call in calls["calls"]} == set(COLLECTIVES)
    assert {call["dtype"] for call in calls["calls"]} == {"float32"}
    assert {call["root"] for call in calls["calls"] if call["collective"] == "reduce"} == {1}


def test_a_record_is_the_same_whether_programs_or_mpi_serve_the_calls(
    program: Path, table: Path, tmp_path: Path
) -> None:
    counts = {}
    for name, environment in (("mpi", {}), ("programs", {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1"})):
        files = {"CHORALE_REPORT": str(tmp_path / "report"), "CHORALE_RECORD": str(tmp_path / name)}
        done = run_job((program, "16384", "2"), {**environment, **files})
        assert done.returncode == 0, done.stderr
        assert "all right" in done.stdout
        counts[name] = {key: count.calls for key, count in read_record(tmp_path / name).calls.items()}
    assert counts["programs"] == counts["mpi"]
    report = json.loads((tmp_path / "report").read_text())
    assert report["fallbacks"] == []
    served: dict[str, tuple[int, int]] = {}
    for key, calls in counts["mpi"].items():
        before = served.get(key.collective, (0, 0))
        served[key.collective] = (before[0] + calls, before[1] + calls * key.size_bytes)
    assert {each["collective"]: (each["calls"], each["bytes"]) for each in report["programs"]} == served
    assert set(served) == set(COLLECTIVES)


PYTHON = """
import numpy
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine, total = numpy.full(1000, comm.rank + 1.0), numpy.zeros(1000)
comm.Allreduce(mine, total)
assert (total == 10).all()
half = comm.Split(comm.rank % 2)
half.Allreduce(mine, total)
assert (total == (4 if comm.rank % 2 == 0 else 6)).all()
"""


def test_mpi4py_is_served_too(table: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = run_job((sys.executable, "-c", PYTHON), {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)})
    assert done.returncode == 0, done.stderr
    counted = json.loads(report.read_text())
    assert [(e["collective"], e["calls"], e["bytes"]) for e in counted["programs"]] == [("allreduce", 1, 8000)]
    assert {e["reason"] for e in counted["fallbacks"]} == {"group not in the table"}


def test_strict_names_what_it_refuses(program: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", ("allreduce",), min_bytes=64)
    done = run_job((program, "1024", "1"), {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1"})
    assert done.returncode != 0
    assert "allreduce of 4 bytes: CHORALE_STRICT refuses it: size not in the table" in done.stderr
    assert "Chorale: allreduce: CHORALE_STRICT refuses it" in done.stderr  # as the text of an error class of its own


def test_ranks_with_different_tables_are_named(program: Path, table: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "other", ("allreduce",))
    choose = f'test "${{PMI_RANK:-$PMIX_RANK}}" = 2 && export CHORALE_TABLE={other}; exec {program} 4 1'
    done = run_job(("/bin/sh", "-c", choose), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "the ranks of the job have different tuning tables" in done.stderr
    assert "ranks 0, 1, 3:" in done.stderr
    assert "ranks 2:" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("forged", "a job runs only correct tables (words)"), ("pipe", "a tuning table must be a regular file")],
)
def test_a_table_that_no_job_may_run_is_an_error_at_the_start(
    name: str, said: str, program: Path, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "forged").write_bytes(forged(table.read_bytes()))
    os.mkfifo(tmp_path / "pipe")
    done = run_job((program, "4", "1"), {"CHORALE_TABLE": str(tmp_path / name)}, limit_s=60.0)
    assert done.returncode != 0
    assert said in done.stderr


def test_a_rank_that_stalls_is_an_error_in_time(program: Path, table: Path) -> None:
    done = run_job((program, "4", "1", "2"), {"CHORALE_TABLE": str(table), "CHORALE_TIMEOUT_S": "3"}, limit_s=60.0)
    assert done.returncode != 0
    assert "allgather of 16 bytes" in done.stderr


@pytest.fixture
def abi_program(tmp_path: Path) -> Path:
    if mpi_version(find_mpiexec()).name == OPEN_MPI or not compiler("mpicc_abi").exists():
        pytest.skip("THE STANDARD ABI IS NOT TESTED ON THIS MACHINE: its MPI has no mpicc_abi")
    return compiled(tmp_path, compiler("mpicc_abi"))


@pytest.mark.slow
def test_a_program_of_another_mpi_is_refused_in_a_line(abi_program: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", COLLECTIVES)
    done = run_job((abi_program, "1024", "1"), {"CHORALE_TABLE": str(table)})
    assert done.returncode != 0
    assert "all right" not in done.stdout
    said = {line for line in done.stderr.splitlines() if line.startswith("chorale:")}
    assert len(said) == 1
    [line] = said
    assert "the abi_program uses another MPI" in line
    assert "libmpi_abi.so.1" in line
    assert "chorale job mpi-preload" in line


@pytest.mark.slow  # another library is built
def test_a_library_of_its_own_serves_it(abi_program: Path, tmp_path: Path) -> None:
    table, report = write_table(tmp_path / "table", COLLECTIVES), tmp_path / "report"
    environment = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_REPORT": str(report)}
    done = run_job((abi_program, "65536", "2"), environment, preload_library(mpicc=compiler("mpicc_abi")))
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    counted = json.loads(report.read_text())
    assert {entry["collective"] for entry in counted["programs"]} == set(COLLECTIVES)
    assert counted["fallbacks"] == []
