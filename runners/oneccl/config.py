"""The oneccl runner as it is declared."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from chorale.runners.api.base import Runner
from chorale.runners.api.config import Capabilities, MeasurerRequest
from chorale.runners.fabric.config import FabricConfig


class OneCclConfig(FabricConfig):
    """Options of the oneccl runner; see `OneCclRunner`."""

    name: ClassVar[str] = "oneccl"
    summary: ClassVar[str] = "over oneCCL, on the fabric that is up or a cluster"
    preconditions: ClassVar[tuple[str, ...]] = ("linux", "oneccl", "g++")
    capabilities: ClassVar[Capabilities] = Capabilities(buffers=True)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.oneccl.runner import OneCclRunner  # noqa: PLC0415 - only who runs something pays for it

        return OneCclRunner(self.fabric, self.where, home=home)
