"""What ranks on one GPU are tried on, by the programs of a table and by the library.

Ranks are processes of their own, ended at a limit whatever they hang on. NCCL 2.30 lets ranks of a host share a GPU by
NCCL_MULTI_RANK_GPU_ENABLE. Older ones do not see that they do where NCCL_HOSTID says that each is on a host of its own;
messages go through sockets then.
"""

import hashlib
import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from chorale.job import report
from chorale.job.torch.registration import register
from tests.live.job.torch.tables import whole_table, written

RANKS = 4
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}
LIMIT = timedelta(seconds=25)
"""Of the group; the first call takes the longest."""
Case = Callable[[int, str], Any]


def on_ranks(case: Case, device: str, backend: str) -> list[Mapping[str, Any]]:
    """Return what `case(rank, device)` returns on each rank, under "said"; or "error" where it raises or is killed."""
    with tempfile.TemporaryDirectory() as folder:
        written(whole_table(), Path(folder) / "table")
        context = mp.get_context("spawn")
        ranks = [context.Process(target=_rank, args=(at, folder, device, backend, case)) for at in range(RANKS)]
        for rank in ranks:
            rank.start()
        end_s = time.monotonic() + 90.0
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < end_s:
            time.sleep(0.05)
            if any(rank.exitcode for rank in ranks):
                end_s = min(end_s, time.monotonic() + 5)
        for rank in ranks:
            rank.kill()
            rank.join()
        return [_said(Path(folder) / f"{at}.json", ranks[at].exitcode) for at in range(RANKS)]


def _prepare(rank: int, folder: str, device: str) -> None:
    """Let this process be `rank` of a job with the table in `folder`, on a device that others use too."""
    os.environ |= {"CHORALE_TABLE": f"{folder}/table", "CHORALE_TRANSPORT": "batched", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"  # which takes half a minute
    if device == "cuda" and torch.cuda.nccl.version() < (2, 30):
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    warnings.simplefilter("ignore", FutureWarning)  # names that torch 2.13 gave up
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
    register()


def _said(path: Path, exit_code: int | None) -> Mapping[str, Any]:
    if path.exists():
        return dict(json.loads(path.read_text()))
    return {"error": f"killed at the limit or by a signal: {exit_code}"}


def _rank(rank: int, folder: str, device: str, backend: str, case: Case) -> None:
    _prepare(rank, folder, device)
    said: dict[str, Any] = {}
    try:
        store = dist.FileStore(f"{folder}/store", RANKS)
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=LIMIT)
        said["said"] = case(rank, device)
        if backend == "chorale":
            said |= {name: report()[name] for name in ("programs", "fallbacks")}
    except Exception as error:
        said["error"] = f"{type(error).__name__}: {error}"
        said["traceback"] = traceback.format_exc().splitlines()[-12:]
    Path(folder, f"{rank}.new").write_text(json.dumps(said))
    Path(folder, f"{rank}.new").rename(Path(folder, f"{rank}.json"))
    os._exit(1 if "error" in said else _ended())


def _ended() -> int:
    dist.destroy_process_group()
    return 0


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


def stalled(rank: int, device: str) -> None:
    """Call a collective on all ranks but the last, which is away for longer than the group waits."""
    vector = torch.ones(COUNT, device=device)
    _all_reduced(vector)
    if rank == RANKS - 1:
        time.sleep(60)
    _all_reduced(vector)


def _graph(rank: int, device: str, before: str, is_async: bool = False) -> list[str]:
    """Capture all six collectives, and replay them with other data.

    before: what was called: "all" six, "one", "some" that are still under way, or "nothing"
    """
    if before in ("one", "some"):
        _all_reduced(torch.ones(COUNT, device=device))
    under_way = [
        dist.all_reduce(torch.ones(COUNT, device=device), async_op=True)
        for _ in range(TURNS if before == "some" else 0)
    ]
    try:
        return _replayed(rank, before == "all", is_async)
    finally:
        for work in under_way:
            work.wait()


def _replayed(rank: int, warm: bool, is_async: bool) -> list[str]:
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


STEPS = 6
WIDTH = 256


def ddp(rank: int, device: str) -> list[float]:
    """Return the losses of a model whose gradients go in several buckets while others are computed."""
    model = torch.nn.parallel.DistributedDataParallel(_model(device), bucket_cap_mb=0.4)
    return _losses(model, rank, device)


def fsdp(rank: int, device: str) -> list[float]:
    """Return the losses of the same model with each layer's parameters sharded."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes seconds

    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    model = _model(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _losses(model, rank, device)


def _model(device: str) -> Any:
    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)).to(device)


def _losses(model: Any, rank: int, device: str) -> list[float]:
    """Return the losses of `model` while it is trained on data of each rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    draw, seen = torch.Generator().manual_seed(rank), []
    for _ in range(STEPS):
        data = torch.randn(32, WIDTH, generator=draw).to(device)
        labels = torch.randint(0, 10, (32,), generator=draw).to(device)
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


CASES: Mapping[str, Case] = {
    "graph": partial(_graph, before="all"),
    "graph_after_one": partial(_graph, before="one"),
    "graph_async": partial(_graph, before="all", is_async=True),
    "graph_behind": partial(_graph, before="some"),
    "graph_cold": partial(_graph, before="nothing"),
} | {case.__name__: case for case in (behind_a_stream, several_at_once, stalled, types, gaps, ddp, fsdp)}
