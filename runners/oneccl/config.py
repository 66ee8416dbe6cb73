"""Declares the oneccl runner and its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import Capabilities, FabricConfig, MeasurerRequest
from chorale.runners.oneccl.install import DEFAULT_VERSION, Version
from chorale.runners.process_launch.slurm import require_one_process
from chorale.synth.collective import CollectiveName
from chorale.synth.topology.topology import Topology

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "recursive_doubling", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "flat"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("double_tree", "naive"),
    CollectiveName.REDUCE: ("tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""Collective -> oneCCL algorithms; at every size, one of them is oneCCL's fastest."""


class OneCclConfig(FabricConfig):
    """Options of the oneccl runner; see `OneCclRunner`."""

    name: ClassVar[str] = "oneccl"
    summary: ClassVar[str] = "over oneCCL, on the fabric that is up or a cluster"
    preconditions: ClassVar[tuple[str, ...]] = ("linux", "oneccl", "g++")
    capabilities: ClassVar[Capabilities] = Capabilities(buffers=True)

    version: Version = Field(default=DEFAULT_VERSION, description="Version of oneCCL.")

    @property
    def uses_cluster(self) -> bool:
        """Return whether neither a fabric nor loopback is named, so that a cluster may be the network."""
        return self.fabric is None and self.where not in ("fabric", "loopback")

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ALGORITHMS.get(collective, ())

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.oneccl.runner import OneCclRunner  # noqa: PLC0415 - only needed to run something

        require_one_process()
        return OneCclRunner(self.fabric, self.where, version=self.version)
