"""The msccl runner as it is declared."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from chorale.runners.api.base import ResourceRequest, Runner
from chorale.runners.api.config import (
    SERVER_ONLY,
    ByteCount,
    Capabilities,
    MeasurerRequest,
    NameList,
    RunnerConfig,
    VariableList,
)
from chorale.runners.msccl.commands import MSCCL, require_runtime
from chorale.runners.process_launch.launchers import gpus_per_machine
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.options import MAX_PROCESSORS, LoweringOptions
from chorale.synth.topology.topology import Topology


class MscclConfig(RunnerConfig):
    """How the msccl runner reaches its GPUs; docs/guide/gpus.md describes what a cluster needs."""

    name: ClassVar[str] = "msccl"
    summary: ClassVar[str] = "GPUs"
    preconditions: ClassVar[tuple[str, ...]] = ("gpus", "gpu launcher", "nccl-tests")
    capabilities: ClassVar[Capabilities] = Capabilities(protocols=True, buffers=True, launches_repetitions=True)
    is_nested: ClassVar[bool] = True
    not_compared: ClassVar[frozenset[str]] = frozenset({"shared_folder", "mpi"})

    runtime: Literal["msccl", "executor", "rccl"] | None = Field(
        default=None,
        description="The library that executes programs; it decides their target. Default: the program's, or msccl.",
    )
    launcher: Annotated[Literal["openmpi", "mpich", "srun", "ray"], SERVER_ONLY] = Field(
        default="openmpi",
        description="What starts a process for each GPU: mpirun, mpiexec, Slurm, or MPICH on nodes that Ray lends.",
    )
    hosts: Annotated[list[str], NameList, SERVER_ONLY] = Field(
        default=[], description="Nodes in the order of their ranks; by default this one, or the allocation."
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, description="By default what the hosts, or the boxes of the topology, come to."
    )
    tests_folder: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Folder of nccl-tests on the nodes; else the PATH."
    )
    library_folder: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Folder of the runtime's library on the nodes."
    )
    shared_folder: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Folder that all nodes see under one path, for jobs; needed on several nodes."
    )
    mpi: Annotated[str | None, SERVER_ONLY] = Field(
        default=None,
        description="What srun sets up for MPI (`srun --mpi=list`); by default what the test programs take.",
    )
    iterations: int = Field(default=50, ge=1, le=10**6, description="Calls that a launch times; a repetition each.")
    variables: Annotated[dict[str, str], VariableList, SERVER_ONLY] = Field(
        default={}, description="Variables of every process, such as NCCL_SOCKET_IFNAME: eth0."
    )
    in_place: bool = Field(
        default=True,
        description=(
            "Whether input and output of calls share memory: programs serve one kind only. PyTorch's all_reduce is in "
            "place, its all_gather and reduce_scatter are not."
        ),
    )
    sm_count: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PROCESSORS,
        description="Multiprocessors of a GPU, the thread blocks that run at once: programs have no more. Default 108.",
    )
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, such as 4MiB; by default what the runtime takes."
    )

    @property
    def takes_nodes_from_ray(self) -> bool:
        """Return whether Ray lends nodes with GPUs for each measurement."""
        return self.launcher == "ray"

    @property
    def uses_cluster(self) -> bool:
        return self.takes_nodes_from_ray

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("nccl",)

    def lowering(self) -> LoweringOptions:
        runtime = require_runtime(self.runtime or MSCCL.name)
        blocks = [most for most in (self.sm_count, runtime.threadblocks) if most is not None]
        return LoweringOptions(runtime.target, in_place=self.in_place, sm_count=min(blocks, default=None))

    def for_network(self, topology: Topology) -> Self:
        if self.gpus_per_node is not None:
            return self
        ranks, hosts = topology.compute_count, len(self.hosts)
        per_node = -(-ranks // hosts) if hosts else gpus_per_machine(topology) or ranks
        return self.model_copy(update={"gpus_per_node": per_node})

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        """Return GPUs for the ranks of a node; only a CPU if nodes with GPUs are lent for each measurement."""
        node = request.node
        if self.takes_nodes_from_ray:
            return ResourceRequest(node.cpus, patience_s=node.patience_s)
        gpus = self.for_network(topology).gpus_per_node if request.gpus is None else request.gpus
        return ResourceRequest(node.cpus, gpus or 0.0, node.resources, node.labels, node.patience_s)

    def check_plan(self, request: MeasurerRequest, topology: Topology) -> None:
        from chorale.runners.msccl.runner import check_gpus  # noqa: PLC0415 - only who plans a campaign on GPUs pays for it

        check_gpus(self.for_network(topology), request, topology)

    def conditions(self) -> dict[str, Any]:
        """Return all options except those of this machine, and except `buffer_bytes` if the runtime chooses it."""
        without = {*self.not_compared, *(["buffer_bytes"] if self.buffer_bytes is None else [])}
        return {**self.model_dump(exclude=without), "runtime": self.runtime or MSCCL.name}

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.msccl.runner import msccl_runner  # noqa: PLC0415 - only who runs something pays for it

        return msccl_runner(self, (request or MeasurerRequest()).node)
