"""Collectives on a GPU over types of elements, sizes, strides and ways to call, told by the bits of what they give."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from tests.live.job.shared_gpu import RANKS

PLAIN = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8)
SMALL_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
COUNTS = (1, 5, 1000, 65537, 262144)
FULL = (torch.float32, torch.bfloat16)
"""Types for which all counts are tried."""


def types(rank: int, device: str) -> Mapping[str, str]:
    """Return the digest of what each call gives on this rank, by its name."""
    chosen = [(dtype, count) for dtype in PLAIN for count in (COUNTS if dtype in FULL else COUNTS[:3])]
    chosen += [(dtype, 1000) for dtype in SMALL_FLOATS if device == "cuda"]
    said = {}
    for dtype, count in chosen:
        for is_async in (False, True):
            for name, result in _results(rank, device, dtype, count, is_async):
                said[f"{name} of {count} {dtype}{', asynchronous' * is_async}"] = _digest(result)
    return said


def _results(rank: int, device: str, dtype: Any, count: int, is_async: bool) -> Iterator[tuple[str, Any]]:
    """Yield what each collective gives; what is added are small integers, so that the order does not matter."""
    adds = dtype not in SMALL_FLOATS  # programs do not, and NCCL's own sums round
    whole = ((torch.arange(RANKS * count) % 3 + rank) % 8).to(device).to(dtype)
    mine = whole[:count]
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG) if adds else ():
        if dtype.is_floating_point or operation is not dist.ReduceOp.AVG:
            result = mine.clone()
            yield f"allreduce {operation}", _done(dist.all_reduce(result, operation, async_op=is_async), result)
    result = mine.clone()
    yield "broadcast", _done(dist.broadcast(result, 2, async_op=is_async), result)
    if adds:
        result = mine.clone()
        work = dist.reduce(result, 0, async_op=is_async)
        yield "reduce", _done(work, result) if rank == 0 else _done(work, mine)
        result = torch.empty_like(mine)
        yield "reduce_scatter", _done(dist.reduce_scatter_tensor(result, whole.clone(), async_op=is_async), result)
    result = torch.empty_like(whole)
    yield "allgather", _done(dist.all_gather_into_tensor(result, mine.clone(), async_op=is_async), result)
    result = torch.empty_like(whole)
    yield "alltoall", _done(dist.all_to_all_single(result, whole.clone(), async_op=is_async), result)


def _done(work: Any, result: Any) -> Any:
    if work is not None:
        work.wait()
    return result


def _gaps(tensor: Any) -> Any:
    """Return the elements of `tensor` with others between them, as NCCL and torch take them only for programs."""
    return torch.stack([tensor, tensor]).t().contiguous()[:, 0]


def gaps(rank: int, device: str) -> list[str]:
    """Call collectives on tensors with gaps, in place and from; return which gave something else than without gaps."""
    wrong = []
    for dtype in FULL:
        for count in COUNTS[:4]:
            dense = (torch.arange(count) % 5 + rank).to(device).to(dtype)
            strided = _gaps(dense)
            assert count == 1 or not strided.is_contiguous()
            for collective in (dist.all_reduce, lambda tensor: dist.broadcast(tensor, 2)):
                collective(dense)
                collective(strided)
                if not torch.equal(dense, strided):
                    wrong.append(f"{count} {dtype}")
    return wrong


def _digest(tensor: Any) -> str:
    values = tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(values).hexdigest()[:12]
