"""DeviceRunner: runs plans as kernels on this machine's GPUs; times them alternately with the library's collectives."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunRequest
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import only_plans
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.device.config import LIBRARIES, VLLM, DeviceConfig
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped
from chorale.runners.execution.started_ranks import StreamRanks
from chorale.runners.process_launch.processes import LocalHost, ProcessHandle, ProcessSpec, rank_environment
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.plans.plan import TARGET
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Program
from chorale.synth.targets.mscclpp_text import plan_text

RANK = (sys.executable, "-P", "-m", "chorale.runners.device.rank")
START_LIMIT_S, START_PER_RANK_S = 60.0, 1.0
"""Seconds that ranks may take to start, in addition to a request's time limit: a constant, plus an amount per rank.
Ranks need this time to load torch and CUDA."""
STAND_IN = "CPUs that stand in for GPUs: these times say nothing about GPUs"
_MOST_KERNEL_S = 30.0

KERNELS = ("torch-one-shot", "torch-two-shot", "torch-multimem", VLLM)
"""Names of third-party allreduce kernels: torch's on symmetric memory, and vLLM's custom allreduce if installed."""


class DeviceRanks(StreamRanks):
    """Starts and controls the rank processes of the device runner, all on this machine."""

    def __init__(self, ranks: int, options: Sequence[str], deadline: float) -> None:
        """Start the rank processes. Their command lines end with `options`, which `rank.main` explains."""

        def start(meeting: str, more: Mapping[str, str]) -> Sequence[ProcessHandle]:
            host = LocalHost()
            each = {**rank_environment(), "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1", **more}
            words = [(*RANK, meeting, str(rank), str(ranks), *options) for rank in range(ranks)]
            return [host.start(ProcessSpec(command, each)) for command in words]

        super().__init__(ranks, "", start, deadline)
        self.most_blocks = min(int(hello["blocks"]) for hello in self.hellos.values())

    def load(self, request: RunRequest, deadline: float) -> None:
        """Send the plans, then the names of library algorithms, to the ranks, which number them in this order."""
        plans = [plan_text(plan) for plan in only_plans(request.programs.values())]
        collective = next(iter(request.programs.values())).collective
        room = max(request.sizes_bytes) + sum(  # sizes are rounded up until all plans can cut them into equal parts
            plan.chunks * ELEMENT_TYPES[request.dtype].dtype.itemsize * 64 for plan in request.programs.values()
        )
        command = {
            "do": "load", "plans": plans, "library": list(request.library), "most_bytes": room,
            "collective": [collective.name.value, collective.root],
            "limit_s": max(0.1, min(_MOST_KERNEL_S, (deadline - time.monotonic()) / 2)),
        }  # fmt: skip
        self.request(command, deadline, "the ranks took memory")

    def _kind_of(self, reason: str) -> FailureKind:
        return FailureKind.UNAVAILABLE if reason.startswith("Unavailable") else FailureKind.CRASH


class DeviceRunner(LiveRunner[DeviceRanks]):
    """Implements `Runner` with one process per rank, on this machine's GPUs or on CPUs that replace them.

    A repetition's time is the mean over `iterations` calls in a row, including copies into and out of symmetric memory,
    as in jobs. An additional call before them is checked but not timed. Library calls work in place if
    PyTorch's collective does.
    """

    name = "device"

    def __init__(self, config: DeviceConfig) -> None:
        super().__init__()
        self._config = config

    def library(self, collective: str) -> tuple[str, ...]:
        has_kernels = (self._config.memory, collective) == ("gpu", CollectiveName.ALLREDUCE.value)
        kernels = [name for name in KERNELS if has_kernels and (name != VLLM or find_spec(VLLM))]
        return LIBRARIES[self._config.memory], *kernels

    def submit(self, request: RunRequest) -> Outcome:
        """Run `request`; see `Runner.submit`. Programs with the target mscclpp-json run as plans."""
        plans = {
            name: plan_of(program) if isinstance(program, Program) and program.target == TARGET else program
            for name, program in request.programs.items()
        }
        return super().submit(replace(request, programs=plans))

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, _faults, plans=True)

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        ranks, limit_s = request.topology.compute_count, START_LIMIT_S
        limit_s += START_PER_RANK_S * ranks
        config = self._config
        options = config.memory, str(config.iterations), str(int(config.wide_sums))
        group = self._group_for(ranks, lambda: DeviceRanks(ranks, options, time.monotonic() + limit_s))
        facts = {"device": group.hellos[0]["device"], "clock": "stream", "iterations": config.iterations}
        facts["wide_sums"] = config.wide_sums
        self._identify(facts | ({"warning": STAND_IN} if config.memory == "host" else {}), environment)
        for name, plan in request.programs.items():
            blocks = max(len(body.blocks) for body in plan.ranks)
            if blocks > group.most_blocks:
                reason = (
                    f"{name} has {blocks} thread blocks, but only {group.most_blocks} certainly run at the same time"
                )
                raise RunStopped(FailureKind.REJECTED, reason)
        deadline = time.monotonic() + request.timeout_s
        group.load(request, deadline)
        return Measurement(self.name, MeasurementRounds(group, request, deadline).measure(), environment)


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = ELEMENT_TYPES[request.dtype].max_ranks
    if request.topology.compute_count > most:
        yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"
    for name, program in request.programs.items():
        if not program.one_sided:
            yield FailureKind.REJECTED, f"{name} is not a plan: lower it with --target mscclpp-json"
        elif program.collective.custom is not None:
            yield FailureKind.REJECTED, f"{name}: kernels run collectives of equal shards"
