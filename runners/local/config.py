"""The local runner as it is declared."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import SERVER_ONLY, Capabilities, Fractional, MeasurerRequest, RunnerConfig
from chorale.runners.process_launch.slurm import require_one_process


class LocalConfig(RunnerConfig):
    """Options of the local runner; see `LocalRunner`."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "real processes with paced links on this machine"
    preconditions: ClassVar[tuple[str, ...]] = ("python", "linux")
    capabilities: ClassVar[Capabilities] = Capabilities(
        overlap=True, unprivileged=True, any_program=True, switches=True
    )
    not_compared: ClassVar[frozenset[str]] = frozenset({"probe"})

    where: Literal["emulated", "fabric", "loopback"] | None = Field(
        default=None,
        description="On links that a process emulates (the default), on the fabric that is up (where one is named), "
        "or by shared memory, where plans of MSCCL++ are executed.",
    )
    fabric: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Name of the fabric; by default the one for the topology."
    )
    link_mbps: Annotated[float, Field(ge=0.001, le=10**6), Fractional] | None = Field(
        default=None,
        description="Rate of an emulated link in Mbit/s; by default the one that a probe finds this machine to carry.",
    )
    probe: bool = Field(default=True, description="Whether to find out if this machine carries `link_mbps`.")

    @property
    def link_rate_mbps(self) -> float | None:
        return self.link_mbps

    @property
    def executes_plans(self) -> bool:
        return self.where == "loopback"

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.local.runner import LocalRunner  # noqa: PLC0415 - only who runs something pays for it

        require_one_process()
        where = self.where or ("fabric" if self.fabric else None)
        return LocalRunner(self.link_mbps, home=home, probe=self.probe, where=where, fabric=self.fabric)
