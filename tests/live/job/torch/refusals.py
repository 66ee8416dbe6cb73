"""Scenarios of what goes wrong, and of what a job says at its end."""

import io
import json
import os
import time
from contextlib import redirect_stderr
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from chorale.job import report
from chorale.job.record import VARIABLE, CallKey, recorder_of
from chorale.synth.errors import InvalidInput, Unavailable
from tests.live.job.torch.meeting import Meeting, calls_by_reason, program_calls


def strict_mode(meeting: Meeting) -> None:
    with meeting.job(CHORALE_STRICT="1"):
        dist.all_reduce(torch.ones(4))
        refused = r"allreduce of 4194304 bytes of float32: size not in the table; .*CHORALE_STRICT"
        with pytest.raises(InvalidInput, match=refused):
            dist.all_reduce(torch.ones(1 << 20))
        with pytest.raises(InvalidInput, match="allreduce of 4 bytes of bool: element type not in the table"):
            dist.all_reduce(torch.ones(4, dtype=torch.bool), dist.ReduceOp.MAX)
        dist.barrier()
    with meeting.job(CHORALE_STRICT="1", CHORALE_TABLE=""):
        with pytest.raises(InvalidInput, match="allreduce of 16 bytes of float32: no table"):
            dist.all_reduce(torch.ones(4))
        meeting.wait_for_all()


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
    path = meeting.folder / "report.json"
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
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.group.WORLD.abort()
        with pytest.raises((dist.DistBackendError, RuntimeError)):
            dist.all_reduce(torch.ones(5), async_op=True).wait()


def overhead_of_the_library(meeting: Meeting) -> None:
    """A call that the library serves takes the caller's processor at most ten times as long as without chorale."""
    with _alone(meeting).job(CHORALE_TABLE=os.environ["LIBRARY_TABLE"]):
        groups = {name: dist.new_group([0], backend=name) for name in ("gloo", "chorale")}
        tensor, least = torch.ones(16), dict.fromkeys(groups, float("inf"))
        for _ in range(200):
            for name, group in groups.items():
                start = time.thread_time()
                for _ in range(4):
                    dist.all_reduce(tensor, group=group)
                least[name] = min(least[name], time.thread_time() - start)
        assert calls_by_reason("group not in the table") == {"allreduce": 800}
        assert least["chorale"] < 10 * least["gloo"], least


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


def exit_without_destroy(meeting: Meeting) -> None:
    """The process ends with a group that is in use and not shut down."""
    store = dist.FileStore(str(meeting.folder) + "-store", meeting.ranks)
    dist.init_process_group("chorale", store=store, rank=meeting.rank, world_size=meeting.ranks)
    dist.all_reduce(torch.ones(5), async_op=True).wait()


def rank_that_does_not_come(meeting: Meeting) -> None:
    if meeting.rank != 2:
        with (
            pytest.raises(Unavailable, match=r"within 1.0 s.* no message from ranks 2 of the group"),
            meeting.job(timeout=timedelta(seconds=1)),
        ):
            pass
    with _alone(meeting).job("gloo"):
        pass  # torch numbers groups since the last that was destroyed; here the ranks would count from different ones


def _alone(meeting: Meeting) -> Meeting:
    """Return how this rank meets nobody else."""
    return replace(meeting, folder=meeting.folder / str(meeting.rank), rank=0, ranks=1)


def recorded_calls(meeting: Meeting) -> None:
    """The same calls of the same sizes, most of them by programs or all by Gloo, whose reduce-scatter has no future."""
    served = _recorded(meeting, "programs.json")
    by_programs = sum(program_calls().values())
    calls = _recorded(meeting, "gloo.json", CHORALE_TABLE="")
    assert not program_calls()
    if meeting.rank == 0:
        assert by_programs > sum(served.values()) / 2
        assert served == calls
        assert calls == {
            CallKey("allreduce", "float32", None, None, 400): 4,
            CallKey("allreduce", "float32", None, None, 20): 1,
            CallKey("reduce", "float32", None, 2, 400): 1,
            CallKey("alltoall", "float32", None, None, 160): 1,
            CallKey("allgather", "int32", None, None, 160): 2,
            CallKey("reduce_scatter", "float64", None, None, 320): 2,
            CallKey("broadcast", "float32", None, 1, 400): 1,
            CallKey("allreduce", "float32", (0, 2), None, 400): 1,
        }


def _recorded(meeting: Meeting, name: str, **environment: str) -> dict[CallKey, int]:
    file = str(meeting.folder / name)
    with meeting.job(**{VARIABLE: file, **environment}):
        tensor = torch.ones(100)
        for work in [dist.all_reduce(tensor, async_op=True) for _ in range(2)]:
            work.wait()
        dist.all_reduce(tensor)
        parts = [torch.empty(10, dtype=torch.int32) for _ in range(4)]
        dist.all_gather(parts, torch.ones(10, dtype=torch.int32))
        dist.all_gather_into_tensor(torch.empty(40, dtype=torch.int32), parts[0])
        shard, whole = torch.empty(10, dtype=torch.float64), torch.ones(40, dtype=torch.float64)
        dist.reduce_scatter_tensor(shard, whole)
        dist.reduce_scatter_tensor(shard, whole, async_op=True).wait()
        assert torch.equal(shard, torch.full((10,), 4.0, dtype=torch.float64))
        dist.broadcast(tensor, 1)
        dist.reduce(tensor, 2)
        dist.all_to_all_single(torch.empty(40), torch.ones(40))
        with dist._coalescing_manager():
            for each in (tensor, torch.ones(5)):
                dist.all_reduce(each)
        some = dist.new_group([0, 2])
        if meeting.rank in (0, 2):
            dist.all_reduce(tensor, group=some)
    recorder = recorder_of(meeting.rank, 4, {VARIABLE: file})
    if recorder is None:
        return {}
    record = recorder.record()
    assert all(count.seconds > 0 for count in record.calls.values())
    return {key: count.calls for key, count in record.calls.items()}
