"""The section of a campaign file that says where programs are measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from synth.lowering.options import MOST_PROCESSORS
from tuner.campaigns.section import Section


class NeedsSection(Section):
    """What a node of the Ray cluster must have to measure on it; held as long as the campaign runs."""

    cpus: float = Field(default=1, gt=0, description="CPUs.")
    gpus: float | None = Field(
        default=None,
        ge=0,
        description="GPUs; by default as many as ranks run on a node (msccl), or none. 0 where Ray knows of no GPUs.",
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="Amounts of the cluster's own resources; one that a fabric has once keeps others off it.",
    )
    labels: dict[str, str] = Field(default={}, description="Labels that the node must carry.")
    patience_s: float = Field(
        default=30, gt=0, le=86400, description="How long to wait for such a node; more where nodes come on demand."
    )


class MscclSection(Section):
    """How the msccl runner reaches its GPUs; docs/msccl.md says what a cluster needs."""

    runtime: Literal["msccl", "executor", "rccl"] = Field(
        default="msccl", description="The library that executes programs; it decides their dialect."
    )
    launcher: Literal["openmpi", "mpich", "srun", "ray"] = Field(
        default="openmpi",
        description="What starts a process for each GPU: mpirun, mpiexec, Slurm, or MPICH on nodes that Ray lends.",
    )
    hosts: list[str] = Field(
        default=[], description="Nodes in the order of their ranks; by default this one, or the allocation."
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, description="By default what the hosts, or the boxes of the topology, come to."
    )
    tests_folder: str | None = Field(default=None, description="Folder of nccl-tests on the nodes; else the PATH.")
    library_folder: str | None = Field(default=None, description="Folder of the runtime's library on the nodes.")
    shared_folder: str | None = Field(
        default=None, description="Folder that all nodes see under one path, for jobs; needed on several nodes."
    )
    iterations: int = Field(default=50, ge=1, le=10**6, description="Calls that a launch times; a repetition each.")
    variables: dict[str, str] = Field(
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
        le=MOST_PROCESSORS,
        description="Multiprocessors of a GPU, the thread blocks that run at once: programs have no more. Default 108.",
    )


class RunnerSection(Section):
    """Where programs are measured."""

    kind: Literal["local", "simulated", "recorded", "oneccl", "mpi", "msccl"] = Field(
        default="local",
        description=(
            "local: real processes with paced links on this machine; simulated: a cost model; recorded: measurements "
            "of an earlier run on GPUs; oneccl, mpi: over these libraries, on the fabric that is up or a cluster; "
            "msccl: GPUs."
        ),
    )
    fabric: str | None = Field(
        default=None, description="oneccl and mpi only: name of the fabric; by default the one for the topology."
    )
    where: Literal["fabric", "cluster", "loopback"] | None = Field(
        default=None, description="oneccl and mpi only: by default a fabric if one is up, else the cluster."
    )
    msccl: MscclSection = Field(default=MscclSection(), description="msccl only: how it reaches its GPUs.")
    link_mbps: float | None = Field(
        default=None,
        gt=0,
        le=10**6,
        description="Rate of a link in Mbit/s; by default what a probe finds (local) or 1000 (simulated).",
    )
    alpha_us: float = Field(default=0, ge=0, le=10**6, description="Simulated only: cost of a message, microseconds.")
    link_latency_us: float = Field(default=0, ge=0, le=10**6, description="Simulated only: latency of a link.")
    timeout_s: float = Field(default=60.0, gt=0, le=86400, description="Watchdog of one measurement, in seconds.")
    needs: NeedsSection = Field(default=NeedsSection(), description="What a node must have to measure on it.")
    at_once: int = Field(
        default=1, ge=1, le=64, description="Nodes that measure at once; live runners never share a machine."
    )
