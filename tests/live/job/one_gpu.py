"""Four ranks on one device: collectives of all types by programs of a table and by a library, training, times.

`python -m tests.live.job.one_gpu --device cuda` has ranks that share a GPU, see `shared_gpu`. They take turns there, so
that times say how two libraries compare and nothing of links.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.live.job.gpu_training import losses
from tests.live.job.shared_gpu import LIBRARIES, RANKS, on_ranks

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
COUNTS = (1, 7, 1000, 65536)
SIZES_BYTES = (1024, 65536, 1 << 20)
STEPS = 20


def main() -> None:
    """Print what `run` returns, for programs and for the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    device = parser.parse_args().device
    sys.stdout.write(json.dumps([run(device, backend) for backend in ("chorale", LIBRARIES[device])], indent=2) + "\n")


def run(device: str, backend: str) -> dict[str, Any]:
    """Return right and wrong results of all ranks, and of rank 0 losses, times in us by size, programs."""
    ranks = on_ranks(_rank, device, backend)
    if errors := [rank["error"] for rank in ranks if "error" in rank]:
        raise RuntimeError(f"ranks that ended early: {errors}")
    wrong = [f"rank {rank}: {name}" for rank, entry in enumerate(ranks) for name in entry["said"]["wrong"]]
    return ranks[0] | ranks[0]["said"] | {"right": sum(entry["said"]["right"] for entry in ranks), "wrong": wrong}


def _rank(rank: int, device: str) -> dict[str, Any]:
    checks = dict(_checks(rank, device))
    wrong = [name for name, is_right in checks.items() if not is_right]
    said = {"right": len(checks) - len(wrong), "wrong": wrong, "losses": _losses(rank, device)}
    return said | {"times_us": {size_bytes: _time_us(size_bytes, device) for size_bytes in SIZES_BYTES}}


def _checks(rank: int, device: str) -> Iterator[tuple[str, bool]]:
    """Yield what was called, and whether its result is the right one to the bit."""
    for dtype in TYPES:
        for count in COUNTS:
            given = [(torch.arange(count) % 13 + other + 1).to(dtype) for other in range(RANKS)]
            for name, result, expected in _results(rank, given, device):
                yield f"{name} of {count} {dtype}", expected is None or torch.equal(result.cpu(), expected)


def _results(rank: int, given: list[Any], device: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, result and expected result of each collective; none is expected where a rank gets nothing."""
    stacked, count, dtype = torch.stack(given), len(given[0]), given[0].dtype

    def mine() -> Any:
        return given[rank].to(device, copy=True)

    def empty(shards: int) -> Any:
        return torch.empty(shards * count, dtype=dtype, device=device)

    folds: dict[Any, Callable[[Any], Any]] = {
        dist.ReduceOp.SUM: lambda rows: rows.sum(0).to(dtype),
        dist.ReduceOp.MAX: lambda rows: rows.amax(0),
        dist.ReduceOp.MIN: lambda rows: rows.amin(0),
    }
    for operation, fold in folds.items():
        dist.all_reduce(result := mine(), operation)
        yield f"allreduce {operation}", result, fold(stacked)
    dist.all_gather_into_tensor(result := empty(RANKS), mine())
    yield "allgather", result, torch.cat(given)
    dist.broadcast(result := mine(), 2)
    yield "broadcast", result, given[2]
    dist.reduce(result := mine(), 0)
    yield "reduce", result, stacked.sum(0).to(dtype) if rank == 0 else None
    whole = [torch.cat([shard + other for other in range(RANKS)]) for shard in given]
    parts = [row[rank * count : (rank + 1) * count] for row in whole]
    dist.reduce_scatter_tensor(result := empty(1), whole[rank].to(device, copy=True))
    yield "reduce_scatter", result, torch.stack(parts).sum(0).to(dtype)
    dist.all_to_all_single(result := empty(RANKS), whole[rank].to(device, copy=True))
    yield "alltoall", result, torch.cat(parts)


def _losses(rank: int, device: str) -> list[float]:
    """Return the losses of a small model that is trained on data of each rank's own."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    return losses(model, rank, device, 64, STEPS)


def _time_us(size_bytes: int, device: str, repeats: int = 30) -> tuple[float, float, float]:
    """Return the first decile, the median and the last decile of an allreduce with its result, after five others."""
    vector, times_us = torch.ones(size_bytes // 4, device=device), []
    for _ in range(5 + repeats):
        began_s = time.perf_counter()
        dist.all_reduce(vector)
        if device == "cuda":
            torch.cuda.synchronize()
        times_us.append((time.perf_counter() - began_s) * 1e6)
    deciles = statistics.quantiles(times_us[5:], n=10)
    return deciles[0], statistics.median(times_us[5:]), deciles[-1]


if __name__ == "__main__":
    main()
