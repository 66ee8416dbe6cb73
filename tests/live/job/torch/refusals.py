"""Scenarios of what goes wrong, and of what a job says at its end."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import redirect_stderr
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from chorale.job import report
from chorale.synth.errors import InvalidInput, Unavailable
from tests.live.job.torch.meeting import Meeting


def strict_mode(meeting: Meeting) -> None:
    with meeting.job(CHORALE_STRICT="1"):
        dist.all_reduce(torch.ones(4))
        refused = r"allreduce of 4194304 bytes of float32: size not in the table; .*CHORALE_STRICT"
        with pytest.raises(InvalidInput, match=refused):
            dist.all_reduce(torch.ones(1 << 20))
        with pytest.raises(InvalidInput, match="allreduce of 4 bytes of bool: element type not in the table"):
            dist.all_reduce(torch.ones(4, dtype=torch.bool), dist.ReduceOp.MAX)
        dist.barrier()
    with (
        meeting.job(CHORALE_STRICT="1", CHORALE_TABLE=""),
        pytest.raises(InvalidInput, match="allreduce of 16 bytes of float32: no table"),
    ):
        dist.all_reduce(torch.ones(4))


def tables_that_differ(meeting: Meeting) -> None:
    """Rank 2 has another table, rank 3 none."""
    tables = [os.environ["CHORALE_TABLE"]] * 2 + [os.environ["LIBRARY_TABLE"], ""]
    message = r"ranks 0, 1: [0-9a-f]{12}; ranks 2: [0-9a-f]{12}; ranks 3: none"
    with pytest.raises(InvalidInput, match=message), meeting.job(CHORALE_TABLE=tables[meeting.rank]):
        pass


def table_that_a_rank_cannot_read(meeting: Meeting) -> None:
    start = time.monotonic()
    if meeting.rank == 1:
        with pytest.raises(InvalidInput, match="tuning table"), meeting.job(CHORALE_TABLE="/nowhere"):
            pass
    else:
        with pytest.raises(Unavailable, match=r"rank 1 of the group: InvalidInput: .*tuning table"), meeting.job():
            pass
    assert time.monotonic() - start < 20


def report_at_the_end(meeting: Meeting) -> None:
    path = Path(meeting.folder) / "report.json"
    with meeting.job(CHORALE_REPORT=str(path)):
        for _ in range(3):
            dist.all_reduce(torch.ones(16))
        dist.all_reduce(torch.ones(1 << 20))
        expected = report()
    if meeting.rank == 0:
        record = json.loads(path.read_text())
        assert record == expected
        assert record["ranks"] == 4
        (program,) = record["programs"]
        assert (program["collective"], program["calls"], program["bytes"]) == ("allreduce", 3, 192)
        assert program["seconds"] > 0
        fallback = {"reason": "size not in the table", "collective": "allreduce", "calls": 1, "bytes": 1 << 22}
        assert record["fallbacks"] == [fallback]
    text = io.StringIO()
    with redirect_stderr(text), meeting.job(CHORALE_REPORT="-"):
        dist.all_reduce(torch.ones(16))
    lines = [line for line in text.getvalue().splitlines() if line.startswith("chorale:")]
    assert lines == (
        ["chorale: 1 collectives ran tuned programs; the library's own: none"] if meeting.rank == 0 else []
    )


def stalled_peer(meeting: Meeting) -> None:
    """Rank 3 does not come; the others say so after the group's time-out, and also in what they call next."""
    start = time.monotonic()
    with meeting.job(timeout=timedelta(seconds=3)):
        if meeting.rank == 3:
            time.sleep(6)
        else:
            with pytest.raises(dist.DistBackendError, match="allreduce of 20 bytes by program"):
                dist.all_reduce(torch.ones(5))
            with pytest.raises(dist.DistBackendError, match="this group can run no more programs"):
                dist.all_reduce(torch.ones(5), async_op=True).wait()
            assert time.monotonic() - start < 12


def abort_ends_threads(meeting: Meeting) -> None:
    with meeting.job():
        work = dist.all_reduce(torch.ones(5), async_op=True)
        work.wait()
        group = dist.group.WORLD
        group.abort()
        with pytest.raises((dist.DistBackendError, RuntimeError)):
            dist.all_reduce(torch.ones(5), async_op=True).wait()


def endless(meeting: Meeting) -> None:
    """Until a peer dies: then an error that names the collective and the program, long before the time-out."""
    with meeting.job():
        dist.all_reduce(torch.ones(100))
        (meeting.folder.parent / f"{meeting.rank}.ready").touch()
        with pytest.raises(dist.DistBackendError, match="allreduce of 400 bytes by program"):
            _add_for_ever()


def _add_for_ever() -> None:
    while True:
        dist.all_reduce(torch.ones(100))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        strict_mode,
        tables_that_differ,
        table_that_a_rank_cannot_read,
        report_at_the_end,
        stalled_peer,
        abort_ends_threads,
        endless,
    )
}
