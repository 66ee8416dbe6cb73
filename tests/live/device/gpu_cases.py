"""Plans as kernels on one GPU that ranks share: `python -m tests.live.device.gpu_cases [--ranks 4] [--device cpu]`.

A line of JSON for each case; minutes at most, each wait is bounded. Start the MPS daemon before, or ranks take turns in
slices of milliseconds: times then say nothing. Nothing here measures links. With `--device cpu` processors stand in.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from chorale.job.torch.device import OVERLAPPING, GroupMember
from chorale.runners.device.memory import CudaDevice, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import DeviceOptions, GroupPlans, RequestedPlan
from chorale.runners.engine.library import ReduceOp
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from tests.unit.synth.lowering.programs import lowered

LIMIT_S = 5.0
LARGEST = 16 << 20
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.int8)
KINDS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "puts": ("allreduce", {}),
    "packets": ("allreduce", {"protocol": "LL"}),
    "fused packets": ("allreduce", {"protocol": "LL", "fuse": True}),
    "reads": ("allreduce", {"reads": True}),
    "groups": ("allreduce", {"block_group": 2}),
    "pipeline": ("allreduce", {"pipeline_bytes": 4096}),
    "gather": ("allgather", {}),
    "scatter": ("reduce_scatter", {"in_place": False}),
}


def made(ranks: int) -> dict[str, ExecutionPlan]:
    """Return a plan of each kind."""
    return {
        kind: plan_of(lowered(f"complete:{ranks}", collective, "mscclpp-json", **options))
        for kind, (collective, options) in KINDS.items()
    }


class Rank:
    """One rank: its plans, and where it runs."""

    def __init__(self, rank: int, ranks: int, name: str, folder: Path) -> None:
        self.rank, self.ranks, self.device = rank, ranks, torch.device(name)
        store = dist.FileStore(str(folder / "store"), ranks)
        member = GroupMember(rank, tuple(range(ranks)), store, "cases", 60.0)
        self.meet = member.exchange()
        device: PlanDevice
        if name == "cuda":
            torch.cuda.set_device(0)
            device = CudaDevice(rank, ranks, dist.PrefixStore("memory", store), "cases", ranks, checks=True)
        else:
            device = ProcessorDevice(rank, self.meet)
        requests = {kind: RequestedPlan(plan, LARGEST) for kind, plan in made(ranks).items()}
        self.plans = GroupPlans(device, rank, ranks, requests, DeviceOptions(limit_s=LIMIT_S))

    def call(self, kind: str, elements: int, dtype: Any, seed: int = 0) -> bool:
        """Run a plan; return whether every bit is right. Small integers have the same sum in any order."""
        generator = torch.Generator().manual_seed(seed)
        everyone = torch.randint(-3, 4, (self.ranks, elements), generator=generator).to(dtype)
        shard = slice(self.rank * elements // self.ranks, (self.rank + 1) * elements // self.ranks)
        total, collective = everyone.sum(0, dtype=dtype), KINDS[kind][0]
        source = everyone[self.rank][shard] if collective == "allgather" else everyone[self.rank]
        expected = total[shard] if collective == "reduce_scatter" else total
        if collective == "allgather":
            expected = torch.cat([row.chunk(self.ranks)[rank] for rank, row in enumerate(everyone)])
        target = torch.empty_like(expected, device=self.device)
        self.plans.run(kind, source.to(self.device), target, ReduceOp.SUM)
        return bool(target.cpu().equal(expected)) and self.plans.failure() is None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def results(rank: Rank) -> dict[str, Any]:
    """Every kind, type and some sizes."""
    sizes = [rank.ranks * each for each in (1, 33, 5000)]
    wrong = [
        f"{kind} {dtype} {size}"
        for kind in KINDS
        for dtype in DTYPES
        for turn, size in enumerate(sizes)
        if not rank.call(kind, size, dtype, turn)
    ]
    return {"calls": len(KINDS) * len(DTYPES) * len(sizes), "wrong": wrong}


def graph(rank: Rank) -> dict[str, Any]:
    """Capture two calls, and replay them with other data."""
    if rank.device.type != "cuda":
        return {"left out": "there are no CUDA graphs on processors"}
    tensor = torch.ones(4096, device=rank.device)
    for kind in ("puts", "packets"):
        rank.plans.run(kind, tensor, tensor)
    rank.wait()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        rank.plans.run("puts", tensor, tensor)
        rank.plans.run("packets", tensor, tensor)
    right = []
    for turn in range(3):
        tensor.fill_(turn + 1)
        captured.replay()
        rank.wait()
        right.append(bool((tensor == (turn + 1) * rank.ranks**2).all()))
    return {"replays right": right, "failure": rank.plans.failure()}


def host_time(rank: Rank) -> dict[str, Any]:
    """Microseconds of the host for each call of 64 KiB, of 20 in a row."""
    tensor, found = torch.zeros(1 << 14, device=rank.device), {}
    for kind in ("puts", "packets"):
        rank.plans.run(kind, tensor, tensor)
        rank.wait()
        rank.meet([""])
        begin = time.perf_counter()
        for _ in range(20):
            rank.plans.run(kind, tensor, tensor)
        found[kind] = round((time.perf_counter() - begin) / 20 * 1e6, 1)
        rank.wait()
    return {"host_us": found}


def stalled(rank: Rank) -> dict[str, Any]:
    """The last rank ends without a word; the others give up within the limit and say whom they waited for."""
    rank.meet([""])
    if rank.rank == rank.ranks - 1:
        os._exit(0)
    tensor, begin = torch.ones(4096, device=rank.device), time.monotonic()
    rank.plans.run("puts", tensor, tensor)
    rank.wait()
    return {"seconds": round(time.monotonic() - begin, 1), "failure": rank.plans.failure()}


CASES: tuple[Callable[[Rank], dict[str, Any]], ...] = (results, graph, host_time, stalled)


def be_rank(rank: int, ranks: int, name: str, folder: str) -> None:
    """Do all cases in turn; what they find goes to a file of the rank."""
    torch.set_num_threads(1)
    me = Rank(rank, ranks, name, Path(folder))
    with (Path(folder) / f"{rank}.jsonl").open("w") as file:
        for case in CASES:
            file.write(json.dumps({"case": case.__name__, "rank": rank, **case(me)}) + "\n")
            file.flush()


def main() -> None:
    """Run all cases and print what the ranks say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here that torch can use: use --device cpu to try the cases on processors")
    os.environ[OVERLAPPING] = "1"
    with tempfile.TemporaryDirectory() as folder:
        context = processes.get_context("spawn")
        running = [
            context.Process(target=be_rank, args=(rank, given.ranks, given.device, folder))
            for rank in range(given.ranks)
        ]
        for each in running:
            each.start()
        deadline_s = time.monotonic() + timedelta(minutes=9).total_seconds()
        for each in running:
            each.join(max(0.0, deadline_s - time.monotonic()))
            each.kill()
        for path in sorted(Path(folder).glob("*.jsonl")):
            sys.stdout.write(path.read_text())


if __name__ == "__main__":
    main()
