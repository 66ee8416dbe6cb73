"""From nodes and links by name, as files and graphs have them, to a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.topology import BandwidthUnit, Topology

KINDS = ("compute", "switch")
UNITS: tuple[str, ...] = get_args(BandwidthUnit)


class NamedNode(NamedTuple):
    """A node as a file has it; `kind` is not checked yet."""

    id: str
    kind: object


class NamedLink(NamedTuple):
    """A link as a file has it; bandwidth and latency are not read yet. Both directions if `bidirectional`."""

    src: str
    dst: str
    bandwidth: object
    latency_s: object = 0
    bidirectional: bool = False


def assemble_topology(spec: str, unit: object, nodes: Sequence[NamedNode], links: Sequence[NamedLink]) -> Topology:
    """Return the checked topology; compute nodes are ranked in the order of `nodes`, switches follow in theirs.

    Raises InvalidInput naming the node or link that breaks a rule. O(L log L).
    """
    if unit not in UNITS:
        raise InvalidInput("bandwidth_unit must be one that is known", repr(unit), f"choose from {', '.join(UNITS)}")
    require_size(spec, len(nodes), sum(1 + link.bidirectional for link in links))
    for node in nodes:
        if node.kind not in KINDS:
            raise InvalidInput(f"the kind of node {node.id} must be compute or switch", repr(node.kind), "correct it")
    ordered = sorted(nodes, key=lambda node: node.kind == "switch")
    position = {node.id: index for index, node in enumerate(ordered)}
    directed: list[Link] = []
    for link in links:
        directed += _directed(link, position)
    topology = Topology(
        spec=spec,
        node_ids=tuple(node.id for node in ordered),
        compute_count=sum(node.kind == "compute" for node in nodes),
        links=Links.build(directed),
        bandwidth_unit=next(known for known in get_args(BandwidthUnit) if known == unit),
    )
    return check_topology(topology)


def _directed(link: NamedLink, position: dict[str, int]) -> list[Link]:
    name = f"{link.src} to {link.dst}"
    for end in (link.src, link.dst):
        if end not in position:
            raise InvalidInput(f"both ends of link {name} must be nodes", end, "add the node or correct the link")
    bandwidth = parse_rational(link.bandwidth, f"the bandwidth of link {name}")
    if bandwidth <= 0:
        raise InvalidInput(f"the bandwidth of link {name} must be positive", bandwidth, "leave it out or correct it")
    latency_s = parse_rational(link.latency_s, f"the latency_s of link {name}")
    if latency_s < 0:
        raise InvalidInput(f"the latency_s of link {name} must be at least 0", latency_s, "correct it")
    there = Link(position[link.src], position[link.dst], bandwidth, latency_s)
    back = Link(there.dst, there.src, bandwidth, latency_s)
    return [there, back] if link.bidirectional and there != back else [there]
