"""Scenarios of jobs whose calls are recorded."""

import torch
import torch.distributed as dist

from chorale.job.record import VARIABLE, CallKey, recorder_of
from tests.live.job.torch.meeting import Meeting, program_calls


def recorded_calls(meeting: Meeting) -> None:
    """Without a table, so that Gloo serves all of them; its reduce-scatter has no future."""
    calls = _recorded(meeting, "calls.json", CHORALE_TABLE="")
    if meeting.rank == 0:
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


def recorded_programs(meeting: Meeting) -> None:
    """With the table: the same calls of the same sizes, most of them by programs."""
    served = _recorded(meeting, "programs.json")
    by_programs = sum(program_calls().values())
    by_gloo = _recorded(meeting, "gloo.json", CHORALE_TABLE="")
    assert not program_calls()
    if meeting.rank == 0:
        assert by_programs > sum(served.values()) / 2
        assert served == by_gloo


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
