"""`chorale tune --from-record` as scripts see it."""

from pathlib import Path

import pytest

from chorale.job.record import CallCount, CallKey, Record, record_bytes
from chorale.tuner.files.home import Home
from tests.command import chorale


@pytest.fixture
def record(tmp_path: Path) -> Path:
    calls = {
        CallKey("allreduce", "float32", None, None, 2**20): CallCount(10, 3.0),
        CallKey("allgather", "float32", None, None, 2**16): CallCount(10, 1.0),
    }
    (tmp_path / "job.json").write_bytes(record_bytes(Record(4, calls)))
    return tmp_path / "job.json"


def test_a_dry_run_has_a_plan_for_each_collective(capsys: pytest.CaptureFixture[str], home: Home, record: Path) -> None:
    document = chorale(
        capsys, "tune", "--from-record", record, "--topology", "ring:4", "--set", "runner.kind=simulated", "--dry-run",
        "--json",
    ).document  # fmt: skip
    assert document["covered"] == 1
    assert [plan["collective"] for plan in document["campaigns"]] == ["allreduce", "allgather"]
    assert document["campaigns"][0]["resolved"]["weights"] == [1.0]
    assert not home.campaigns.exists()


def test_ranks_may_share_nodes(capsys: pytest.CaptureFixture[str], home: Home, record: Path) -> None:
    arguments = ("--topology", "complete:2", "--set", "runner.kind=simulated", "--dry-run")
    done = chorale(capsys, "tune", "--from-record", record, *arguments)
    assert done.code == 0
    assert "2 ranks of the job share each node of complete:2" in done.stderr
