"""Declares the mpi runner and its options."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import SERVER_ONLY, Capabilities, FabricConfig, MeasurerRequest
from chorale.synth.collective import CollectiveName
from chorale.synth.topology.topology import Topology


class MpiConfig(FabricConfig):
    """Options of the mpi runner; see `MpiRunner`."""

    name: ClassVar[str] = "mpi"
    summary: ClassVar[str] = "over MPI, on the fabric that is up or a cluster"
    capabilities: ClassVar[Capabilities] = Capabilities(any_program=True)
    preconditions: ClassVar[tuple[str, ...]] = ("mpi4py", "mpiexec")

    hosts: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Hosts of a cluster, a comma list or @FILE; by default those of the scheduler's job."
    )
    transport: Literal["mpi", "tcp"] = Field(
        default="mpi",
        description="Transport of programs: MPI messages, or the engine's TCP (shared memory within a host).",
    )
    interface: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Network device of the engine's TCP; by default the first that is up."
    )

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("mpi",)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.mpi.runner import MpiRunner  # noqa: PLC0415 - only needed to run something

        return MpiRunner(self.fabric, self.where, self.hosts, self.transport, self.interface)
