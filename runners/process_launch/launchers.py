"""Command lines that start a process for each GPU (mpirun, mpiexec and srun), and checks of ranks' hosts."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chorale.runners.process_launch.slurm import node_name
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

STEP = "$CHORALE_STEP"
"""Shell variable that contains the name of the Slurm steps that a launch starts."""

MPI_TYPE = "$CHORALE_MPI"
"""Shell variable that contains the kind of MPI that srun sets up for these steps."""

Launcher = Literal["openmpi", "mpich", "srun"]
"""Open MPI's mpirun, the mpiexec of MPICH and its derivatives, or Slurm's srun."""


def gpus_per_machine(topology: Topology) -> int | None:
    """Return the ranks per box if node ids have the form `BOX.GPU` and all boxes have equal sizes, or else None."""
    boxes = Counter(name.rpartition(".")[0] for name in topology.node_ids[: topology.compute_count])
    sizes = set(boxes.values())
    return sizes.pop() if len(sizes) == 1 and "" not in boxes else None


def gpus_per_node(ranks: int, hosts: Sequence[str], per_node: int | None) -> int:
    """Return the number of ranks per node: `per_node`, by default the ranks divided by the number of `hosts`.

    Raises InvalidInput unless every rank gets a GPU and every GPU of the hosts gets a rank.
    """
    per_node = per_node or -(-ranks // max(1, len(hosts)))
    if hosts and len(hosts) * per_node != ranks:
        there = f"{len(hosts)} hosts with {per_node} GPUs"
        raise InvalidInput(f"the hosts must have exactly {ranks} GPUs, one per rank", there, "name other hosts")
    if ranks % per_node:
        raise InvalidInput(f"gpus_per_node must divide the {ranks} ranks", per_node, "choose a divisor")
    return per_node


def launch_command(
    launcher: Launcher, ranks: int, hosts: Sequence[str], per_node: int | None, mpi: str = MPI_TYPE
) -> list[str]:
    """Return the launcher's command line; followed by a command, it runs that once per rank, in the order of `hosts`.

    hosts:    empty for the current node or allocation
    per_node: ranks per node; None for the number of ranks on each of `hosts`
    mpi:      process-management interface that srun offers to MPI, see `srun --mpi=list`

    A shell must expand the variables in srun's command. srun's step may share resources with other steps of the job.
    srun keeps the order of nodes only if it is given every rank's node. Without `hosts`, the command specifies the
    number of nodes and the distribution of ranks: otherwise srun would use all nodes and the site's default.
    """
    per_node = gpus_per_node(ranks, hosts, per_node)
    if launcher == "openmpi":
        slots = ["--host", ",".join(f"{host}:{per_node}" for host in hosts)] if hosts else []
        return ["mpirun", "-np", str(ranks), "--map-by", f"ppr:{per_node}:node", *slots]
    if launcher == "mpich":
        named = ["-hosts", ",".join(hosts)] if hosts else []
        return ["mpiexec", "-n", str(ranks), "-ppn", str(per_node), *named]
    command = ["srun", f"--mpi={mpi}", "--overlap", "--kill-on-bad-exit=1", f"--job-name={STEP}"]
    command += [f"--nodes={ranks // per_node}", f"--ntasks={ranks}"]
    if hosts:
        nodes = ",".join(host for host in hosts for _ in range(per_node))
        return [*command, "--distribution=arbitrary", f"--nodelist={nodes}"]
    return [*command, f"--ntasks-per-node={per_node}", "--distribution=block"]


BUFFER_VARIABLES: Mapping[str, str] = {
    "Simple": "NCCL_BUFFSIZE",
    "LL": "NCCL_LL_BUFFSIZE",
    "LL128": "NCCL_LL128_BUFFSIZE",
}
"""Protocol -> environment variable for the size of a connection's buffer."""


@dataclass(frozen=True, slots=True)
class RankHost:
    """The host that a rank reports: its main name, and all names and addresses except loopback addresses."""

    name: str
    aliases: frozenset[str]

    @staticmethod
    def of_words(words: Sequence[str]) -> RankHost:
        """Return the host with the names `words`; the first is its main name."""
        return RankHost(words[0], frozenset(words))

    def is_called(self, host: str) -> bool:
        """Return whether `host`, as a user wrote it, is this host; domains are ignored."""
        short = {name.partition(".")[0] for name in self.aliases if not name[:1].isdigit()} | self.aliases
        if host in self.aliases or host.partition(".")[0] in short or host == "localhost" or host.startswith("127."):
            return True
        try:
            return socket.gethostbyname(host) in self.aliases
        except OSError:
            return False


def this_host() -> RankHost:
    """Return this process's host: Slurm's name within a job, else its own."""
    name, addresses = socket.gethostname(), []
    with contextlib.suppress(OSError):
        addresses = socket.gethostbyname_ex(name)[2]
    return RankHost.of_words([node_name(), name, *addresses])


def placement_fault(hosts: Sequence[str], per_host: int, ranks: Mapping[int, RankHost]) -> str | None:
    """Return a line that says which rank is on the wrong host; None if no rank is.

    hosts: the ranks' hosts as the user named them, `per_host` ranks on each; empty to check only the number per host
    ranks: host that each rank has reported; may lack ranks that have not reported yet
    """
    for rank, actual in sorted(ranks.items()):
        if hosts and not actual.is_called(hosts[rank // per_host]):
            asked = f"instead of {hosts[rank // per_host]}"
            return f"rank {rank} ran on {actual.name} {asked}: the launcher chose other hosts or another order"
        first = ranks.get(rank // per_host * per_host, actual)
        if first.name != actual.name:
            begun = f"{per_host} ranks were to share a host, but ranks {rank // per_host * per_host} and {rank} ran on"
            return f"{begun} {first.name} and {actual.name}"
    return None


def host_names(ranks: Mapping[int, RankHost]) -> str | None:
    """Return the names of the ranks' hosts in rank order, without consecutive duplicates; None if no host is known."""
    names = [ranks[rank].name for rank in sorted(ranks)]
    return ",".join(name for index, name in enumerate(names) if names[index - 1 : index] != [name]) or None
