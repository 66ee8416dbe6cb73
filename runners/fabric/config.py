"""Options of all runners whose ranks run on a fabric, on a cluster, or side by side on this machine."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Literal

from pydantic import Field

from chorale.runners.api.config import SERVER_ONLY, RunnerConfig


class FabricConfig(RunnerConfig, ABC):
    """Where the ranks run."""

    fabric: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Name of the fabric; by default the one for the topology."
    )
    where: Literal["fabric", "cluster", "loopback"] | None = Field(
        default=None, description="By default a fabric if one is up, else the cluster. Loopback is no network."
    )
