"""Options of commands that make a network of a Slurm cluster's switches, and of the dump of one of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.formats.files import dumped_machine
from chorale.synth.topology.formats.machine_network import Machine
from chorale.synth.topology.formats.slurm import (
    SlurmNodes,
    SlurmTree,
    parse_slurm_tree,
    slurm_gpu_topology,
    slurm_topology,
)
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import read_file

NicRate = Annotated[str | None, typer.Option("--nic-gbps", metavar="G", help="Gbit/s of every NIC [as dumped].")]
MachineDump = Annotated[
    str | None,
    typer.Option("--machine", metavar="DUMP", help="A dump (XML) of NCCL or RCCL of one of the nodes: ranks are GPUs."),
]
Oversubscription = Annotated[
    str | None,
    typer.Option(metavar="R", help="What nodes below a switch send together, over what its uplink carries [1]."),
]


@dataclass(frozen=True, slots=True)
class SlurmNetwork:
    """Switches of a cluster, and how its nodes send.

    machine: each node, whose GPUs are ranks; None where nodes are
    rate:    GB/s of every NIC; None for those of the dump
    """

    tree: SlurmTree
    machine: Machine | None
    rate: Fraction | None
    oversubscription: Fraction
    spec: str

    def topology(self, names: tuple[str, ...]) -> Topology:
        """Return the network of the nodes `names`, of all if there are none."""
        nodes = SlurmNodes(self.tree, names, self.oversubscription)
        if self.machine is not None:
            return slurm_gpu_topology(nodes, self.machine, self.rate, self.spec)
        if self.rate is None:
            raise InvalidInput(
                "Slurm does not know how fast nodes send", "no --nic-gbps", "add --nic-gbps 200, or --machine"
            )
        return slurm_topology(nodes, self.rate, self.spec)

    def hosts(self, names: tuple[str, ...]) -> list[str]:
        """Return the nodes `names` in the order of their ranks."""
        return SlurmNodes(self.tree, names).ranked


def slurm_network(file: str, machine: str | None, nic_gbps: str | None, oversubscription: str | None) -> SlurmNetwork:
    """Return what the files and options of a command say. InvalidInput for what cannot be."""
    dump = None
    if machine is not None and (dump := dumped_machine(read_file(machine), f"file:{machine}")) is None:
        way_out = "run NCCL or RCCL on a node with NCCL_TOPO_DUMP_FILE set"
        raise InvalidInput("--machine must be a dump of NCCL or RCCL", machine, way_out)
    ratio = Fraction(1) if oversubscription is None else parse_rational(oversubscription, "--oversubscription")
    if ratio < 1:
        raise InvalidInput(
            "--oversubscription must be at least 1", oversubscription, "write 2 for half of what is below"
        )
    return SlurmNetwork(parse_slurm_tree(read_file(file)), dump, nic_bandwidth(nic_gbps), ratio, f"file:{file}")


def nic_bandwidth(text: str | None) -> Fraction | None:
    """Return GB/s from text in Gbit/s."""
    if text is None:
        return None
    bandwidth = parse_rational(text, "--nic-gbps")
    if bandwidth <= 0:
        raise InvalidInput("--nic-gbps must be positive", text, "give the Gbit/s of one NIC")
    return bandwidth / 8
