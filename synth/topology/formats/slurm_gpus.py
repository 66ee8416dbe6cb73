"""GPUs of a Slurm cluster: nodes as the dump of one describes them, joined by the cluster's switches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.formats.json_document import ability_members
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.slurm_tree import SlurmNodes
from chorale.synth.topology.topology import Topology

_NUMBERED = re.compile(r"((?:[a-z]+:)?)([0-9]+)(.*)")
_NET = "net:0"


def slurm_gpu_topology(nodes: SlurmNodes, machine: Machine, nic_gb_per_s: Fraction | None, spec: str) -> Topology:
    """Return the network of the GPUs of `nodes`, each of which is like `machine`, ranked in the order of switches.

    Ids are those of `boxes_topology` with the name of the node in place of its number: GPU `n1.0`, NIC `nic:n1.0`.
    Every NIC of a node leads to the switch of the node; links between switches carry what all NICs below carry.
    nic_gb_per_s: of every NIC; None for what the dump says
    Raises InvalidInput for nodes on no switch or on several, and as `boxes_topology` does.
    """
    hosts = nodes.ranked
    boxes = boxes_topology(machine, BoxNetwork(len(hosts), nic_gb_per_s), spec)
    net = boxes.node_ids.index(_NET) if _NET in boxes.node_ids else None
    box_of = [int(_parts(name)[1]) for name in boxes.node_ids]
    names = [_named(name, hosts) for name in boxes.node_ids]
    leaf = {} if net is None else _switch_of_each(nodes)
    links = [
        NamedLink(
            leaf[hosts[box_of[link.dst]]] if link.src == net else names[link.src],
            leaf[hosts[box_of[link.src]]] if link.dst == net else names[link.dst],
            link.bandwidth,
            link.latency_s,
        )
        for link in boxes.links
    ]
    of_a_node = sum(
        (link.bandwidth for link in boxes.links if link.dst == net and box_of[link.src] == 0), start=Fraction(0)
    )
    named = [
        NamedNode(name, boxes.node_kind(index), ability_members(boxes, index))
        for index, name in enumerate(names)
        if index != net
    ]
    named += [NamedNode(name, "switch") for name in nodes.switches()]
    return assemble_topology(spec, boxes.bandwidth_unit, named, [*links, *nodes.between_switches(of_a_node)])


def _parts(node_id: str) -> tuple[str, str, str]:
    """Return kind, box and the rest of the id of a node of `boxes_topology`."""
    match = _NUMBERED.fullmatch(node_id)
    if match is None:
        raise AssertionError(f"ids of boxes have numbers, not {node_id}")
    return match[1], match[2], match[3]


def _named(node_id: str, hosts: Sequence[str]) -> str:
    kind, box, rest = _parts(node_id)
    return f"{kind}{hosts[int(box)]}{rest}"


def _switch_of_each(nodes: SlurmNodes) -> dict[str, str]:
    """Return the switch of every node. InvalidInput for a node on several."""
    hosts, switch_of = set(nodes.ranked), dict[str, str]()
    for lower, upper, _ in nodes.links():
        if lower in hosts and switch_of.setdefault(lower, upper) != upper:
            rule = "a node with GPUs must hang on one switch"
            raise InvalidInput(rule, f"{lower} on {switch_of[lower]} and {upper}", "correct the file of switches")
    return switch_of
