"""Scenarios of several groups: new groups, meshes, DTensor, and groups used by several threads."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from tests.live.job.torch.meeting import Meeting, calls_by_reason, program_calls


def mesh_of_two_by_two(meeting: Meeting) -> None:
    """The table has programs for the rows and the columns."""
    with meeting.job():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        for name, others in (("data", meeting.rank ^ 2), ("tensor", meeting.rank ^ 1)):
            tensor = torch.full((9,), float(meeting.rank))
            dist.all_reduce(tensor, group=mesh.get_group(name))
            assert tensor.eq(meeting.rank + others).all()
        assert program_calls() == {"allreduce": 2}


def group_without_programs(meeting: Meeting) -> None:
    with meeting.job():
        group = dist.new_group([0, 3])
        if meeting.rank in (0, 3):
            tensor = torch.ones(5)
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(2).all()
            assert calls_by_reason("group not in the table") == {"allreduce": 1}
        dist.barrier()


def groups_at_once(meeting: Meeting) -> None:
    """Threads of a rank use a group each, with calls of all of them under way at the same time."""

    def use(group: dist.ProcessGroup, seed: int) -> None:
        ranks = dist.get_process_group_ranks(group)
        tensors = [torch.full((size * seed,), float(meeting.rank)) for size in range(1, 40)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[::2]]
        for tensor in tensors[1::2]:
            dist.all_reduce(tensor, group=group)
        assert all(work.wait() for work in works)
        assert all(tensor.eq(sum(ranks)).all() for tensor in tensors)

    with meeting.job():
        groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
        mine = [group for group in groups if group != dist.GroupMember.NON_GROUP_MEMBER]
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(use, group, seed) for seed, group in enumerate([dist.group.WORLD, *mine], 1)]:
                future.result(60)
        dist.barrier()


def distributed_tensors(meeting: Meeting) -> None:
    with meeting.job():
        mesh = init_device_mesh("cpu", (4,))
        whole = torch.arange(64.0).reshape(8, 8)
        left = distribute_tensor(whole, mesh, [Shard(1)])
        right = distribute_tensor(whole, mesh, [Shard(0)])
        product = left @ right
        assert product.placements == (Partial(),)
        assert torch.equal(product.full_tensor(), whole @ whole)
        assert torch.equal(product.redistribute(mesh, [Shard(0)]).full_tensor(), whole @ whole)
        assert torch.equal(left.redistribute(mesh, [Replicate()]).to_local(), whole)
        calls = program_calls()
        assert calls.keys() >= {"allreduce", "reduce_scatter", "allgather"}, calls
