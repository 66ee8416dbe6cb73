"""Programs on a GPU's streams: behind work of other streams, and captured in CUDA graphs."""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tests.live.job.shared_gpu import RANKS

COUNT = 65536
TURNS = 5
SIZE = 4096
"""Of the matrices whose product keeps a stream busy while a collective is called."""


def behind_a_stream(rank: int, device: str) -> list[str]:
    """Call a collective on what another stream is still about to write; return what was wrong."""
    _all_reduced(torch.ones(COUNT, device=device))
    stream = torch.cuda.Stream() if device == "cuda" else None
    wrong = []
    for turn in range(TURNS):
        with torch.cuda.stream(stream):
            vector = torch.zeros(COUNT, device=device)
            _busy(device)
            vector += rank + turn
            work = dist.all_reduce(vector, async_op=True)
            work.wait()
            seen = vector * 2
        if device == "cuda":
            torch.cuda.synchronize()
        expected = 2.0 * (sum(range(RANKS)) + RANKS * turn)
        if not bool((seen == expected).all()):
            wrong.append(f"turn {turn}: {seen.unique().tolist()[:5]}, not {expected}")
    return wrong


def several_at_once(rank: int, device: str) -> list[str]:
    """Begin collectives without waiting, and compute on their results; return what was wrong."""
    vectors = [torch.full((COUNT >> turn,), float(rank + turn), device=device) for turn in range(TURNS)]
    works = [dist.all_reduce(vector, async_op=True) for vector in vectors]
    _busy(device)
    for work in works:
        work.wait()
    results = [vector + 1 for vector in vectors]
    expected = [sum(range(RANKS)) + RANKS * turn + 1.0 for turn in range(TURNS)]
    return [f"turn {at}" for at, result in enumerate(results) if not bool((result == expected[at]).all())]


def graph(rank: int, device: str) -> list[str]:
    """Capture all six collectives after a first call of each, and replay them with other data."""
    return _graph(rank, warm=True, is_async=False)


def graph_after_one(rank: int, device: str) -> list[str]:
    """Capture all six after a first call of one of them."""
    _all_reduced(torch.ones(COUNT, device=device))
    return _graph(rank, warm=False, is_async=False)


def graph_behind(rank: int, device: str) -> list[str]:
    """Capture all six while others are under way."""
    _all_reduced(torch.ones(COUNT, device=device))
    vectors = [torch.ones(COUNT, device=device) for _ in range(TURNS)]
    works = [dist.all_reduce(vector, async_op=True) for vector in vectors]
    try:
        return _graph(rank, warm=False, is_async=False)
    finally:
        for work in works:
            work.wait()


def graph_async(rank: int, device: str) -> list[str]:
    """Capture a collective that is called with async_op=True."""
    return _graph(rank, warm=True, is_async=True)


def graph_cold(rank: int, device: str) -> list[str]:
    """Capture as the first thing that is called."""
    return _graph(rank, warm=False, is_async=False)


def stalled(rank: int, device: str) -> None:
    """Call a collective on all ranks but the last, which is away for longer than the group waits."""
    vector = torch.ones(COUNT, device=device)
    _all_reduced(vector)
    if rank == RANKS - 1:
        time.sleep(60)
    _all_reduced(vector)


def times(rank: int, device: str) -> Mapping[str, float]:
    """Return milliseconds of 20 allreduces one after the other, with one synchronization at the end, by size."""
    taken_ms = {}
    for size_bytes in (1024, 1 << 16, 1 << 20):
        vector = torch.zeros(size_bytes // 4, device=device)
        for _ in range(3):
            dist.all_reduce(vector)
        _synchronize(device)
        began_s = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(vector)
        called_s = time.perf_counter()
        _synchronize(device)
        taken_ms[str(size_bytes)] = round((time.perf_counter() - began_s) * 1e3, 2)
        taken_ms[f"{size_bytes} until the last call returned"] = round((called_s - began_s) * 1e3, 2)
    return taken_ms


def _graph(rank: int, warm: bool, is_async: bool) -> list[str]:
    source = torch.zeros(COUNT, device="cuda")
    outputs = {name: torch.zeros(size, device="cuda") for name, size in _SIZES.items()}
    if warm:
        with torch.cuda.stream(torch.cuda.Stream()):
            _six(source, outputs, is_async=False)
        torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        _six(source, outputs, is_async)
    wrong = []
    for turn in range(TURNS):
        source.copy_(torch.arange(COUNT) % 7 + rank + turn)
        captured.replay()
        torch.cuda.synchronize()
        wrong += [
            f"{name} in turn {turn}"
            for name, right in _expected(rank, turn).items()
            if not torch.equal(outputs[name].cpu(), right)
        ]
    return wrong


_SIZES = {"allreduce": COUNT, "allgather": RANKS * COUNT, "broadcast": COUNT, "reduce": COUNT}
_SIZES |= {"reduce_scatter": COUNT // RANKS, "alltoall": COUNT}


def _six(source: Any, outputs: Mapping[str, Any], is_async: bool) -> None:
    outputs["allreduce"].copy_(source)
    outputs["broadcast"].copy_(source)
    outputs["reduce"].copy_(source)
    works = [
        dist.all_reduce(outputs["allreduce"], async_op=is_async),
        dist.all_gather_into_tensor(outputs["allgather"], source, async_op=is_async),
        dist.broadcast(outputs["broadcast"], 2, async_op=is_async),
        dist.reduce(outputs["reduce"], 0, async_op=is_async),
        dist.reduce_scatter_tensor(outputs["reduce_scatter"], source, async_op=is_async),
        dist.all_to_all_single(outputs["alltoall"], source, async_op=is_async),
    ]
    for work in works:
        if work is not None:
            work.wait()


def _expected(rank: int, turn: int) -> Mapping[str, Any]:
    rows = torch.stack([(torch.arange(COUNT) % 7 + other + turn).float() for other in range(RANKS)])
    part = COUNT // RANKS
    shards = rows[:, rank * part : (rank + 1) * part]
    expected = {"allreduce": rows.sum(0), "allgather": rows.reshape(-1), "broadcast": rows[2]}
    expected |= {"reduce_scatter": shards.sum(0), "alltoall": shards.reshape(-1)}
    return expected | ({"reduce": rows.sum(0)} if rank == 0 else {})


def _all_reduced(vector: Any) -> None:
    dist.all_reduce(vector)
    _synchronize(vector.device.type)


def _busy(device: str) -> None:
    if device == "cuda":
        matrix = torch.randn(SIZE, SIZE, device=device)
        for _ in range(20):
            matrix = matrix @ matrix * 1e-3


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
