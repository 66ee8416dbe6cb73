"""Scenarios in which the table file changes while the job runs."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from chorale.job import report
from chorale.job.settings import read_table
from chorale.job.table.layout import table_bytes
from chorale.synth.errors import InvalidInput, Unavailable
from tests.live.job.torch.meeting import Meeting, replace_file
from tests.unit.job.table.examples import forged

_LIMIT_S = 40.0


def _tables(meeting: Meeting) -> tuple[Path, bytes, bytes]:
    table, _ = read_table(Path(os.environ["CHORALE_TABLE"]))
    meeting.folder.mkdir(parents=True, exist_ok=True)
    path = meeting.folder / f"rank-{meeting.rank}.table"
    path.write_bytes(table_bytes(table))
    return path, table_bytes(table), table_bytes(replace(table, provenance={"made": "again"}))


def _sum(meeting: Meeting, step: int, elements: int = 512) -> None:
    tensor = torch.full((elements,), float(meeting.rank + step))
    dist.all_reduce(tensor)
    ranks = meeting.ranks
    assert torch.equal(tensor, torch.full((elements,), float(ranks * step + ranks * (ranks - 1) // 2)))


def _sums_until(meeting: Meeting, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Add up until every rank says `is_done` of its report; return this rank's."""
    deadline_s = time.monotonic() + _LIMIT_S
    step = 0
    while True:
        step += 1
        _sum(meeting, step)
        votes = torch.tensor([int(is_done(report()) or time.monotonic() > deadline_s)], dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        if votes.item():
            return report()
        time.sleep(0.001 * meeting.rank)  # ranks are not at the same call when the proposal comes


def table_replaced(meeting: Meeting) -> None:
    """All ranks run the new table from the same call on, and what was asked for before is right, too."""
    path, _, new = _tables(meeting)
    with meeting.job(CHORALE_TABLE=str(path), CHORALE_RELOAD="0.1"):
        before = report()["table"]
        works = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(20)]
        replace_file(path, new)
        for work in works:
            work.wait()
        after = _sums_until(meeting, lambda record: bool(record["reloads"]))
        (reload,) = after["reloads"]
        assert after["table"] == reload["table"] != before
        calls = [None] * meeting.ranks
        dist.all_gather_object(calls, (reload["from_call"], reload["table"]))
        assert len(set(calls)) == 1
        for step in range(50):
            _sum(meeting, step)


def table_replaced_twice(meeting: Meeting) -> None:
    path, old, new = _tables(meeting)
    with meeting.job(CHORALE_TABLE=str(path), CHORALE_RELOAD="0.1"):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        for number, data in enumerate((new, old), start=1):
            dist.barrier()
            replace_file(path, data)
            record = _sums_until(meeting, lambda record: _whole(record) >= number)  # noqa: B023
            assert _whole(record) == number
            tensor = torch.ones(64)
            dist.all_reduce(tensor, group=pairs[meeting.rank // 2])
            assert tensor.sum().item() == 128


def _whole(record: Mapping[str, Any]) -> int:
    """Return how many new tables the group of all ranks has taken."""
    return sum(each["group"] == "0,1,2,3" and each["kept_because"] is None for each in record["reloads"])


def _why_kept(meeting: Meeting, path: Path, data: bytes) -> str:
    """Replace a job's table by `data`; return why nobody takes it, which all ranks know, while the job goes on."""
    with meeting.job(CHORALE_TABLE=str(path), CHORALE_RELOAD="0.1"):
        before = report()["table"]
        dist.barrier()
        replace_file(path, data)
        record = _sums_until(meeting, lambda record: bool(record["reloads"]))
        assert record["table"] == before
        assert record["reloads"][0]["from_call"] is None
        return str(record["reloads"][0]["kept_because"])


def table_that_a_rank_cannot_load(meeting: Meeting) -> None:
    path, _, new = _tables(meeting)
    damaged = new if meeting.rank != 2 else new[:-100]  # its digest stands in the second line all the same
    assert "rank 2" in _why_kept(meeting, path, damaged)


def forged_table(meeting: Meeting) -> None:
    """A table whose words for the engine are not those of its texts runs neither from the start nor later."""
    path, old, _ = _tables(meeting)
    replace_file(path, forged(old))
    with pytest.raises((InvalidInput, Unavailable), match="words"), meeting.job(CHORALE_TABLE=str(path)):
        pass
    replace_file(path, old)
    assert "(words)" in _why_kept(meeting, path, forged(old))


def table_for_other_ranks(meeting: Meeting) -> None:
    path, _, _ = _tables(meeting)
    other = replace(read_table(path)[0], ranks=5, entries=(), programs={})
    assert "for the 4 ranks of the job, got 5" in _why_kept(meeting, path, table_bytes(other))


def status_of_a_running_job(meeting: Meeting) -> None:
    """Rank 0 keeps a file up to date that says what ran at which size."""
    status = meeting.folder / "status.json"
    with meeting.job(CHORALE_STATUS=str(status)):
        _sum(meeting, 1)
        deadline_s = time.monotonic() + _LIMIT_S
        while meeting.rank == 0 and not _sizes(status) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if meeting.rank == 0:
            (size,) = _sizes(status)
            assert (size["size_bytes"], size["calls"], size["seconds"] > 0) == (2048, 1, True)
            assert abs(size["seconds_squared"] - size["seconds"] ** 2) < 1e-12
        dist.barrier()


def _sizes(status: Path) -> list[dict[str, Any]]:
    return json.loads(status.read_text())["sizes"] if status.exists() else []


def no_reload(meeting: Meeting) -> None:
    path, _, new = _tables(meeting)
    with meeting.job(CHORALE_TABLE=str(path), CHORALE_RELOAD="0"):
        dist.barrier()
        replace_file(path, new)
        time.sleep(0.5)
        for step in range(20):
            _sum(meeting, step)
        assert report()["reloads"] == []
