"""The device runner as it is declared."""

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
"""The library of torch by the kind of memory."""


class DeviceConfig(RunnerConfig):
    """Options of the device runner; see `DeviceRunner`."""

    name: ClassVar[str] = "device"
    summary: ClassVar[str] = "plans as one kernel on the GPUs of one machine, beside the library's collectives"
    preconditions: ClassVar[tuple[str, ...]] = ("gpus",)

    memory: Literal["gpu", "host"] = Field(
        default="gpu",
        description="host: CPUs stand in for GPUs, to try a campaign without one; its times say nothing about GPUs.",
    )
    iterations: int = Field(default=20, ge=1, le=10**5, description="Calls in a row that are timed together.")

    @property
    def executes_plans(self) -> bool:
        return True

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return (LIBRARIES[self.memory],)

    def lowering(self) -> LoweringOptions:
        return LoweringOptions(TARGET)

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        """Return a GPU for each rank, none where CPUs stand in."""
        node = request.node
        gpus = 0.0 if self.memory == "host" else float(topology.compute_count)
        gpus = gpus if request.gpus is None else request.gpus
        return ResourceRequest(node.cpus, gpus, node.resources, node.labels, node.patience_s)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.device.runner import DeviceRunner  # noqa: PLC0415 - only who runs something pays for it
        from chorale.runners.process_launch.slurm import require_one_process  # noqa: PLC0415 - as above

        require_one_process()
        return DeviceRunner(self.memory, self.iterations)
