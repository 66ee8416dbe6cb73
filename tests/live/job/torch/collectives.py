"""Scenarios of single calls: every collective, type and operation; forms, layouts and asynchronous work."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from chorale.job.torch.transport import MOVED_DTYPES
from tests.live.job.torch.meeting import Meeting, called, calls_by_reason, fallback_calls, program_calls

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")
OPERATIONS = {"SUM": torch.sum, "MIN": torch.amin, "MAX": torch.amax, "PRODUCT": torch.prod}


def every_type_and_operation(meeting: Meeting) -> None:
    with meeting.job():
        for name in DTYPES:
            dtype = getattr(torch, name)
            of_all = torch.stack([(torch.arange(37) % 3 + rank % 2).to(dtype) for rank in range(4)])
            for operation, reference in OPERATIONS.items():
                tensor = called(dist.all_reduce, of_all[meeting.rank], getattr(dist.ReduceOp, operation))
                assert torch.equal(tensor, reference(of_all, 0).to(dtype)), (name, operation, tensor)
            average = torch.div(of_all.sum(0), 4, rounding_mode=None if dtype.is_floating_point else "trunc").to(dtype)
            assert torch.equal(called(dist.all_reduce, of_all[meeting.rank], dist.ReduceOp.AVG), average), name
        assert program_calls() == {"allreduce": 5 * len(DTYPES)}
        assert not fallback_calls()


def every_collective(meeting: Meeting) -> None:
    rank = meeting.rank
    with meeting.job():
        for count in (1, 5, 1003):
            of_all = torch.stack([torch.arange(count * 4.0) + 100 * each for each in range(4)])
            whole = torch.empty(4 * count)
            dist.all_gather_into_tensor(whole, of_all[rank, :count].clone())
            assert torch.equal(whole, of_all[:, :count].reshape(-1))
            parts = [torch.empty(count) for _ in range(4)]
            dist.all_gather(parts, of_all[rank, :count].clone())
            assert torch.equal(torch.cat(parts), whole)
            shard = torch.empty(count)
            dist.reduce_scatter_tensor(shard, of_all[rank].clone())
            assert torch.equal(shard, of_all.sum(0).chunk(4)[rank])
            dist.reduce_scatter(shard.zero_(), list(of_all[rank].clone().chunk(4)))
            assert torch.equal(shard, of_all.sum(0).chunk(4)[rank])
            for root in (0, 2):
                assert torch.equal(called(dist.broadcast, of_all[rank], root), of_all[root])
                reduced = called(dist.reduce, of_all[rank], root)
                assert torch.equal(reduced, of_all.sum(0) if rank == root else of_all[rank])
            received = called(dist.all_to_all_single, torch.empty(4 * count), of_all[rank].clone())
            assert torch.equal(received, of_all.view(4, 4, count)[:, rank].reshape(-1))
        expected = {"allgather": 6, "reduce_scatter": 6, "broadcast": 6, "reduce": 6, "alltoall": 3}
        assert program_calls() == expected, program_calls()
        assert not fallback_calls()


def strides_that_differ_by_rank(meeting: Meeting) -> None:
    """Some ranks give tensors whose elements do not lie side by side; all of them run the program."""
    with meeting.job():
        values = torch.arange(24.0).reshape(4, 6)
        tensor = values.t().contiguous().t() if meeting.rank % 2 else values.clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, values * 4)
        output = torch.zeros(2, 16)[:, ::2] if meeting.rank == 1 else torch.zeros(2, 8)
        dist.all_gather_into_tensor(output, torch.full((4,), float(meeting.rank)))
        assert torch.equal(output, torch.arange(4.0).repeat_interleave(4).reshape(2, 8))
        parts = [torch.zeros(3, 2).t() for _ in range(4)]
        dist.all_gather(parts, torch.arange(6.0).reshape(2, 3))
        assert all(torch.equal(part, torch.arange(6.0).reshape(2, 3)) for part in parts)
        assert program_calls() == {"allreduce": 1, "allgather": 2}


def what_programs_do_not_serve(meeting: Meeting) -> None:
    rank = meeting.rank
    with meeting.job():
        flags = torch.tensor([rank == 1, False])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        assert flags.tolist() == [True, False]
        with pytest.raises(RuntimeError, match="output type Bool"):  # the library's word: no average is a truth value
            dist.all_reduce(flags, dist.ReduceOp.AVG)
        assert called(dist.all_reduce, torch.tensor([1 << rank]), dist.ReduceOp.BOR).tolist() == [15]
        assert called(dist.all_reduce, torch.ones((1 << 18) + 1)).eq(4).all()
        assert called(dist.broadcast, torch.tensor([float(rank)]), 1).item() == 1
        received = torch.empty(4 * rank + 6)
        sizes = [rank + each for each in range(4)]
        dist.all_to_all_single(received, torch.full((4 * rank + 6,), float(rank)), sizes, sizes)
        assert torch.equal(received, torch.cat([torch.full((size,), float(at)) for at, size in enumerate(sizes)]))
        objects: list[object] = [None] * 4
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": each} for each in range(4)]
        _messages(rank)
        assert calls_by_reason("operation that no program supports") == {"allreduce": 1}
        assert calls_by_reason("element type not in the table") == {"allreduce": 2}
        assert calls_by_reason("size not in the table") == {"allreduce": 1}
        assert calls_by_reason("root not in the table") == {"broadcast": 1}
        assert program_calls()["alltoall"] == 1  # its shards are padded


def _messages(rank: int) -> None:
    tensor = torch.full((3,), float(rank))
    dist.send(tensor, rank ^ 1) if rank % 2 else dist.recv(tensor, rank ^ 1)
    assert tensor.tolist() == [rank | 1] * 3
    gathered = [torch.empty(1) for _ in range(4)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), gathered)
    assert gathered is None or [each.item() for each in gathered] == [0, 1, 2, 3]
    dist.scatter(tensor, [torch.full((3,), 7.0)] * 4 if rank == 0 else None)
    assert tensor.tolist() == [7] * 3
    dist.barrier()


def types_that_are_moved(meeting: Meeting) -> None:
    """What adds nothing moves bytes, whatever they mean."""
    rank = meeting.rank
    with meeting.job():
        for dtype in sorted(MOVED_DTYPES, key=str):
            values = 2 if dtype is torch.bool else 256
            given = [((torch.arange(64) * 3 + other) % values).to(torch.uint8).view(dtype) for other in range(4)]
            gathered = torch.empty(4 * given[0].numel(), dtype=dtype)
            dist.all_gather_into_tensor(gathered, given[rank])
            assert torch.equal(_bytes(gathered), torch.cat([_bytes(part) for part in given]))
            parts = [torch.empty_like(part) for part in given]
            dist.all_gather(parts, given[rank])
            assert all(torch.equal(_bytes(part), _bytes(right)) for part, right in zip(parts, given, strict=True))
            assert torch.equal(_bytes(called(dist.broadcast, given[rank], 2)), _bytes(given[2]))
            received = called(dist.all_to_all_single, given[0], given[rank])
            shards = [_bytes(part).view(4, -1)[rank] for part in given]
            assert torch.equal(_bytes(received), torch.cat(shards))
        assert program_calls() == dict.fromkeys(("allgather", "alltoall", "broadcast"), len(MOVED_DTYPES)) | {
            "allgather": 2 * len(MOVED_DTYPES)
        }
        assert not fallback_calls()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def asynchronous_work(meeting: Meeting) -> None:
    """What a future calls when it is complete may use the group again, and wait for it, as PowerSGD's hook does."""
    with meeting.job():
        tensors = [torch.full((size,), float(size)) for size in range(1, 60)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        doubled = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
        for size, (tensor, work, future) in enumerate(zip(tensors, works, doubled, strict=True), 1):
            assert work.wait()
            assert work.is_completed()
            assert tensor.eq(4 * size).all()
            assert future.wait().eq(8 * size).all()
        assert program_calls() == {"allreduce": 59}
        first, second, third = torch.ones(3), torch.ones(4), torch.ones(5)

        def go_on(_: object) -> torch.Tensor:
            dist.all_reduce(second)
            dist.all_reduce(third, async_op=True).get_future().wait()
            return second

        future = dist.all_reduce(first, async_op=True).get_future().then(go_on)
        assert future.wait().eq(4).all()
        assert third.eq(4).all()
        assert program_calls() == {"allreduce": 59 + 3}


def coalesced_forms(meeting: Meeting) -> None:
    rank, group = meeting.rank, dist.group
    with meeting.job():
        tensors = [torch.full((size,), float(rank)) for size in (3, 300_000, 5)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all(tensor.eq(6).all() for tensor in tensors)
        assert program_calls() == {"allreduce": 2}
        reduced = functional.all_reduce_coalesced([torch.ones(3), torch.ones(4)], "sum", group.WORLD)
        assert all(each.eq(4).all() for each in reduced)
        inputs = [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
        gathered = functional.all_gather_into_tensor_coalesced(inputs, group.WORLD)
        assert [each[:: each.numel() // 4].tolist() for each in gathered] == [[0, 1, 2, 3]] * 2
        shards = functional.reduce_scatter_tensor_coalesced([torch.ones(8), torch.ones(12)], "sum", [0, 0], group.WORLD)
        assert [each.tolist() for each in shards] == [[4] * 2, [4] * 3]
        assert program_calls() == {"allreduce": 4, "allgather": 2, "reduce_scatter": 2}


def functional_and_compiled(meeting: Meeting) -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        shard = functional.reduce_scatter_tensor(total, "sum", 0, dist.group.WORLD)
        return functional.all_gather_tensor(shard + 1, 0, dist.group.WORLD)

    with meeting.job():
        tensor = torch.arange(8.0)
        expected = torch.arange(8.0) * 32 + 1
        assert torch.equal(step(tensor), expected)
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert torch.equal(compiled(tensor), expected)
        assert program_calls() == {"allreduce": 2, "allgather": 2, "reduce_scatter": 2}


GAP = 77.0


def tensors_with_gaps(meeting: Meeting) -> None:
    """Every second element of a tensor on odd ranks; the others have them side by side."""
    rank = meeting.rank
    whole, part = torch.arange(8.0), slice(2 * rank, 2 * rank + 2)
    with meeting.job(CHORALE_TABLE=""):
        for is_async in (False, True):
            own = whole + rank
            given, pieces = _with_gaps(own, rank), list(own.chunk(4)) if rank == 2 else None
            for_all = _with_gaps(own, rank)
            at_first = _with_gaps(own, rank)
            small = [_with_gaps(torch.zeros(2), rank) for _ in range(3)]
            from_first, parts = _with_gaps(own, rank), _with_gaps(torch.zeros(8), rank)
            for work in (
                dist.all_reduce(for_all, async_op=is_async),
                dist.broadcast(from_first, 0, async_op=is_async),
                dist.reduce(at_first, 1, async_op=is_async),
                dist.reduce_scatter_tensor(small[0], given, async_op=is_async),
                dist.reduce_scatter(small[1], list(given.chunk(4)), async_op=is_async),
                dist.all_to_all_single(parts, given, async_op=is_async),
                dist.scatter(small[2], pieces, 2, async_op=is_async),
            ):
                if work is not None:
                    work.wait()
            _expect(for_all, whole * 4 + 6)
            _expect(from_first, whole)
            if rank % 2:
                _expect(at_first, whole * 4 + 6 if rank == 1 else own)
            _expect(small[0], whole[part] * 4 + 6)
            _expect(small[1], whole[part] * 4 + 6)
            _expect(parts, torch.cat([whole[part] + each for each in range(4)]))
            _expect(small[2], whole[part] + 2)
        future = dist.all_reduce(for_all, async_op=True).get_future()
        assert torch.equal(future.value()[0] if future.done() else future.wait()[0], torch.arange(8.0) * 16 + 24)
        assert not program_calls()


def averages_of_integers(meeting: Meeting) -> None:
    """Sums that are divided and cut off, as programs have them; negative ones towards 0."""
    rank = meeting.rank
    own = torch.tensor([1, -1, 7, -7, 2, 3, 5, -5], dtype=torch.int32) + (rank == 0)
    sums = torch.tensor([1, -1, 7, -7, 2, 3, 5, -5], dtype=torch.int32) * 4 + 1
    wanted = torch.tensor([int(value / 4) for value in sums.tolist()], dtype=torch.int32)
    for table in ({}, {"CHORALE_TRANSPORT": "batched"}, {"CHORALE_TABLE": ""}):
        with meeting.job(**table):
            for is_async in (False, True):
                averaged = called(dist.all_reduce, own, dist.ReduceOp.AVG, async_op=is_async)
                assert torch.equal(averaged, wanted), (table, averaged)
                averaged = called(dist.reduce, own, 2, dist.ReduceOp.AVG, async_op=is_async)
                assert rank != 2 or torch.equal(averaged, wanted), (table, averaged)
                shard = called(dist.reduce_scatter_tensor, own[:2], own, dist.ReduceOp.AVG, async_op=is_async)
                assert torch.equal(shard, wanted.chunk(4)[rank]), (table, shard)
            with dist._coalescing_manager():
                several = [own.clone(), own.clone()]
                for tensor in several:
                    dist.all_reduce(tensor, dist.ReduceOp.AVG)
            assert all(torch.equal(tensor, wanted) for tensor in several)
            assert bool(fallback_calls()) == ("CHORALE_TABLE" in table)


def _with_gaps(values: torch.Tensor, rank: int) -> torch.Tensor:
    if rank % 2 == 0:
        return values.clone()
    tensor = torch.full((2 * len(values),), GAP)[::2]
    return tensor.copy_(values)


def _expect(tensor: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(tensor, wanted), tensor
    if not tensor.is_contiguous():
        memory = torch.as_strided(tensor, (2 * len(tensor),), (1,))
        assert memory[1::2].eq(GAP).all(), memory
