"""MPI jobs with several ranks on each node, under a table whose ranks are nodes; a variable says who shares a node."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chorale.job.mpi.preload import preload_library
from chorale.runners.engine.build import native_folder
from tests.command import chorale
from tests.live.job.mpi_jobs import COLLECTIVES, compiled, run_job, write_table
from tests.live.mpi import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]
BLOCKS, CYCLES = "RANK / 2", "RANK % 4"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "table", COLLECTIVES)


def report_of(program: Path, table: Path, node: str, ranks: int, environment: dict[str, str]) -> dict[str, Any]:
    """Return the report of a job that checks all results; node: of a rank, in the shell's arithmetic."""
    report = table.parent / "report"
    ranked = f"RANK=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; export CHORALE_NODE=$(({node})); exec {program} 4096 3"
    variables = {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report), **environment}
    done = run_job(("/bin/sh", "-c", ranked), variables, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert "all right" in done.stdout
    document: dict[str, Any] = json.loads(report.read_text())
    return document


@pytest.mark.parametrize("way", ["leaders", "slices"])
def test_each_way_serves_all_collectives_in_any_order_of_ranks(program: Path, table: Path, way: str) -> None:
    report = report_of(program, table, CYCLES, 8, {"CHORALE_WITHIN_NODES": way, "CHORALE_STRICT": "1"})
    assert {entry["collective"] for entry in report["programs"]} == set(COLLECTIVES)
    only = {"reduce": "leaders", "alltoall": "slices"}
    assert {entry["collective"]: entry["by"] for entry in report["within_nodes"]} == {
        name: only.get(name, way) for name in COLLECTIVES
    }


def test_both_ways_are_measured_and_one_is_kept(program: Path, table: Path) -> None:
    report = report_of(program, table, BLOCKS, 8, {})
    assert {entry["by"] for entry in report["within_nodes"] if entry["collective"] == "allreduce"} == {
        "leaders",
        "slices",
    }
    # the root, rank 1, is on node 0, and the table has programs for root 1 only
    assert {entry["reason"] for entry in report["fallbacks"]} == {"root not in the table"}


def test_nodes_with_different_numbers_of_ranks_are_served_by_leaders(program: Path, table: Path) -> None:
    report = report_of(program, table, CYCLES, 6, {})
    assert [(entry["collective"], entry["by"]) for entry in report["within_nodes"]] == [("allreduce", "leaders")]
    assert {entry["reason"] for entry in report["fallbacks"]} == {"nodes have different numbers of ranks"}


def test_the_report_says_why_a_table_serves_no_call(program: Path, table: Path) -> None:
    report = report_of(program, table, "RANK / 4", 8, {})
    assert {entry["reason"] for entry in report["fallbacks"]} == {
        "group not in the table: the table is for 4 ranks or nodes, the job has 8 ranks on 2 nodes"
    }


SPLIT = """
import numpy
from mpi4py import MPI
slices = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
mine, total = numpy.full(1000, slices.rank + 1.0), numpy.zeros(1000)
slices.Allreduce(mine, total)
assert (total == 10).all()
"""


def test_a_communicator_with_one_rank_of_each_node_runs_the_program(table: Path, tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text(SPLIT)
    ranked = f"CHORALE_NODE=$((${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} / 2)) exec {sys.executable} {tmp_path}/split.py"
    variables = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1"}
    done = run_job(("/bin/sh", "-c", ranked), variables, ranks=8)
    assert done.returncode == 0, done.stderr


def test_the_path_of_the_library_is_short_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, folder in ((), native_folder().parent), (("--install", str(tmp_path)), tmp_path):
        done = chorale(capsys, "job", "mpi-preload", *options)
        assert done.stdout.strip() == str(folder / "libchorale_mpi.so")
        assert Path(done.stdout.strip()).read_bytes() == preload_library().read_bytes()
    assert chorale(capsys, "job", "mpi-preload", "--install", str(tmp_path / "none")).code == 2
