"""Scenarios of tables that hold plans: on processors that stand in for GPUs, and where there are none."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from chorale.job import report
from chorale.job.table.verification import table_program
from chorale.synth.targets.mscclpp_text import MscclppJson
from tests.live.job.torch.meeting import Meeting, called, fallback_calls, program_calls
from tests.live.job.torch.tables import program_for, table_of, written
from tests.unit.synth.lowering.programs import lowered

LARGEST = 1 << 16


def _table(meeting: Meeting) -> str:
    """Write a table of plans for four ranks and for pairs of them, with a program beside; return where it is."""
    made = [
        (None, "allreduce", "complete:4", {"protocol": "LL", "fuse": True}),
        (None, "allgather", "complete:4", {"in_place": False}),
        (None, "reduce_scatter", "ring:4", {"reads": True}),
        ((0, 1), "allreduce", "complete:2", {}),
        ((2, 3), "allreduce", "complete:2", {}),
    ]
    chosen = []
    for group, collective, spec, options in made:
        text = MscclppJson().emit(lowered(spec, collective, "mscclpp-json", **options)).encode()
        chosen.append((table_program(text, "mscclpp-json", "bfb", {}), group, 0, LARGEST))
    chosen.append((program_for("broadcast", 0), None, 0, LARGEST))
    meeting.folder.mkdir(parents=True, exist_ok=True)
    return str(written(table_of("complete:4", 4, chosen), meeting.folder / f"{meeting.rank}.table"))


def plans_on_stand_ins(meeting: Meeting) -> None:
    """Every collective of the table, types and operations, a group, sizes without room; calls and fall-backs count."""
    rank = meeting.rank
    with meeting.job(CHORALE_TABLE=_table(meeting), CHORALE_TRANSPORT="stand-in", CHORALE_PLAN_BYTES="4096"):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            tensor = called(dist.all_reduce, (torch.arange(100) % 7 + rank).to(dtype))
            assert torch.equal(tensor, (torch.arange(100) % 7 * 4 + 6).to(dtype))
        tensor = called(dist.all_reduce, torch.full((33,), float(rank)), dist.ReduceOp.MAX, async_op=True)
        assert (tensor == 3).all()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert (tensor == 3).all()
        whole = called(dist.all_gather_into_tensor, torch.empty(40), torch.full((10,), float(rank)))
        assert torch.equal(whole, torch.arange(4.0).repeat_interleave(10))
        shard = called(dist.reduce_scatter_tensor, torch.empty(10), torch.arange(40.0))
        assert torch.equal(shard, torch.arange(40.0)[10 * rank : 10 * rank + 10] * 4)
        assert {each["by"] for each in report()["programs"]} == {"CPUs that stand in for GPUs"}
        assert report()["deterministic"]
        assert program_calls() == {"allreduce": 5, "allgather": 1, "reduce_scatter": 1}
        shared = dist.group.WORLD.plan_tensor(64, torch.float32)
        shared.fill_(rank)
        dist.all_reduce(shared)
        assert (shared == 6).all()
        dist.broadcast(tensor, 0)  # a program beside the plans
        assert {each["by"] for each in report()["programs"] if each["collective"] == "broadcast"} == {"engine"}
        assert (called(dist.all_reduce, torch.ones(2048)) == 4).all()
        assert fallback_calls() == {("allreduce", "larger than the memory that plans have"): 1}
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor = called(dist.all_reduce, torch.full((5,), float(rank)), group=pairs[rank // 2])
        assert (tensor == (1 if rank < 2 else 5)).all()
        assert program_calls()["allreduce"] == 7


def plans_without_gpus(meeting: Meeting) -> None:
    """The library serves what plans would, and the report says why."""
    with meeting.job(CHORALE_TABLE=_table(meeting)):
        assert (called(dist.all_reduce, dist.group.WORLD.plan_tensor(100, torch.float32) + 1) == 4).all()
        reason = "plans need tensors on GPUs that reach each other's memory"
        assert fallback_calls() == {("allreduce", reason): 1}
        assert not program_calls()


def plans_of_a_stalled_peer(meeting: Meeting) -> None:
    """Who waits says for whom within the limit, and the group runs no more programs."""

    limit = timedelta(seconds=8)
    with meeting.job(timeout=limit, CHORALE_TABLE=_table(meeting), CHORALE_TRANSPORT="stand-in"):
        tensor = torch.ones(100)
        dist.all_reduce(tensor)
        if meeting.rank == 2:
            time.sleep(18)
            return
        begin = time.monotonic()
        for _ in range(2):
            with pytest.raises(
                dist.DistBackendError, match=r"block \d+ step \d+ waits for packets of rank 2.*can run no more programs"
            ):
                dist.all_reduce(torch.ones(100))
        assert time.monotonic() - begin < 16
