"""How many nodes, tasks and GPUs a runner needs for a network, and whether it needs Ray on all of them."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.runners.api.config import RunnerConfig
from chorale.runners.mpi.config import MpiConfig
from chorale.runners.msccl.commands import gpus_per_machine
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.oneccl.config import OneCclConfig
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.slurm.profile import SlurmProfile


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a job asks for; `gpus` of a node, `hosts` where the nodes are named, `ray` whether Ray is to be on them."""

    nodes: int
    tasks_per_node: int
    gpus: int = 0
    hosts: tuple[str, ...] = ()
    ray: bool = False

    def requests(self) -> list[str]:
        """Return the options of sbatch."""
        gpus = [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        hosts = [f"--nodelist={','.join(self.hosts)}"] if self.hosts else []
        return [f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks_per_node}", *gpus, *hosts]


def job_shape(config: RunnerConfig, topology: Topology, profile: SlurmProfile) -> JobShape:
    """Return what a job needs in which `config` measures on `topology`; the profile's numbers come first.

    InvalidInput where the nodes of the profile have no room for the ranks.
    """
    shape = _needed(config, topology)
    nodes = profile.nodes or shape.nodes
    tasks = profile.tasks_per_node or -(-shape.nodes * shape.tasks_per_node // nodes)
    if nodes * tasks < shape.nodes * shape.tasks_per_node:
        ranks = shape.nodes * shape.tasks_per_node
        way_out = "change `nodes` or `tasks_per_node` of the profile"
        raise InvalidInput(f"a job must have a task for each of {ranks} ranks", f"{nodes} nodes of {tasks}", way_out)
    gpus = shape.gpus if profile.gpus_per_node is None else profile.gpus_per_node
    return JobShape(nodes, tasks, gpus, shape.hosts, shape.ray if profile.ray is None else profile.ray)


def _needed(config: RunnerConfig, topology: Topology) -> JobShape:
    ranks = topology.compute_count
    if isinstance(config, MscclConfig):
        per_node = config.for_network(topology).gpus_per_node or ranks
        return JobShape(-(-ranks // per_node), per_node, per_node, tuple(config.hosts), config.takes_nodes_from_ray)
    if isinstance(config, MpiConfig) and config.where in (None, "cluster") and config.fabric is None:
        hosts = _distinct(config.hosts)
        per_node = -(-ranks // len(hosts)) if hosts else gpus_per_machine(topology) or 1
        return JobShape(len(hosts) or -(-ranks // per_node), per_node, hosts=hosts)
    if isinstance(config, OneCclConfig) and config.where == "cluster":
        return JobShape(ranks, 1, ray=True)
    return JobShape(1, 1)


def _distinct(hosts: str | None) -> tuple[str, ...]:
    """Return the names of a comma list; a file of hosts is read in the job."""
    if hosts is None or hosts.startswith("@"):
        return ()
    return tuple(dict.fromkeys(word.partition(":")[0] for word in hosts.split(",") if word))
