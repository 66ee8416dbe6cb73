"""A rank process of the device runner: runs plans as kernels, and library calls, on torch tensors."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from chorale.runners.api.base import StuckInstruction
from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.device.config import VLLM
from chorale.runners.device.memory import CudaDevice, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import GroupPlans
from chorale.runners.execution.rank_part import DataLayout, Message, RankMemory, SocketRank, be_rank
from chorale.runners.execution.started_ranks import greet_runner, meet_runner
from chorale.runners.execution.torch_collectives import run_collective, tensor_of
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import Unavailable
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.targets.mscclpp_text import parse_plan

Call = Callable[[Any, Any], object]
"""Function that enqueues a collective. Arguments: its input tensor and its output tensor."""
_LIMIT = timedelta(seconds=60)
_KERNELS = {
    "torch-one-shot": ("one_shot_all_reduce", False),
    "torch-two-shot": ("two_shot_all_reduce_", True),
    "torch-multimem": ("multimem_all_reduce_", True),
}


class DeviceParts:
    """Runs and times one rank's plans and library calls; the counterpart of `RankParts` for the device runner.

    seconds: mean time per call in the last run
    blocked: thread blocks that timed out, and what each was waiting for
    """

    def __init__(self, device: PlanDevice, store: Any, rank: int, ranks: int, iterations: int, wide_sums: bool) -> None:
        self._device, self._store, self._wide_sums = device, store, wide_sums
        self._rank, self._ranks, self._iterations = rank, ranks, iterations
        self._plans: GroupPlans | None = None
        self._variants: list[tuple[DataLayout, Call]] = []
        self._current: tuple[Call, RankMemory, list[Any], list[Any]] | None = None
        self.blocked: list[StuckInstruction] = []
        self.seconds = 0.0
        self.steps: list[list[float]] = []  # calls on devices do not record their steps

    def load(self, command: Message) -> Message:
        """Allocate memory for the plans, and prepare a call for each plan and each library algorithm."""
        self._variants, self._plans, self._current = [], None, None
        plans = [parse_plan(text.encode()) for text in command["plans"]]
        requests = {str(number): (plan, command["most_bytes"]) for number, plan in enumerate(plans)}
        options = command["limit_s"], self._wide_sums
        kernels = self._plans = GroupPlans(self._device, self._rank, self._ranks, requests, *options)
        for name, plan in zip(requests, plans, strict=True):
            layout = DataLayout(plan.collective, self._ranks, plan.chunks, plan.in_place)
            self._variants.append((layout, partial(kernels.run, name)))
        kind, root = command["collective"]
        collective = Collective(CollectiveName(kind), root)
        for algorithm in command["library"]:
            layout = DataLayout(collective, self._ranks, self._ranks, collective.name not in SPLIT_BY_RANK)
            self._variants.append((layout, self._library(algorithm, collective, command["most_bytes"])))
        return {"answer": "loaded"}

    def prepare(self, task: Mapping[str, Any]) -> None:
        """Create the data for `task` (from `prepare_task`), separately for the checked call and for the timed calls."""
        self._current, self.blocked = None, []
        layout, call = self._variants[task["program"]]
        elements, dtype = task["elements"], task["dtype"]
        pattern = DataPattern(self._ranks, task["run"], task["seed"], ELEMENT_TYPES[dtype].exact_limit)
        memory = RankMemory(layout, self._rank, elements, dtype, pattern)
        checked, timed = (self._tensors(memory, layout.in_place) for _ in range(2))
        self._current = call, memory, checked, timed

    def _tensors(self, memory: RankMemory, in_place: bool) -> list[Any]:
        """Return input and output on the device; for an in-place call, the smaller one is a view of the larger."""
        pair = [tensor_of(memory.input), tensor_of(memory.output)]
        if not in_place:
            return [each.clone().to(self._device.name) for each in pair]
        whole, part = sorted(pair, key=lambda each: each.numel(), reverse=True)
        first = (part.data_ptr() - whole.data_ptr()) // part.element_size()
        placed = whole.clone().to(self._device.name)
        both = {id(whole): placed, id(part): placed[first : first + part.numel()]}
        return [both[id(each)] for each in pair]

    def run(self, _start_s: float, limit_s: float) -> float | None:
        """Make the checked call, which also synchronizes the ranks, then the timed calls; return the end time.

        Returns None if a call took too long or a plan timed out.
        """
        if self._current is None:
            return None
        call, _, checked, timed = self._current
        deadline = time.monotonic() + limit_s
        if self._device.timed(lambda: call(*checked), limit_s) is None or self._gave_up():
            return None

        def calls() -> None:
            for _ in range(self._iterations):
                call(*timed)

        elapsed_s = self._device.timed(calls, deadline - time.monotonic())
        if elapsed_s is None or self._gave_up():
            return None
        self.seconds = elapsed_s / self._iterations
        return time.monotonic()

    def complaint(self) -> str | None:
        """Return a line that describes the first wrong element of the checked call, or None if all are correct."""
        if self._current is None:
            return None
        _, memory, checked, _ = self._current
        for vector, tensor in zip((memory.input, memory.output), checked, strict=True):
            tensor_of(vector).copy_(tensor)
        return memory.mismatch()

    def _gave_up(self) -> bool:
        self.blocked = [] if self._plans is None else [each[1:] for each in self._plans.blocked()]
        return bool(self.blocked)

    def _library(self, algorithm: str, collective: Collective, most_bytes: int) -> Call:
        if not dist.is_initialized():
            backend = "nccl" if self._device.name == "cuda" else "gloo"
            store = dist.PrefixStore("library", self._store)
            dist.init_process_group(backend, store=store, rank=self._rank, world_size=self._ranks, timeout=_LIMIT)
        if algorithm in _KERNELS:
            return _torch_kernel(*_KERNELS[algorithm])
        if algorithm == VLLM:
            return vllm_kernel(most_bytes)
        return partial(run_collective, collective)


def _torch_kernel(name: str, in_place: bool) -> Call:
    """Return a function that calls `torch.ops.symm_mem.NAME`, with copies into and out of symmetric memory."""
    from torch.distributed import _symmetric_memory as symmetric  # noqa: PLC0415 - only with GPUs

    group = dist.group.WORLD.group_name
    rooms: dict[tuple[int, Any], Any] = {}

    def call(source: Any, target: Any) -> None:
        key = source.numel(), source.dtype
        if key not in rooms:
            rooms[key] = symmetric.empty(source.numel(), dtype=source.dtype, device=source.device)
            symmetric.rendezvous(rooms[key], group)
        room = rooms[key].copy_(source)
        result = getattr(torch.ops.symm_mem, name)(room, "sum", group)
        target.copy_(room if in_place else result)

    return call


def vllm_kernel(most_bytes: int) -> Call:
    """Return a function that calls vLLM's custom allreduce outside CUDA graphs, as vLLM's own benchmark does.

    The function copies the input into a buffer that other GPUs can access. It raises Unavailable for calls that vLLM
    does not support.
    """
    os.environ.setdefault("VLLM_SKIP_P2P_CHECK", "1")  # the check needs groups that only a vLLM engine creates
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce  # noqa: PLC0415 - only if installed

    kernel = CustomAllreduce(dist.new_group(backend="gloo"), torch.cuda.current_device(), max_size=most_bytes + 16)
    getattr(kernel, "finalize_p2p", lambda: None)()  # in versions since 2026, this allocates the memory

    def call(source: Any, target: Any) -> None:
        result = kernel.custom_all_reduce(source)
        if result is None:
            what = f"{source.nbytes} bytes on {dist.get_world_size()} GPUs"
            raise Unavailable("vLLM's custom allreduce does not support {}", what, "leave it out of the baselines")
        target.copy_(result)

    return call


def main() -> None:
    """Run one rank. Arguments: runner's address, this rank, number of ranks, kind of memory, number of timed calls,
    and 1 if 16-bit floats are to be summed in float32, otherwise 0."""
    meeting, rank, ranks, memory, iterations, wide_sums = sys.argv[1:7]
    control, number, size = meet_runner(meeting), int(rank), int(ranks)

    def work() -> None:
        torch.set_num_threads(1)
        store = dist.FileStore(f"{meeting}.store", size)
        device, what = _device(memory, store, number, size)
        greet_runner(control, number, blocks=device.most_blocks, device=what)
        parts = DeviceParts(device, store, number, size, int(iterations), wide_sums == "1")
        SocketRank(control, parts, load=parts.load).serve()

    be_rank(control, work)


def _device(memory: str, store: Any, rank: int, ranks: int) -> tuple[PlanDevice, str]:
    if memory == "host":
        turns = count()

        def exchange(texts: list[str]) -> list[list[str]]:
            turn = next(turns)
            store.set(f"{turn}/{rank}", "\n".join(texts))
            return [store.get(f"{turn}/{other}").decode().split("\n") for other in range(ranks)]

        return ProcessorDevice(rank, exchange), "CPUs"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and not torch.version.hip else 0
    if gpus == 0:
        raise Unavailable("torch finds no NVIDIA GPU here, and plans need one", "", "use memory=host to try them")
    torch.cuda.set_device(rank % gpus)
    sharing = -(-ranks // gpus)
    device = CudaDevice(rank, ranks, dist.PrefixStore("memory", store), "chorale-device", sharing)
    return device, torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
