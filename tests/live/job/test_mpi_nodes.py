"""MPI jobs with several ranks on each node, under a table whose ranks are nodes; a variable says who shares a node."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from chorale.job.mpi.preload import preload_library
from chorale.runners.engine.build import native_folder
from tests.command import chorale
from tests.live.job.mpi_jobs import COLLECTIVES, run_job
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(600)]
BLOCKS, CYCLES = "RANK / 2", "RANK % 4"


def run_on_nodes(command: str, table: Path, node: str, ranks: int, **variables: str) -> str:
    """Run a job that ends well, and return what it prints; node: of a rank, in the shell's arithmetic."""
    ranked = f"RANK=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; export CHORALE_NODE=$(({node})); exec {command}"
    done = run_job(("/bin/sh", "-c", ranked), {"CHORALE_TABLE": str(table), **variables}, ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


def report_of(
    program: Path, table: Path, node: str, ranks: int, environment: dict[str, str], repeats: int = 3
) -> dict[str, Any]:
    """Return the report of a job that checks all results."""
    report = table.parent / "report"
    command = f"{program} 4096 {repeats}"
    assert "all right" in run_on_nodes(command, table, node, ranks, CHORALE_REPORT=str(report), **environment)
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


def test_both_ways_are_measured_and_one_is_kept_for_the_next_job(program: Path, table: Path, tmp_path: Path) -> None:
    kept = tmp_path / "ways"
    report = report_of(program, table, BLOCKS, 8, {"CHORALE_WITHIN_NODES": str(kept)}, repeats=12)
    by = {entry["by"] for entry in report["within_nodes"] if entry["collective"] == "allreduce"}
    assert by == {"leaders", "slices"}
    found = re.findall(r"^4 nodes 8 ranks allreduce (\d+) (leaders|slices)$", kept.read_text(), re.MULTILINE)
    assert found
    kept.write_text("".join(f"4 nodes 8 ranks allreduce {power} leaders\n" for power in range(20)))
    again = report_of(program, table, BLOCKS, 8, {"CHORALE_WITHIN_NODES": str(kept)})
    assert {entry["by"] for entry in again["within_nodes"] if entry["collective"] == "allreduce"} == {"leaders"}
    # the root, rank 1, is on node 0, and the table has programs for root 1 only
    assert {entry["reason"] for entry in report["fallbacks"]} == {"root not in the table"}


def test_only_a_regular_file_has_measured_ways(program: Path, table: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ways")
    ranked = f"export CHORALE_NODE=$((${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} / 2)); exec {program} 4096 3"
    variables = {"CHORALE_TABLE": str(table), "CHORALE_WITHIN_NODES": str(tmp_path / "ways")}
    done = run_job(("/bin/sh", "-c", ranked), variables, ranks=8)
    assert done.returncode != 0
    assert "the file of CHORALE_WITHIN_NODES must be a regular file" in done.stderr


THREE_ON_1 = "RANK < 4 ? RANK : 1"


@pytest.mark.parametrize(("node", "way"), [(CYCLES, "leaders"), (THREE_ON_1, "leaders"), (THREE_ON_1, "slices")])
def test_nodes_with_different_numbers_of_ranks_are_served(program: Path, table: Path, node: str, way: str) -> None:
    report = report_of(program, table, node, 6, {"CHORALE_WITHIN_NODES": way, "CHORALE_STRICT": "1"})
    both = ("allreduce", "broadcast")
    assert {entry["collective"]: entry["by"] for entry in report["within_nodes"]} == {
        name: way if name in both else "leaders" for name in COLLECTIVES
    }


def test_padding_has_a_limit(program: Path, table: Path) -> None:
    report = report_of(program, table, "RANK < 3 ? RANK : 3", 8, {})
    assert {entry["collective"] for entry in report["within_nodes"]} == {"allreduce", "broadcast", "reduce"}
    assert {entry["reason"] for entry in report["fallbacks"]} == {
        "nodes have such different numbers of ranks that padding more than doubles the data"
    }


def test_the_report_says_why_a_table_serves_no_call(program: Path, table: Path) -> None:
    report = report_of(program, table, "RANK / 4", 8, {})
    assert {entry["reason"] for entry in report["fallbacks"]} == {
        "group not in the table: the table is for 4 ranks or nodes, the job has 8 ranks on 2 nodes"
    }


ROOT_5 = """
import numpy
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
for _ in range(4):
    mine, total = numpy.full(1000, rank + 1.0), numpy.zeros(1000)
    MPI.COMM_WORLD.Reduce(mine, total if rank == 5 else None, root=5)
    assert (total == (21 if rank == 5 else 0)).all()
    MPI.COMM_WORLD.Bcast(mine, root=5)
    assert (mine == 6).all()
"""


def test_a_root_that_other_nodes_have_no_partner_for_hands_over(table: Path, tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(ROOT_5)
    run_on_nodes(f"{sys.executable} {tmp_path}/root.py", table, THREE_ON_1, 6, CHORALE_STRICT="1")


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
    run_on_nodes(f"{sys.executable} {tmp_path}/split.py", table, BLOCKS, 8, CHORALE_STRICT="1")


def test_the_path_of_the_library_is_short_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, folder in ((), native_folder().parent), (("--install", str(tmp_path)), tmp_path):
        done = chorale(capsys, "job", "mpi-preload", *options)
        assert done.stdout.strip() == str(folder / "libchorale_mpi.so")
        assert Path(done.stdout.strip()).read_bytes() == preload_library().read_bytes()
    assert chorale(capsys, "job", "mpi-preload", "--install", str(tmp_path / "none")).code == 2
