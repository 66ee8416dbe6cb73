"""From a campaign to a job: the table that it ends with is what ranks run."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chorale as ch
from chorale.job.group import GroupEngine
from chorale.job.settings import read_table
from chorale.job.table.layout import Fallback
from chorale.runners.engine.library import Work
from chorale.tuner.files.home import Home
from tests.command import chorale
from tests.live.job.threads import Exchange, on_threads
from tests.unit.tuner.launch.test_tuning import run as run_campaign

RANKS = 4
SIZES = (2048, 4096, 4100, 65536, 131072)
"""Below the table, its first, one that no chunks divide, its last measured, above."""


Ran = tuple[str | None, bool]
"""The program that served a call, or why none did, and whether every element of the result is right."""


def allreduce(engine: GroupEngine, rank: int, ranks: int, size_bytes: int) -> Ran:
    entry = engine.entries.find("allreduce", None, "float32", size_bytes)
    if isinstance(entry, Fallback):
        return entry.value, False
    count = size_bytes // 4
    data = (ctypes.c_float * count)(*((rank + 1) * (index % 97) for index in range(count)))
    address = ctypes.addressof(data)
    engine.execute(Work(engine.programs[str(entry.program)], address, address, count, limit_s=30.0))
    total = ranks * (ranks + 1) // 2
    return entry.program, all(value == total * (index % 97) for index, value in enumerate(data))


def in_group(path: Path, group: Sequence[int]) -> list[list[Ran]]:
    """Let a thread for each rank of `group` run all sizes; return what each found."""
    table, digest = read_table(path)

    def be(position: int, exchange: Exchange) -> list[Ran]:
        engine = GroupEngine(table, digest, group, position, exchange, limit_s=20.0)
        ran = [allreduce(engine, position, len(group), size) for size in SIZES]
        exchange([""])  # nobody leaves before all have finished
        engine.close()
        return ran

    return on_threads(len(group), be)


def written(capsys: pytest.CaptureFixture[str], output: Path, *arguments: object) -> dict[str, Any]:
    done = chorale(capsys, "table", *arguments, "-o", output, "--json")
    assert done.code == 0, done.stderr
    return done.document


def test_the_answer_of_a_campaign_runs_in_a_job(capsys: pytest.CaptureFixture[str], home: Home, tmp_path: Path) -> None:
    run_campaign(home)
    tuned = written(capsys, tmp_path / "tuned", "write", "--campaign", "small")
    (best,) = tuned["programs"]
    (tmp_path / "pair.xml").write_text(ch.lower(ch.synthesize("complete:2", "allreduce", method="ring")).text)
    on = ("--sizes", "4KiB-", "--group", "3,1", "--ranks", RANKS)
    pair = written(capsys, tmp_path / "pair", "write", tmp_path / "pair.xml", *on)
    table = tmp_path / "job.table"
    merged = written(capsys, table, "merge", tmp_path / "tuned", tmp_path / "pair")
    assert merged["topology"]["spec"] == "ring:4"
    assert chorale(capsys, "table", "verify", table).code == 0
    outside = ("size not in the table", False)
    assert in_group(table, range(RANKS)) == [[outside, *[(best, True)] * 3, outside]] * RANKS
    (of_pair,) = pair["programs"]
    assert [ran[1:] for ran in in_group(table, (3, 1))] == [[(of_pair, True)] * 4] * 2
