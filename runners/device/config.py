"""Declares the device runner and its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from chorale.runners.api.base import ResourceRequest, Runner
from chorale.runners.api.config import MeasurerRequest, RunnerConfig
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import TARGET
from chorale.synth.topology.topology import Topology

LIBRARIES: Mapping[str, str] = {"gpu": "nccl", "host": "gloo"}
"""Kind of memory -> the library that torch uses for it."""
VLLM = "vllm"
"""Baseline name of vLLM's custom allreduce."""


class DeviceConfig(RunnerConfig):
    """Options of the device runner, which runs plans as GPU kernels; see `DeviceRunner`."""

    name: ClassVar[str] = "device"
    summary: ClassVar[str] = "plans as one kernel on the GPUs of one machine, compared with the library's collectives"
    preconditions: ClassVar[tuple[str, ...]] = ("gpus",)

    memory: Literal["gpu", "host"] = Field(
        default="gpu",
        description="host: CPUs instead of GPUs, to try a campaign without GPUs; the times do not apply to GPUs.",
    )
    iterations: int = Field(
        default=20, ge=1, le=10**5, description="Number of consecutive calls that are timed together."
    )

    wide_sums: bool = Field(
        default=False, description="Whether plans add 16-bit floats in float32 and round once, as switches always do."
    )

    @property
    def executes_plans(self) -> bool:
        return True

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return (LIBRARIES[self.memory],)

    def lowering(self) -> LoweringOptions:
        return LoweringOptions(TARGET)

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        """Return a request for `request.gpus` GPUs. None means one GPU per rank, or no GPU if plans run on CPUs."""
        node = request.node
        gpus = 0.0 if self.memory == "host" else float(topology.compute_count)
        gpus = gpus if request.gpus is None else request.gpus
        return ResourceRequest(node.cpus, gpus, node.resources, node.labels, node.patience_s)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.device.runner import DeviceRunner  # noqa: PLC0415 - only needed to run something
        from chorale.runners.process_launch.slurm import require_one_process  # noqa: PLC0415 - as above

        require_one_process()
        return DeviceRunner(self)
