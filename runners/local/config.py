"""Declares the local runner and its options."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import SERVER_ONLY, Capabilities, Fractional, MeasurerRequest, RunnerConfig
from chorale.runners.process_launch.slurm import require_one_process


class LocalConfig(RunnerConfig):
    """Options of the local runner, which runs programs in processes on this machine; see `LocalRunner`."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "real processes on this machine, with links of a given rate"
    preconditions: ClassVar[tuple[str, ...]] = ("python", "linux")
    capabilities: ClassVar[Capabilities] = Capabilities(unprivileged=True, any_program=True, switches=True)
    not_compared: ClassVar[frozenset[str]] = frozenset({"probe"})

    where: Literal["emulated", "fabric", "loopback"] | None = Field(
        default=None,
        description="Over links that a process emulates (the default), a fabric (if one is named), or with shared "
        "memory, which plans of MSCCL++ need.",
    )
    fabric: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Name of the fabric; by default the one for the topology."
    )
    link_mbps: Annotated[float, Field(ge=0.001, le=10**6), Fractional] | None = Field(
        default=None,
        description="Rate of an emulated link in Mbit/s; by default the rate that a probe of this machine finds.",
    )
    probe: bool = Field(default=True, description="Whether to test that this machine can emulate `link_mbps`.")

    @property
    def link_rate_mbps(self) -> float | None:
        return self.link_mbps

    @property
    def executes_plans(self) -> bool:
        return self.where == "loopback"

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.local.runner import LocalRunner  # noqa: PLC0415 - only needed to run something

        require_one_process()
        return LocalRunner(self, home)
