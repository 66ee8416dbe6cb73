"""Scenarios of calls that the library serves, where Gloo by itself gives wrong results or none."""

import torch
import torch.distributed as dist

from tests.live.job.torch.meeting import Meeting, fallback_calls, program_calls

GAP = 77.0


def tensors_with_gaps(meeting: Meeting) -> None:
    """Every second element of a tensor on odd ranks; the others have them side by side."""
    rank = meeting.rank
    with meeting.job(CHORALE_TABLE=""):
        for is_async in (False, True):
            own = torch.arange(8.0) + rank
            for_all = _with_gaps(own, rank)
            _done(dist.all_reduce(for_all, async_op=is_async))
            _expect(for_all, torch.arange(8.0) * 4 + 6)
            from_first = _with_gaps(own, rank)
            _done(dist.broadcast(from_first, 0, async_op=is_async))
            _expect(from_first, torch.arange(8.0))
            at_first = _with_gaps(own, rank)
            _done(dist.reduce(at_first, 1, async_op=is_async))
            if rank % 2:
                _expect(at_first, torch.arange(8.0) * 4 + 6 if rank == 1 else own)
            shard = _with_gaps(torch.zeros(2), rank)
            _done(dist.reduce_scatter_tensor(shard, _with_gaps(own, rank), async_op=is_async))
            _expect(shard, torch.arange(8.0)[2 * rank : 2 * rank + 2] * 4 + 6)
            shard = _with_gaps(torch.zeros(2), rank)
            _done(dist.reduce_scatter(shard, list(_with_gaps(own, rank).chunk(4)), async_op=is_async))
            _expect(shard, torch.arange(8.0)[2 * rank : 2 * rank + 2] * 4 + 6)
            parts = _with_gaps(torch.zeros(8), rank)
            _done(dist.all_to_all_single(parts, _with_gaps(own, rank), async_op=is_async))
            _expect(parts, torch.cat([torch.arange(8.0)[2 * rank : 2 * rank + 2] + each for each in range(4)]))
            part = _with_gaps(torch.zeros(2), rank)
            _done(dist.scatter(part, list(own.chunk(4)) if rank == 2 else None, 2, async_op=is_async))
            _expect(part, torch.arange(8.0)[2 * rank : 2 * rank + 2] + 2)
        future = dist.all_reduce(for_all, async_op=True).get_future()
        assert torch.equal(future.value()[0] if future.done() else future.wait()[0], torch.arange(8.0) * 16 + 24)
        assert not program_calls()


def averages_of_integers(meeting: Meeting) -> None:
    """Sums that are divided and cut off, as programs have them; negative ones towards 0."""
    rank = meeting.rank
    own = torch.tensor([1, -1, 7, -7, 2, 3, 5, -5], dtype=torch.int32) + (rank == 0)
    sums = torch.tensor([1, -1, 7, -7, 2, 3, 5, -5], dtype=torch.int32) * 4 + 1
    wanted = torch.tensor([int(value / 4) for value in sums.tolist()], dtype=torch.int32)
    for table in ({}, {"CHORALE_TABLE": ""}):
        with meeting.job(**table):
            for is_async in (False, True):
                averaged = own.clone()
                _done(dist.all_reduce(averaged, dist.ReduceOp.AVG, async_op=is_async))
                assert torch.equal(averaged, wanted), (table, averaged)
                averaged = own.clone()
                _done(dist.reduce(averaged, 2, dist.ReduceOp.AVG, async_op=is_async))
                assert rank != 2 or torch.equal(averaged, wanted), (table, averaged)
                shard = torch.zeros(2, dtype=torch.int32)
                _done(dist.reduce_scatter_tensor(shard, own, dist.ReduceOp.AVG, async_op=is_async))
                assert torch.equal(shard, wanted.chunk(4)[rank]), (table, shard)
            with dist._coalescing_manager():
                several = [own.clone(), own.clone()]
                for tensor in several:
                    dist.all_reduce(tensor, dist.ReduceOp.AVG)
            assert all(torch.equal(tensor, wanted) for tensor in several)
            assert bool(fallback_calls()) == bool(table)


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


def _done(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
