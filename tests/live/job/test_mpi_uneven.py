"""MPI's collectives of shards that differ in size, served by programs with padding, are right to the byte."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.live.job.mpi_jobs import compiler, run_job, write_table

pytestmark = pytest.mark.timeout(180)
SOURCE = Path(__file__).with_name("mpi_uneven.c")
SHAPE = "vector that ranks do not divide into equal shards"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the test program."""
    path = tmp_path_factory.mktemp("uneven") / "uneven"
    subprocess.run([compiler(), "-O2", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", path], check=True)
    return path


def test_shards_of_different_sizes_are_served_and_right_to_the_byte(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "alltoall", "reduce_scatter"])
    report = tmp_path / "report.json"
    done = run_job([uneven, "1000", "2"], {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)})
    assert done.returncode == 0, done.stderr
    written = json.loads(report.read_text())
    calls = {entry["collective"]: entry["calls"] for entry in written["programs"]}
    assert calls == {"allgather": 24, "alltoall": 24, "reduce_scatter": 9}  # of each call whose shards are not sparse
    assert written["fallbacks"] == [{"reason": SHAPE, "collective": "alltoall", "calls": 8, "bytes": 192_000}]
    exchanges = written["exchanges"]
    assert (exchanges["calls"], exchanges["bytes"]) == (32, 32 * 4 * 16)
    assert exchanges["seconds"] > 0


def test_what_the_table_does_not_cover_is_not_exchanged_and_refused_where_strict(uneven: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", ["allgather", "reduce_scatter"])
    report = tmp_path / "report.json"
    settings = {"CHORALE_TABLE": str(table), "CHORALE_REPORT": str(report)}
    assert run_job([uneven, "100", "1"], settings).returncode == 0
    written = json.loads(report.read_text())
    assert written["exchanges"]["calls"] == 0
    assert {entry["reason"] for entry in written["fallbacks"]} == {"collective not in the table"}
    refused = run_job([uneven, "100", "1"], {**settings, "CHORALE_STRICT": "1"})
    assert refused.returncode != 0
    assert "CHORALE_STRICT refuses it: collective not in the table" in refused.stderr
