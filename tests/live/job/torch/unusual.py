"""Scenarios of what few jobs do: sparse gradients, sums with a factor, uneven sizes, splits, many groups, mistakes."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from chorale.job import report
from chorale.job.torch.ddp_hook import ProgramHook, average_gradients
from tests.live.job.torch.meeting import Meeting, called, calls_by_reason, fallback_calls, program_calls
from tests.live.job.torch.tables import library_table, written

TABLES: tuple[dict[str, str], ...] = ({}, {"CHORALE_TABLE": ""})


def sparse_gradients(meeting: Meeting) -> None:
    """An embedding in DDP, with a table and without, by the backend and by the hook: the gradients that gloo gives."""

    def gradients(hook: bool = False) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Embedding(10, 3, sparse=True), torch.nn.Linear(3, 2))
        parallel = DistributedDataParallel(model)
        if hook:
            with closing(ProgramHook()) as programs:
                parallel.register_comm_hook(programs, average_gradients)
                parallel(torch.tensor([meeting.rank, 5])).square().mean().backward()
        else:
            parallel(torch.tensor([meeting.rank, 5])).square().mean().backward()
        return [parameter.grad.to_dense() for parameter in model.parameters()]

    with meeting.job("gloo"):
        expected = gradients()
    record = str(meeting.folder / "record")
    for backend, variables in (
        ("chorale", {}), ("chorale", {"CHORALE_TABLE": ""}), ("chorale", {"CHORALE_RECORD": record}), ("gloo", {}),
    ):  # fmt: skip
        with meeting.job(backend, **variables):  # type: ignore[arg-type]
            for gradient, wanted in zip(gradients(hook=backend == "gloo"), expected, strict=True):
                torch.testing.assert_close(gradient, wanted)
            assert any(collective == "allreduce" for collective, _ in fallback_calls())
    with meeting.job():
        dist.all_reduce(torch.ones(1024))  # as large as the values of the next one
        assert program_calls()
        sparse = torch.eye(1024).to_sparse()
        dist.all_reduce(sparse)
        assert torch.equal(sparse.to_dense(), dist.get_world_size() * torch.eye(1024))
        with pytest.raises(NotImplementedError, match="SparseCPU"):  # as gloo says; the size of these is in two tensors
            dist.all_gather([torch.eye(2).to_sparse()] * 4, torch.eye(2).to_sparse())


def sums_with_a_factor(meeting: Meeting) -> None:
    """PREMUL_SUM multiplies what each rank gives, by programs and by the library, and changes no input."""
    rank, halves = meeting.rank, dist._make_nccl_premul_sum(0.5)
    given = torch.arange(8.0) + rank
    wanted = torch.arange(8.0) * 2 + 3
    for variables in TABLES:
        with meeting.job(**variables):  # type: ignore[arg-type]
            for factor in (halves, dist._make_nccl_premul_sum(torch.tensor([0.5]))):
                assert torch.equal(called(dist.all_reduce, given, factor), wanted)
            assert torch.equal(called(dist.reduce, given, 2, halves), wanted if rank == 2 else given)
            source = given.clone()
            shard = called(dist.reduce_scatter_tensor, torch.empty(2), source, halves)
            assert torch.equal(shard, wanted.chunk(4)[rank])
            dist.reduce_scatter(shard.zero_(), list(source.chunk(4)), halves)
            assert torch.equal(shard, wanted.chunk(4)[rank])
            assert torch.equal(source, given)
            assert bool(program_calls()) == (not variables)


def fsdp2_with_a_factor(meeting: Meeting) -> None:
    def gradient(backend: str) -> torch.Tensor:
        with meeting.job(backend):
            torch.manual_seed(7)
            model = fully_shard(torch.nn.Linear(8, 4))
            if backend == "chorale":
                model.set_gradient_divide_factor(2.0)
            model(torch.full((2, 8), meeting.rank + 1.0)).sum().backward()
            return model.weight.grad.full_tensor()

    torch.testing.assert_close(gradient("chorale"), gradient("gloo") * 2)  # gloo divides by the four ranks


def sizes_that_differ(meeting: Meeting) -> None:
    """Lists of tensors of other sizes for each rank, and splits: by programs where the table has them, and counted."""
    rank = meeting.rank
    for variables in TABLES:
        with meeting.job(**variables):  # type: ignore[arg-type]
            for sizes in ([3, 1, 4, 2], [0, 5, 0, 1], [1, 1, 1, 200]):
                parts = [torch.full((size,), -1.0) for size in sizes]
                dist.all_gather(parts, torch.full((sizes[rank],), float(rank)))
                assert all(part.eq(at).all() for at, part in enumerate(parts)), parts
            flags = [torch.zeros(at + 1, dtype=torch.bool) for at in range(4)]
            dist.all_gather(flags, torch.ones(rank + 1, dtype=torch.bool))
            assert all(flag.all() for flag in flags)
            for of_all in ([[1, 2, 3, 4]] * 4, [[2] * 4] * 4, [[0, 0, 9, 0], [1, 0, 0, 0], [0] * 4, [3, 3, 3, 3]]):
                _all_to_all(rank, of_all)
            counts = calls_by_reason("vector that ranks do not divide into equal shards")
            if variables:
                assert (program_calls(), counts) == ({}, {"allgather": 4, "alltoall": 6})
            else:  # others would be padded to more than twice their bytes
                assert program_calls() == {"allgather": 2, "alltoall": 4}
                assert counts == {"allgather": 2, "alltoall": 2}
                exchanges = report()["exchanges"]
                assert (exchanges["calls"], exchanges["seconds"] < 300) == (6, True)


def sizes_over_rails(meeting: Meeting) -> None:
    """Sizes that one NIC would send alone are planned over both NICs of the box; others are the library's."""
    rank, table = meeting.rank, replace(library_table(4), topology={"spec": "railclos:2,2,0.01,1"})
    hot, even, near = [[5, 0, 9000, 7000], [3, 1, 0, 2], [0] * 4, [0, 8000, 1, 0]], [[2] * 4] * 4, [[0, 9000, 0, 0]] * 4
    meeting.folder.mkdir(parents=True, exist_ok=True)
    with meeting.job(CHORALE_TABLE=str(written(table, meeting.folder / f"{rank}.table"))):
        for of_all in (hot, even, near, [[0] * 4] * 4):
            _all_to_all(rank, of_all)
        assert program_calls() == {"alltoall": 2}
        assert calls_by_reason("vector that ranks do not divide into equal shards") == {"alltoall": 6}
        assert report()["exchanges"]["calls"] == 8
        output = torch.zeros(2 * sum(row[rank] for row in hot), dtype=torch.int64)[::2]
        work = dist.all_to_all_single(
            output, torch.arange(sum(hot[rank])), [row[rank] for row in hot], hot[rank], async_op=True
        )
        work.wait()
        assert program_calls() == {"alltoall": 3}
        starts = [sum(row[:rank]) for row in hot]
        wanted = [torch.arange(start, start + row[rank]) for start, row in zip(starts, hot, strict=True)]
        assert torch.equal(output, torch.cat(wanted))


def _all_to_all(rank: int, sizes: list[list[int]]) -> None:
    source = torch.cat([torch.full((size, 2), 10.0 * rank + to) for to, size in enumerate(sizes[rank])])
    receives = [sizes[sender][rank] for sender in range(4)]
    output = torch.full((sum(receives), 2), -1.0)
    dist.all_to_all_single(output, source, receives, sizes[rank])
    wanted = torch.cat([torch.full((size, 2), 10.0 * sender + rank) for sender, size in enumerate(receives)])
    assert torch.equal(output, wanted), (output, wanted)
    outputs = [torch.empty(size, 2) for size in receives]
    dist.all_to_all(outputs, list(source.split(sizes[rank])))
    assert torch.equal(torch.cat(outputs), wanted)


def splits_and_monitored_barriers(meeting: Meeting) -> None:
    with meeting.job():
        half = dist.split_group(None, [[0, 1], [2, 3]])
        assert called(dist.all_reduce, torch.ones(3), group=half).eq(2).all()
        assert program_calls() == {"allreduce": 1}
        assert (dist.split_group(None, [[1, 2]]) is None) == (meeting.rank in (0, 3))
        for wrong in ([[0, 1], [1, 2]], [[0, 4]], [[-1]], None):
            with pytest.raises(ValueError, match="lists of ranks below 4, each rank in at most one of them"):
                dist.split_group(None, wrong)
        dist.monitored_barrier(timeout=timedelta(seconds=20))


def many_groups(meeting: Meeting) -> None:
    """25 groups of all ranks hold no more descriptors than gloo's, but for the device that all of them share."""
    counts = {}
    for backend in ("gloo", "chorale"):
        before = _descriptors()
        with meeting.job(backend):
            groups = [dist.new_group(range(4)) for _ in range(25)]
            for group in groups:
                assert called(dist.all_reduce, torch.ones(3), group=group).eq(4).all()
            counts[backend] = _descriptors() - before
    assert counts["chorale"] <= counts["gloo"] + 4, counts


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mistakes_in_one_call(meeting: Meeting) -> None:
    with meeting.job():
        same = torch.ones(1).expand(4)
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_reduce(same)
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_gather_into_tensor(torch.ones(1).expand(8), torch.ones(2))
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_gather([torch.ones(1).expand(2)] * 4, torch.ones(2), async_op=True).wait()
        assert called(dist.all_reduce, torch.ones(4)).eq(4).all()


def detailed_debugging(meeting: Meeting) -> None:
    path = meeting.folder / "report.json"
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with meeting.job(CHORALE_REPORT=str(path)):
            assert called(dist.all_reduce, torch.ones(3)).eq(4).all()
            assert program_calls() == {"allreduce": 1}
        assert meeting.rank or path.exists()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


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
