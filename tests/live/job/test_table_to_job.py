"""From a campaign to a job: the table that it ends with is what processes run."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chorale as ch
from chorale.runners.engine.library import engine_library
from chorale.tuner.files.home import Home
from tests.command import chorale
from tests.unit.tuner.launch.test_tuning import run as run_campaign

RANKS = 4
EVERYONE, PAIR = [0, 1, 2, 3], [3, 1]
SIZES = (2048, 4096, 4100, 65536, 131072)
"""Below the table, its first, one that no chunks divide, its last measured, above."""


@pytest.fixture
def data_folder(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return an empty data folder; CHORALE_HOME points to it."""
    root = tmp_path / "home"
    root.mkdir()
    shutil.copy(mlflow_template, root / "mlflow.db")
    monkeypatch.setenv("CHORALE_HOME", str(root))
    return Home(root)


def job(tables: Sequence[Path], groups: Sequence[Sequence[int]]) -> list[list[dict[str, Any]]]:
    """Run a job, rank r with `tables[r]`; return for each group what its ranks wrote in the end."""
    engine_library()  # built once, not by all ranks at a time
    command = [sys.executable, "-m", "tests.live.job.rank_process"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, **pipes) for _ in tables]
    try:
        for rank, table in enumerate(tables):
            tell(ranks[rank], {"rank": rank, "table": str(table), "groups": groups, "sizes": SIZES})
        ended = []
        for group in groups:
            members = [ranks[rank] for rank in group]
            everyone = [hear(member) for member in members]
            for member in members:
                tell(member, everyone)
            ended.append([hear(member) for member in members])
            for member in members:
                tell(member, None)
        for process in ranks:
            process.stdin.close()  # type: ignore[union-attr]
            assert process.wait(30) == 0
        return ended
    finally:
        for process in ranks:
            process.kill()
            process.wait(30)
            process.stdout.close()  # type: ignore[union-attr]


def tell(process: subprocess.Popen[str], what: object) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(what)}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def written(capsys: pytest.CaptureFixture[str], output: Path, *arguments: object) -> dict[str, Any]:
    done = chorale(capsys, "table", *arguments, "-o", output, "--json")
    assert done.code == 0, done.stderr
    return done.document


def test_the_answer_of_a_campaign_runs_in_a_job(
    capsys: pytest.CaptureFixture[str], data_folder: Home, tmp_path: Path
) -> None:
    run_campaign(data_folder)
    tuned = written(capsys, tmp_path / "tuned", "write", "--campaign", "small")
    (best,) = tuned["programs"]
    (tmp_path / "pair.xml").write_text(ch.lower(ch.synthesize("complete:2", "allreduce", method="ring")).text)
    on = ("--sizes", "4KiB-", "--group", "3,1", "--ranks", RANKS)
    pair = written(capsys, tmp_path / "pair", "write", tmp_path / "pair.xml", *on)
    table = tmp_path / "job.table"
    merged = written(capsys, table, "merge", tmp_path / "tuned", tmp_path / "pair")
    assert merged["topology"]["spec"] == "ring:4"
    assert chorale(capsys, "table", "verify", table).code == 0
    of_all, of_pair = job([table] * RANKS, [EVERYONE, PAIR])
    expected = [None, best, best, best, None]
    for ended in of_all:
        assert [ended[str(size)]["program"] for size in SIZES] == expected
        assert [ended[str(size)]["right"] for size in SIZES] == [name and True for name in expected]
        assert ended["2048"]["reason"] == "size not in the table"
    for ended in of_pair:
        assert {ended[str(size)]["program"] for size in SIZES[1:]} == set(pair["programs"])
        assert all(ended[str(size)]["right"] for size in SIZES[1:])
