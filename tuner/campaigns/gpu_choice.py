"""From the sections `runner.msccl` and `runner.needs` of a campaign to the msccl runner and its nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from runners.msccl.boxes import gpus_per_box
from runners.msccl.choice import RAY, known_launcher, runner_on
from runners.msccl.command import gpus_per_node
from runners.msccl.options import JobOptions
from runners.needs import Needs
from runners.ray.actors import RunnerFactory
from synth.errors import InvalidInput
from synth.topology.topology import Topology
from tuner.campaigns.runner_section import RunnerSection


def gpu_runner(section: RunnerSection, topology: Topology) -> RunnerFactory:
    """Return a picklable recipe of the runner; it asks Ray for nodes where its launcher is Ray."""
    folder = section.msccl.shared_folder
    lent = Needs(0, 0, section.needs.resources, section.needs.labels) if section.msccl.launcher == RAY else None
    return partial(runner_on, job_options(section, topology), None if folder is None else Path(folder), lent)


def measurer_needs(section: RunnerSection, topology: Topology) -> Needs:
    """Return what the actor that holds the runner of a campaign takes of its node.

    Where the launcher is Ray that is a CPU: nodes with GPUs are then lent for each measurement.
    """
    needs = Needs(**section.needs.model_dump(exclude={"gpus"}))
    if section.kind == "msccl" and section.msccl.launcher == RAY:
        return Needs(needs.cpus, patience_s=needs.patience_s)
    gpus = section.needs.gpus
    if gpus is None:
        gpus = _ranks_per_node(section, topology) if section.kind == "msccl" else 0
    return Needs(needs.cpus, gpus, needs.resources, needs.labels, needs.patience_s)


def check_gpus(section: RunnerSection, topology: Topology) -> None:
    """Raise InvalidInput where hosts, GPUs and ranks do not go together, before anything is launched."""
    ranks = topology.compute_count
    per_node = gpus_per_node(ranks, job_options(section, topology))
    from_ray = section.msccl.launcher == RAY
    if from_ray and section.needs.gpus not in (None, per_node):
        rule = "campaign key `runner.needs.gpus`: each node that Ray lends must have a GPU for each of its ranks"
        raise InvalidInput(rule, f"{section.needs.gpus:g} GPUs for {per_node} ranks", "leave it out")
    several = from_ray or ranks > per_node
    if several and section.at_once > 1:
        rule = "campaign key `runner.at_once`: launches over several nodes must not share them"
        raise InvalidInput(rule, section.at_once, "leave it at 1")
    if several and section.msccl.shared_folder is None:
        rule = "campaign key `runner.msccl.shared_folder`: jobs on several nodes need a folder that all of them see"
        raise InvalidInput(rule, "none", "name one, such as /shared/tmp")


def job_options(section: RunnerSection, topology: Topology) -> JobOptions:
    """Return how jobs are launched; InvalidInput for names and numbers that cannot be."""
    wanted = section.msccl
    return JobOptions(
        sizes_bytes=(1,),  # those of each request take its place
        runtime=wanted.runtime,
        launcher=known_launcher(wanted.launcher, wanted.hosts),
        hosts=tuple(wanted.hosts),
        gpus_per_node=_ranks_per_node(section, topology),
        tests_folder=wanted.tests_folder,
        library_folder=wanted.library_folder,
        iterations=wanted.iterations,
        environment=dict(wanted.variables),
    )


def _ranks_per_node(section: RunnerSection, topology: Topology) -> int:
    wanted, ranks = section.msccl, topology.compute_count
    if wanted.gpus_per_node is not None:
        return wanted.gpus_per_node
    return -(-ranks // len(wanted.hosts)) if wanted.hosts else gpus_per_box(topology) or ranks
