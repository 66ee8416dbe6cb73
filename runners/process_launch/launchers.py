"""Command lines that start a process for each GPU: mpirun, mpiexec and srun."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

STEP = "$CHORALE_STEP"
"""The name of the steps of Slurm that a launch starts."""

MPI_TYPE = "$CHORALE_MPI"
"""The kind of MPI that srun sets up for them."""

Launcher = Literal["openmpi", "mpich", "srun"]
"""Open MPI's mpirun, the mpiexec of MPICH and its kin, or Slurm."""


class LaunchOptions(Protocol):
    """launcher: starts the processes; hosts: nodes in the order of their ranks, none for the current node or allocation

    gpus_per_node: None for the number of ranks on each of `hosts`; mpi: kind that srun sets up, see `srun --mpi=list`
    """

    @property
    def launcher(self) -> Launcher: ...
    @property
    def hosts(self) -> Sequence[str]: ...
    @property
    def gpus_per_node(self) -> int | None: ...
    @property
    def mpi(self) -> str | None: ...


def gpus_per_machine(topology: Topology) -> int | None:
    """Return the number of ranks per box if the ids of nodes have the form `BOX.GPU` with equal boxes, else None."""
    boxes = Counter(name.rpartition(".")[0] for name in topology.node_ids[: topology.compute_count])
    sizes = set(boxes.values())
    return sizes.pop() if len(sizes) == 1 and "" not in boxes else None


def gpus_per_node(ranks: int, options: LaunchOptions) -> int:
    """Return how many ranks each node has; InvalidInput unless every rank gets a GPU and every GPU of a host a rank."""
    nodes = len(options.hosts)
    per_node = options.gpus_per_node or -(-ranks // max(1, nodes))
    if nodes and nodes * per_node != ranks:
        there = f"{nodes} hosts with {per_node} GPUs"
        raise InvalidInput(f"the hosts must have exactly {ranks} GPUs, one per rank", there, "name other hosts")
    if ranks % per_node:
        raise InvalidInput(f"gpus_per_node must divide the {ranks} ranks", per_node, "choose a divisor")
    return per_node


def launch_command(ranks: int, options: LaunchOptions) -> list[str]:
    """Return what starts the command that follows it once for each rank, node by node in the order of `hosts`."""
    per_node = gpus_per_node(ranks, options)
    hosts = ",".join(options.hosts)
    if options.launcher == "openmpi":
        slots = ",".join(f"{host}:{per_node}" for host in options.hosts)
        command = ["mpirun", "-np", str(ranks), "--map-by", f"ppr:{per_node}:node"]
        return [*command, "--host", slots] if slots else command
    if options.launcher == "mpich":
        command = ["mpiexec", "-n", str(ranks), "-ppn", str(per_node)]
        return [*command, "-hosts", hosts] if hosts else command
    return srun_command(ranks, per_node, options)


def srun_command(ranks: int, per_node: int, options: LaunchOptions) -> list[str]:
    """Return the command of Slurm's launcher; a shell must expand the variables in it.

    The step may share resources with other steps of the job, such as the one that runs this command. srun keeps an
    order of nodes only if it is given the node of every rank. Otherwise the command gives the number of nodes, because
    srun would use all nodes of a larger allocation, and the distribution of ranks, because a site may have another
    default.
    """
    command = ["srun", f"--mpi={options.mpi or MPI_TYPE}", "--overlap", "--kill-on-bad-exit=1", f"--job-name={STEP}"]
    command += [f"--nodes={ranks // per_node}", f"--ntasks={ranks}"]
    if options.hosts:
        nodes = ",".join(host for host in options.hosts for _ in range(per_node))
        return [*command, "--distribution=arbitrary", f"--nodelist={nodes}"]
    return [*command, f"--ntasks-per-node={per_node}", "--distribution=block"]


BUFFER_VARIABLES: Mapping[str, str] = {
    "Simple": "NCCL_BUFFSIZE",
    "LL": "NCCL_LL_BUFFSIZE",
    "LL128": "NCCL_LL128_BUFFSIZE",
}
"""The size of a connection's buffer; each protocol has its own."""
