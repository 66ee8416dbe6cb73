"""Reads Slurm's topology (`topology.conf`, or the output of `scontrol show topology`) as nodes and switches.

Also builds the network of the GPUs in a Slurm cluster from its switches and a dump of one node.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from graphlib import TopologicalSorter

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.formats.machine_network import (
    BoxNetwork,
    Fabric,
    Machine,
    boxes_topology,
    cluster_topology,
    without_dead_ends,
)
from chorale.synth.topology.formats.rates import rate
from chorale.synth.topology.topology import Assumption, Topology

MAX_NAMES, MAX_LEVELS, _MAX_NAME, _MAX_DIGITS = 2**20, 32, 255, 20
_WAY_OUT = "give topology.conf of topology/tree, or the output of `scontrol show topology`"
_ITEM = re.compile(r"([A-Za-z0-9_.-]*)(?:\[([0-9,-]+)\])?([A-Za-z0-9_.-]*)(?:,|$)")


@dataclass(frozen=True, slots=True)
class SlurmTree:
    """The switches of a cluster: switch -> nodes or lower switches attached to it, in file order."""

    nodes: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, tuple[str, ...]]

    def ordered_nodes(self) -> list[str]:
        """Return all nodes in an order in which the nodes below each switch (at any level) are consecutive.

        Raises InvalidInput for cycles and deep trees.
        """
        found: dict[str, list[str]] = {}
        names_left = MAX_LEVELS * MAX_NAMES

        def visit(switch: str, levels_left: int) -> list[str]:
            nonlocal names_left
            if switch not in found:
                nodes: dict[str, None] = {}
                for name in self.switches.get(switch, ()):
                    below = visit(name, levels_left - 1) if levels_left else []
                    names_left -= len(below)
                    if not levels_left or names_left < 0:
                        rule = f"switches must form a tree of at most {MAX_LEVELS} levels"
                        raise InvalidInput(rule, switch, _WAY_OUT)
                    nodes |= dict.fromkeys(below)
                found[switch] = list(nodes | dict.fromkeys(self.nodes.get(switch, ())))
            return found[switch]

        below = {name: visit(name, MAX_LEVELS) for name in (*self.switches, *self.nodes)}
        lower = {name for names in self.switches.values() for name in names}
        return list(dict.fromkeys(node for name, nodes in below.items() if name not in lower for node in nodes))


def is_slurm_tree(content: bytes) -> bool:
    return re.search(rb"^\s*SwitchName=", content, re.MULTILINE | re.IGNORECASE) is not None


def parse_slurm_tree(content: bytes) -> SlurmTree:
    """Return the switches in `content`. Raises InvalidInput if a switch has nothing below it or is not described.

    `scontrol` also lists nodes at upper switches; each node is only counted at its lowest switch.
    """
    nodes: dict[str, tuple[str, ...]] = {}
    switches: dict[str, tuple[str, ...]] = {}
    names = 0
    for line in content.decode(errors="replace").splitlines():
        facts = dict(word.partition("=")[::2] for word in line.partition("#")[0].split())
        facts = {key.lower(): value for key, value in facts.items()}
        if "switchname" not in facts:
            continue
        for switch in expanded_names(facts["switchname"]):
            kind = next((kind for kind in ("switches", "nodes") if kind in facts), None)
            if kind is None:
                raise InvalidInput("a switch must have nodes or switches below it", switch, _WAY_OUT)
            below = tuple(expanded_names(facts[kind]))
            (switches if kind == "switches" else nodes)[switch] = below
            names += 1 + len(below)
            if names > MAX_NAMES:
                raise InvalidInput(f"a topology of Slurm must have at most {MAX_NAMES} names", names, _WAY_OUT)
    missing = [name for names in switches.values() for name in names if name not in nodes and name not in switches]
    if missing:
        raise InvalidInput("the switch {} is not described", missing[0], _WAY_OUT)
    if not nodes:
        raise InvalidInput("this topology of Slurm has no switches with nodes", "", _WAY_OUT)
    return SlurmTree(nodes, switches)


def expanded_names(text: str) -> list[str]:
    """Return the names in a list such as `gpu[01-03,7],login`. Raises InvalidInput for malformed lists."""
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None or match.end() == position:
            raise InvalidInput("cannot read the host list '{}'", text[:80], _WAY_OUT)
        before, numbers, after = match.groups()
        if len(before) + len(after) > _MAX_NAME:
            raise InvalidInput(f"a name must have at most {_MAX_NAME} characters", text[:80], _WAY_OUT)
        names += [f"{before}{number}{after}" for number in _numbers(numbers, text)] if numbers else [before + after]
        position = match.end()
        if len(names) > MAX_NAMES:
            raise InvalidInput(f"a list must have at most {MAX_NAMES} names", text[:80], _WAY_OUT)
    return [name for name in names if name]


def _numbers(text: str, whole: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        is_number = first.isdigit() and (last.isdigit() or not dash) and max(len(first), len(last)) <= _MAX_DIGITS
        if not is_number or (dash and int(last) - int(first) > MAX_NAMES):
            raise InvalidInput("cannot read the numbers in brackets: {}", whole[:80], _WAY_OUT)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last if dash else first) + 1)]
    return numbers


@dataclass(frozen=True, slots=True)
class SlurmNodes:
    """Nodes of a Slurm cluster and the switches between them.

    names:            names of the nodes; empty for all nodes in `tree`
    oversubscription: total bandwidth of the nodes below a link between switches, divided by the bandwidth of the link
                      (Slurm does not know the cables)
    """

    tree: SlurmTree
    names: tuple[str, ...] = ()
    oversubscription: Fraction = Fraction(1)

    @property
    def ranked(self) -> list[str]:
        """The chosen nodes in switch order. Raises InvalidInput for a node without a switch."""
        ordered = self.tree.ordered_nodes()
        if unknown := sorted(set(self.names) - set(ordered)):
            raise InvalidInput("the file has no switch for node {}", unknown[0], "choose other nodes")
        chosen = set(self.names or ordered)
        return [node for node in ordered if node in chosen]

    def links(self) -> list[tuple[str, str, int]]:
        """Return (node or switch, switch above it, number of chosen nodes below) for each link.

        Switches that have no chosen nodes below them, or only one neighbour, are omitted.
        """
        ranked = set(self.ranked)
        members = {switch: [node for node in nodes if node in ranked] for switch, nodes in self.tree.nodes.items()}
        links: list[tuple[str, str, int]] = [(node, switch, 1) for switch, below in members.items() for node in below]
        counts = {switch: len(below) for switch, below in members.items()}
        for switch in TopologicalSorter(self.tree.switches).static_order():  # lower switches first
            if switch not in self.tree.switches:
                continue
            children = [child for child in self.tree.switches[switch] if counts.get(child)]
            counts[switch] = sum(counts[child] for child in children)
            links += [(child, switch, counts[child]) for child in children]
        return without_dead_ends(links, ranked)

    def switches(self) -> list[str]:
        """Return the switches in `links`, leaf switches first."""
        used = {name for link in self.links() for name in link[:2]}
        return [name for name in (*self.tree.nodes, *self.tree.switches) if name in used]

    def between_switches(self, node_gb_per_s: Fraction) -> list[NamedLink]:
        """Return the links between switches, with bandwidths for nodes that each send at `node_gb_per_s`."""
        rate, nodes, is_guess = node_gb_per_s / self.oversubscription, set(self.ranked), self.oversubscription == 1
        return [
            NamedLink(lower, upper, rate * width, 0, True, guess=is_guess)
            for lower, upper, width in self.links()
            if lower not in nodes
        ]

    def facts(self) -> tuple[Assumption, ...]:
        """Return the assumptions about the links between switches."""
        what, how = "links between switches", "--oversubscription"
        if self.oversubscription == 1:
            return (Assumption(what, "not oversubscribed", "guess", f"Slurm does not know the cables; {how}"),)
        return (Assumption(what, f"1/{self.oversubscription} of the bandwidth below", "file", how),)


def slurm_topology(nodes: SlurmNodes, node_gb_per_s: Fraction, spec: str) -> Topology:
    """Return the network in which each of `nodes` is a rank, in switch order."""
    ranked = nodes.ranked
    named = [NamedNode(name, "compute") for name in ranked] + [NamedNode(name, "switch") for name in nodes.switches()]
    up = [NamedLink(lower, upper, node_gb_per_s, 0, True) for lower, upper, _ in nodes.links() if lower in set(ranked)]
    between = nodes.between_switches(node_gb_per_s)
    facts = [rate("speed of every node", node_gb_per_s, node_gb_per_s, "file", "--nic-gbps").basis]
    return assemble_topology(spec, "GB/s", named, [*up, *between], [*facts, *(nodes.facts() if between else ())])


def slurm_gpu_topology(nodes: SlurmNodes, machine: Machine, nic_gb_per_s: Fraction | None, spec: str) -> Topology:
    """Return the network of the GPUs in all `nodes`, which are copies of `machine`, in switch order.

    Every NIC is linked to the switch of its node. Links between switches carry as much as all NICs below, divided by
    the oversubscription.
    nic_gb_per_s: rate of every NIC; None means the rates in the dump
    Raises InvalidInput for nodes on no switch or on several, and for the same reasons as `boxes_topology`.
    """
    hosts = nodes.ranked
    one_box = boxes_topology(machine, BoxNetwork(2, nic_gb_per_s, rails=True, nvlink_boxes=1), spec)
    nets = [index for index, name in enumerate(one_box.node_ids) if name.startswith("net:")]
    of_a_node = sum((link.bandwidth for link in one_box.links if link.dst in nets), start=Fraction(0)) / 2
    leaf: dict[str, str] = {}  # the switch of each node
    for lower, upper, _ in nodes.links() if len(hosts) > 1 else ():
        if lower in hosts and leaf.setdefault(lower, upper) != upper:
            rule = "a node with GPUs has several switches: {}"
            raise InvalidInput(rule, f"{lower} on {leaf[lower]} and {upper}", "correct the file of switches")
    leaves = {(host, index): (leaf[host], None) for host in leaf for index in range(len(nets))}
    switches = [NamedNode(name, "switch") for name in nodes.switches()] if leaf else []
    between = nodes.between_switches(of_a_node) if leaf else []
    return cluster_topology(
        machine, hosts, Fabric(leaves, switches, between, nodes.facts() if between else ()), nic_gb_per_s, spec
    )
