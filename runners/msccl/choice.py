"""From the declared options of the msccl runner to its jobs and the nodes that they run on."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from chorale.runners.msccl.cluster import GpuCluster
from chorale.runners.msccl.command import gpus_per_node
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.options import JobOptions, Launcher
from chorale.runners.msccl.runner import MscclRunner
from chorale.runners.needs import ResourceRequest
from chorale.runners.runner_config import MeasurerRequest
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology


def msccl_runner(config: MscclConfig, node: ResourceRequest) -> MscclRunner:
    """Return the runner. node: what each node of a Ray cluster must have besides GPUs, where the launcher is `ray`.

    Raises InvalidInput for what `JobOptions` refuses.
    """
    folder = None if config.shared_folder is None else Path(config.shared_folder)
    return MscclRunner(job_options(config), folder, cluster=_lender(config, node))


def job_options(config: MscclConfig) -> JobOptions:
    """Return how jobs are launched; InvalidInput for names and numbers that cannot be."""
    if config.takes_nodes_from_ray and config.hosts:
        raise InvalidInput("the launcher ray chooses the nodes itself", ",".join(config.hosts), "leave out hosts")
    return JobOptions(
        sizes_bytes=(1,),  # those of each request take its place
        runtime=config.runtime,
        launcher="mpich" if config.takes_nodes_from_ray else cast(Launcher, config.launcher),
        hosts=tuple(config.hosts),
        gpus_per_node=config.gpus_per_node,
        tests_folder=config.tests_folder,
        library_folder=config.library_folder,
        buffer_bytes=config.buffer_bytes,
        iterations=config.iterations,
        environment=dict(config.variables),
    )


def check_gpus(config: MscclConfig, request: MeasurerRequest, topology: Topology) -> None:
    """Raise InvalidInput where hosts, GPUs and ranks of a campaign do not go together."""
    ranks = topology.compute_count
    per_node = gpus_per_node(ranks, job_options(config))
    from_ray = config.takes_nodes_from_ray
    if from_ray and request.gpus not in (None, per_node):
        rule = "campaign key `runner.needs.gpus`: each node that Ray lends must have a GPU for each of its ranks"
        raise InvalidInput(rule, f"{request.gpus:g} GPUs for {per_node} ranks", "leave it out")
    several = from_ray or ranks > per_node
    if several and request.count > 1:
        rule = "campaign key `runner.at_once`: launches over several nodes must not share them"
        raise InvalidInput(rule, request.count, "leave it at 1")
    if several and config.shared_folder is None:
        rule = "campaign key `runner.msccl.shared_folder`: jobs on several nodes need a folder that all of them see"
        raise InvalidInput(rule, "none", "name one, such as /shared/tmp")


def _lender(config: MscclConfig, node: ResourceRequest) -> GpuCluster | None:
    """Return what lends nodes; their CPUs stay free for launches, whatever a measurer holds."""
    if not config.takes_nodes_from_ray:
        return None
    from chorale.runners.ray_gpus import RayGpuCluster  # noqa: PLC0415 - Ray is slow to import

    return RayGpuCluster(ResourceRequest(0, 0, node.resources, node.labels))
