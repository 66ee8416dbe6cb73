"""Declares the nccl runner, and the options of all runners with a process for each GPU."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from chorale.runners.api.base import ResourceRequest, Runner
from chorale.runners.api.config import (
    FROM_REQUESTS,
    SERVER_ONLY,
    Capabilities,
    MeasurerRequest,
    NameList,
    RunnerConfig,
    VariableList,
)
from chorale.runners.nccl.parameters import CALL_CONFIG_SINCE, DEFAULT, SYMMETRIC, Version, settings_fault
from chorale.runners.process_launch.slurm import TASK_RESOURCE, gpus_per_machine, gpus_per_node, require_one_process
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.topology.topology import Topology


class GpuRanksConfig(RunnerConfig, ABC):
    """Base class for the options of runners that run a library with NCCL's interface in one process per GPU."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"address"})

    launcher: Annotated[Literal["local", "ray", "srun", "openmpi", "mpich"], SERVER_ONLY] = Field(
        default="local",
        description="How to start a process per GPU: on this machine, on Ray nodes, by srun, mpirun or mpiexec.",
    )
    hosts: Annotated[list[str], NameList, SERVER_ONLY] = Field(
        default=[], description="Nodes in the order of their ranks, for mpirun, mpiexec and srun."
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="GPUs per node; default: from the hosts or the topology's boxes. 1 lets ranks share a GPU.",
    )
    address: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Address at which nodes reach this process; default: its host name."
    )
    iterations: int = Field(
        default=20, ge=1, le=10**5, description="Number of consecutive calls that are timed together."
    )
    variables: Annotated[dict[str, str], VariableList, SERVER_ONLY] = Field(
        default={},
        description="Environment of ranks, such as NCCL_SOCKET_IFNAME: eth0; {rank} in values is the rank's number.",
    )
    memory: Annotated[Literal["gpu", "host"], SERVER_ONLY] = Field(
        default="gpu", description="host: for a library that replaces NCCL on machines without a GPU."
    )

    @property
    def uses_cluster(self) -> bool:
        return self.launcher == "ray"

    @property
    @abstractmethod
    def libraries(self) -> tuple[str, str]:
        """Return the library with NCCL's interface, and the path of the CUDA or HIP runtime ("" to search for it)."""

    def rank_options(self) -> dict[str, Any]:
        """Return name -> value of the options that ranks need: memory, iterations, per_call, cuda_graph, torch."""
        names = ("memory", "iterations", "per_call", "cuda_graph", "torch")
        return {name: getattr(self, name, None) for name in names}

    def own_variables(self) -> dict[str, str]:
        """Return environment variables that all ranks need, in addition to the option `variables`."""
        return {}

    def for_network(self, topology: Topology) -> Self:
        if self.gpus_per_node is not None:
            return self
        ranks, hosts = topology.compute_count, len(self.hosts)
        per_node = -(-ranks // hosts) if hosts else gpus_per_machine(topology) or ranks
        return self.model_copy(update={"gpus_per_node": per_node})

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        """Return a request for `request.gpus` GPUs or, if that is None, one GPU per rank on a node (none if `memory` is
        host). If the launcher is Ray, the request has no GPUs, because Ray reserves them for each measurement.
        """
        node = request.node
        if self.launcher == "ray":
            return ResourceRequest(node.cpus, patience_s=node.patience_s)
        gpus = request.gpus
        if gpus is None and self.memory == "gpu":
            gpus = self.for_network(topology).gpus_per_node
        return ResourceRequest(node.cpus, gpus or 0.0, node.resources, node.labels, node.patience_s)

    def check_plan(self, request: MeasurerRequest, topology: Topology) -> None:
        config, ranks, from_ray = self.for_network(topology), topology.compute_count, self.launcher == "ray"
        if self.hosts and self.launcher in ("local", "ray"):
            value, way_out = ",".join(self.hosts), "set `launcher` to openmpi, mpich or srun, or leave out hosts"
            raise InvalidInput(f"the launcher {self.launcher} chooses the nodes itself", value, way_out)
        per_node = gpus_per_node(ranks, config.hosts, config.gpus_per_node)
        if self.launcher == "local" and self.memory == "gpu" and self.gpus_per_node is None and ranks > per_node:
            rule = f"{{}} need {ranks // per_node} hosts of {per_node} GPUs"
            section = "runner" if self.name == "nccl" else f"runner.{self.name}"
            raise InvalidInput(rule, f"{ranks} ranks", f"set `{section}.launcher` and `{section}.hosts`")
        if from_ray and request.gpus not in (None, per_node):
            rule = "campaign key `runner.needs.gpus`: each node that Ray lends must have a GPU for each of its ranks"
            raise InvalidInput(rule, f"{request.gpus:g} GPUs for {per_node} ranks", "leave it out")
        several = from_ray or (self.launcher != "local" and ranks > per_node)
        has_nodes_each = TASK_RESOURCE in request.node.resources and not from_ray
        if several and request.count > 1 and not has_nodes_each:
            rule = "campaign key `runner.at_once`: launches over several nodes run one at a time, not {}"
            raise InvalidInput(rule, request.count, "leave it at 1")


class NcclConfig(GpuRanksConfig):
    """Options of the nccl runner: GPUs, library and timing; see the first part of docs/guide/gpus.md."""

    name: ClassVar[str] = "nccl"
    summary: ClassVar[str] = (
        "stock NCCL or RCCL: its own collectives with given settings, and programs as sends and receives"
    )
    preconditions: ClassVar[tuple[str, ...]] = ("gpus",)
    capabilities: ClassVar[Capabilities] = Capabilities(any_program=True, library_settings=True)

    library: Annotated[str, SERVER_ONLY] = Field(
        default="nccl", description="nccl (PyTorch's library takes precedence), rccl, or the path of the library."
    )
    runtime: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Path of CUDA's or HIP's runtime library, if it is not found automatically."
    )
    version: Annotated[str | None, FROM_REQUESTS] = Field(
        default=None,
        pattern=r"^2\.[0-9]{1,2}(\.[0-9]{1,2})?$",
        description="Version of the library, such as 2.30; --dry-run omits settings that this version lacks.",
    )
    in_place: bool | None = Field(
        default=None,
        description="Whether the library works in place; default: as for PyTorch, allgather and reduce_scatter do not.",
    )

    torch: Annotated[str | None, SERVER_ONLY] = Field(
        default=None,
        pattern="^[a-z][a-z0-9_]*$",
        description="Backend of torch.distributed that makes the calls, such as nccl; by default Chorale makes them.",
    )
    per_call: bool = Field(
        default=False,
        description="Whether each call gets its settings (ncclCollConfig_t, NCCL 2.31) instead of a tuner file.",
    )
    cuda_graph: bool = Field(default=False, description="Whether the timed calls are captured in one CUDA graph.")

    @property
    def libraries(self) -> tuple[str, str]:
        return self.library, self.runtime or ""

    def own_variables(self) -> dict[str, str]:
        from chorale.runners.nccl.plugin import tuner_plugin  # noqa: PLC0415 - only needed to run something

        return {"NCCL_TUNER_PLUGIN": str(tuner_plugin())}

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return (DEFAULT,)

    def settings_fault(self, collective: CollectiveName, settings: LibrarySettings, boxes: int) -> str | None:
        name = settings.algorithm
        if name == "nvls_tree" and boxes == 1:
            return "nvls_tree needs several boxes"
        if name == "nvls" and boxes > 1 and "NCCL_COLLNET_ENABLE" not in self.variables:
            return "nvls on several boxes needs CollNet, which NCCL_COLLNET_ENABLE in `runner.variables` allows"
        if name == SYMMETRIC and boxes > 1 and collective is CollectiveName.ALLREDUCE:
            return "symmetric kernels for allreduce need one box"
        numbers = None if self.version is None else [int(number) for number in self.version.split(".")]
        version = None if numbers is None else (numbers[0], numbers[1])
        return self.fault_with(collective, settings, version, "rccl" in Path(self.library).name)

    def fault_with(
        self, collective: CollectiveName, settings: LibrarySettings, version: Version | None, is_rccl: bool
    ) -> str | None:
        """Return a one-line reason why ranks with this library version cannot apply `settings`; None if they can."""
        if self.per_call and (is_rccl or (version is not None and version < CALL_CONFIG_SINCE)):
            return "`per_call` needs NCCL 2.31"
        if self.per_call and settings.chunk_bytes is not None:
            return "chunk_bytes needs rows of the tuner, not `per_call`"
        if self.torch is not None and (self.per_call or settings.algorithm == SYMMETRIC):
            return "symmetric kernels and `per_call` need calls without `torch`"
        return settings_fault(collective, settings, version, is_rccl)

    def works_in_place(self, collective: CollectiveName) -> bool:
        return collective not in SPLIT_BY_RANK if self.in_place is None else self.in_place

    def conditions(self) -> dict[str, Any]:
        return {**super().conditions(), "library": Path(self.library).name}

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.nccl.runner import NcclRunner  # noqa: PLC0415 - only needed to run something

        require_one_process()
        return NcclRunner(self, (request or MeasurerRequest()).node)
