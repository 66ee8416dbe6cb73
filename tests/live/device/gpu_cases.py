"""Plans as kernels on one GPU that ranks share: `python -m tests.live.device.gpu_cases [--ranks 4] [--device cpu]`.

A line of JSON for each case and rank; ten minutes at most, each wait is bounded. Start the MPS daemon before, or ranks
take turns in slices of milliseconds: times then say nothing. Nothing here measures links. With `--device cpu` CPUs
stand in. `--only results` under `compute-sanitizer --target-processes all` looks for accesses outside of memory.
"""

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

from chorale.job import report
from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table, table_bytes
from chorale.job.table.verification import table_program
from chorale.job.torch.creation import OVERLAPPING
from chorale.job.torch.reload import GroupMember
from chorale.job.torch.transport import BatchedTransport
from chorale.runners.device.memory import CudaDevice, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import GroupPlans
from chorale.runners.engine.library import ReduceOp
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.additions import order_of_additions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.topology.spec import parse_topology
from tests.live.job.torch.tables import program_for

LIMIT_S = 20.0
LIBRARY_LIMIT = timedelta(seconds=30)
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
    "broadcast": ("broadcast", {}),
    "exchange": ("alltoall", {"in_place": False}),
}
LIBRARIES = {"cuda": "nccl", "cpu": "gloo"}


def made(ranks: int) -> dict[str, ExecutionPlan]:
    topology, found = parse_topology(f"complete:{ranks}"), {}
    for kind, (name, options) in KINDS.items():
        wanted = Collective(CollectiveName(name), 0 if name == "broadcast" else None)
        method = {"broadcast": "double-binary-tree", "alltoall": "alltoall"}.get(name, "bfb")
        schedule = synthesize(method, topology, wanted, None, SerialExecutor())
        found[kind] = plan_of(lower(schedule, LoweringOptions("mscclpp-json", **options)))  # type: ignore[arg-type]
    return found


class Rank:
    def __init__(self, rank: int, ranks: int, name: str, folder: Path) -> None:
        self.rank, self.ranks, self.device, self.folder = rank, ranks, torch.device(name), folder
        self.store = store = dist.FileStore(str(folder / "store"), ranks)
        member = GroupMember(rank, tuple(range(ranks)), store, 60.0)
        self.meet = member.exchange("cases")
        device: PlanDevice
        if name == "cuda":
            torch.cuda.set_device(0)
            device = CudaDevice(rank, ranks, dist.PrefixStore("memory", store), "cases", ranks, checks=True)
        else:
            device = ProcessorDevice(rank, self.meet)
        self.plans_device, self.requested = device, made(ranks)
        requests = {kind: (plan, LARGEST) for kind, plan in self.requested.items()}
        self.plans = GroupPlans(device, rank, ranks, requests, LIMIT_S)

    def call(self, kind: str, elements: int, dtype: Any, seed: int = 0) -> bool:
        """Run a plan; return whether every bit is right. Small integers have the same sum in any order."""
        generator = torch.Generator().manual_seed(seed)
        everyone = torch.randint(-3, 4, (self.ranks, elements), generator=generator).to(dtype)
        own = slice(self.rank * elements // self.ranks, (self.rank + 1) * elements // self.ranks)
        total, collective = everyone.sum(0, dtype=dtype), KINDS[kind][0]
        expected = {
            "allreduce": total,
            "reduce_scatter": total[own],
            "allgather": torch.cat([row.chunk(self.ranks)[rank] for rank, row in enumerate(everyone)]),
            "broadcast": everyone[0],
            "alltoall": torch.cat([row[own] for row in everyone]),
        }[collective]
        source = everyone[self.rank][own] if collective == "allgather" else everyone[self.rank]
        target = torch.empty_like(expected, device=self.device)
        self.plans.run(kind, source.to(self.device), target, ReduceOp.SUM)
        return bool(target.cpu().equal(expected)) and self.plans.failure() is None

    def library(self) -> Any:
        """Return torch with a group of the library, made when it is first asked for."""
        if not dist.is_initialized():
            store = dist.PrefixStore("library", self.store)
            backend = LIBRARIES[self.device.type]
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.ranks, timeout=LIBRARY_LIMIT)
        return dist

    def host_us(self, call: Callable[[], object], turns: int = 20) -> float:
        """Return the microseconds of the host for a call, of some in a row."""
        call()
        self.wait()
        self.meet([""])
        begin = time.perf_counter()
        for _ in range(turns):
            call()
        used_s = time.perf_counter() - begin
        self.wait()
        return round(used_s / turns * 1e6, 1)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def results(rank: Rank) -> dict[str, Any]:
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


def bits(rank: Rank) -> dict[str, Any]:
    """Numbers whose sum depends on the order: twice the same bits, those of the order that the plan states."""
    values = [torch.rand(4800, generator=torch.Generator().manual_seed(each)) for each in range(rank.ranks)]
    found = {}
    for kind in ("puts", "packets", "reads", "groups"):
        order = order_of_additions(rank.requested[kind])
        assert order is not None
        sums = list(values)
        for left, right in order.sums:
            sums.append(sums[left] + sums[right])
        pairs = list(zip(order.results[rank.rank], order.chunk_of[rank.rank], strict=True))
        expected = torch.cat([sums[one].view(-1, 4800 // len(pairs))[chunk] for one, chunk in pairs])
        results = [torch.empty(4800, device=rank.device) for _ in range(2)]
        for target in results:
            rank.plans.run(kind, values[rank.rank].to(rank.device), target)
        found[kind] = [bool(each.cpu().equal(expected)) for each in results]
    return {"bits of the stated order": found}


def host_time(rank: Rank) -> dict[str, Any]:
    """Host time of calls of 64 KiB: of plans, of the library, and of programs in rounds of sends."""
    tensor = torch.zeros(1 << 14, device=rank.device)
    found = {kind: rank.host_us(lambda kind=kind: rank.plans.run(kind, tensor, tensor)) for kind in ("puts", "packets")}
    library = rank.library()
    found[LIBRARIES[rank.device.type]] = rank.host_us(lambda: library.all_reduce(tensor))
    program = program_for("allreduce", ranks=rank.ranks)
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, program.digest)
    rounds = BatchedTransport(library.group.WORLD, rank.rank, {program.digest: program})
    found["rounds of sends"] = rank.host_us(
        lambda: rounds.run(entry, "allreduce", tensor, tensor, ReduceOp.SUM, LIMIT_S)
    )
    return {"host_us": found}


def memory_rate(rank: Rank) -> dict[str, Any]:
    """Bytes that a gather of 16 MiB by puts reads and writes a second, all ranks together, beside a copy by torch."""
    whole = torch.empty(LARGEST // 4, device=rank.device)
    own = whole.chunk(rank.ranks)[rank.rank].clone()
    rank.meet([""])
    copy_s = rank.plans_device.timed(whole.clone, LIMIT_S)
    rank.meet([""])
    plan_s = rank.plans_device.timed(lambda: rank.plans.run("gather", own, whole), LIMIT_S)
    if copy_s is None or plan_s is None:
        return {"late": [copy_s, plan_s]}
    moved = 2 * whole.nbytes * rank.ranks
    return {"plan_gb_per_s": round(moved / plan_s / 1e9, 2), "copy_gb_per_s": round(moved / copy_s / 1e9, 2)}


def job(rank: Rank) -> dict[str, Any]:
    """A job of torch runs the plan of its table; DDP gives the gradients of all ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()
    program = table_program(plan_text(rank.requested["packets"]).encode(), "mscclpp-json", "bfb", {})
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, 1 << 20, program.digest)
    table = Table({}, rank.ranks, (entry,), {program.digest: program})
    path = rank.folder / f"{rank.rank}.table"
    path.write_bytes(table_bytes(table))
    transport = "auto" if rank.device.type == "cuda" else "stand-in"
    os.environ |= {"CHORALE_TABLE": str(path), "CHORALE_TRANSPORT": transport}
    store = dist.PrefixStore("job", rank.store)
    dist.init_process_group("chorale", store=store, rank=rank.rank, world_size=rank.ranks, timeout=LIBRARY_LIMIT)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(rank.device))
    model(torch.full((4, 64), float(rank.rank), device=rank.device)).sum().backward()
    gradient = model.module.weight.grad
    ran = [(each["digest"] == program.digest, each["by"], each["calls"] > 0) for each in report()["programs"]]
    right = bool((gradient == 4 * sum(range(rank.ranks)) / rank.ranks).all())
    dist.destroy_process_group()
    return {"right": right, "ran": ran, "fallbacks": report()["fallbacks"]}


def stalled(rank: Rank) -> dict[str, Any]:
    """The last rank ends without a word; the others give up within the limit and say whom they waited for."""
    tensor = torch.ones(4096, device=rank.device)
    rank.plans.run("packets", tensor, tensor)
    rank.wait()
    rank.meet([""])
    if rank.rank == rank.ranks - 1:
        os._exit(0)
    begin = time.monotonic()
    rank.plans.run("packets", tensor, tensor)
    rank.wait()
    return {"seconds": round(time.monotonic() - begin, 1), "failure": rank.plans.failure()}


CASES: tuple[Callable[[Rank], dict[str, Any]], ...] = (results, bits, graph, host_time, memory_rate, job, stalled)


def be_rank(rank: int, ranks: int, name: str, folder: str, only: str | None) -> None:
    """Do all cases in turn; what they find, or why they could not be done, goes to a file of the rank."""
    torch.set_num_threads(1)
    if name == "cuda" and torch.cuda.nccl.version() < (2, 30):
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    me = Rank(rank, ranks, name, Path(folder))
    with (Path(folder) / f"{rank}.jsonl").open("w") as file:
        for case in CASES:
            if only not in (None, case.__name__):
                continue
            try:
                found = case(me)
            except Exception as error:  # the next case may go
                found = {"error": f"{type(error).__name__}: {error}"[:1000]}
            file.write(json.dumps({"case": case.__name__, "rank": rank, **found}) + "\n")
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=[case.__name__ for case in CASES])
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here that torch can use: use --device cpu to try the cases on processors")
    os.environ |= {OVERLAPPING: "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        context = processes.get_context("spawn")
        running = [
            context.Process(target=be_rank, args=(rank, given.ranks, given.device, folder, given.only))
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
