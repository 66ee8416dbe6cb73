"""Checks that a topology is valid and builds topologies from named nodes and links."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, get_args

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.abilities import SwitchAbility, read_ability
from chorale.synth.topology.distance import require_strongly_connected
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.provenance import Assumption, Provenance
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.symmetry_search import with_symmetries_found
from chorale.synth.topology.topology import BandwidthUnit, Topology

MAX_BANDWIDTH_UNITS = 2**53
_NODE_ID = re.compile(r"[A-Za-z0-9_.:]+")


def check_topology(topology: Topology) -> Topology:
    """Return `topology` unchanged if it is valid. Otherwise raises InvalidInput.

    A valid topology has at most 2^20 nodes and 2^27 links, at least two compute nodes, unique node ids of letters,
    digits, "_", "." and ":", positive bandwidths, latencies of at least 0, and a path from every node to every other.
    All bandwidths must be multiples of a common unit above 2^-53 and smaller than 2^53 units, so that they are exact
    in 64 bits. O(nodes + links).
    """
    require_size(topology.spec, topology.node_count, len(topology.links))
    if topology.compute_count < 2:
        value = f"{topology.compute_count} in {topology.spec}"
        raise InvalidInput("a topology must have at least two compute nodes", value, "add compute nodes")
    wrong = next((name for name in topology.node_ids if not _NODE_ID.fullmatch(name)), None)
    if wrong is not None:
        raise InvalidInput(
            'a node id must be made of letters, digits, "_", "." and ":"', repr(wrong), "rename the node"
        )
    repeated = first_repeated(topology.node_ids)
    if repeated is not None:
        raise InvalidInput("two nodes have the id {}", repeated, "rename one of them")
    _check_rates(topology.links.bandwidths, topology.links.latencies_s)
    require_strongly_connected(topology)
    return topology


def first_repeated(names: Iterable[str]) -> str | None:
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return None


def _check_rates(bandwidths: tuple[Fraction, ...], latencies_s: tuple[Fraction, ...]) -> None:
    for bandwidth in bandwidths:
        if bandwidth <= 0:
            raise InvalidInput(
                "the bandwidth of a link must be positive", bandwidth, "leave the link out or correct it"
            )
    for latency_s in latencies_s:
        if latency_s < 0:
            raise InvalidInput("the latency of a link must be at least 0 seconds", latency_s, "correct it")
    scale = math.lcm(*(bandwidth.denominator for bandwidth in bandwidths))
    if max(Fraction(scale), scale * max(bandwidths, default=Fraction(0))) >= MAX_BANDWIDTH_UNITS:
        rule = "all bandwidths must be multiples of one common unit above 2^-53, and below 2^53 such units"
        raise InvalidInput(rule, f"a common unit of 1/{scale}", "round the bandwidths to fewer digits")


KINDS = ("compute", "switch")
UNITS: tuple[str, ...] = get_args(BandwidthUnit)


class NamedNode(NamedTuple):
    """A node as described in a file. `kind` and `abilities` are not checked yet."""

    id: str
    kind: object
    abilities: Mapping[str, object] = {}


class NamedLink(NamedTuple):
    """A link as described in a file. Bandwidths and latency are not parsed yet.

    bidirectional: whether this entry stands for two links, one in each direction
    expected: bandwidth that the machine's communication library assumes; None if it equals `bandwidth`
    guess:    whether the bandwidth is a guess
    """

    src: str
    dst: str
    bandwidth: object
    latency_s: object = 0
    bidirectional: bool = False
    expected: object = None
    guess: bool = False


def assemble_topology(
    spec: str,
    unit: object,
    nodes: Sequence[NamedNode],
    links: Sequence[NamedLink],
    assumptions: Iterable[Assumption] = (),
) -> Topology:
    """Return the checked topology with all compute nodes first and then all switches, both in the order of `nodes`.

    For large networks, the result includes symmetries that map rank 0 to every other rank, if any are found. If a node
    or link is invalid, raises InvalidInput with its name. O(L log L), plus the search for symmetries.
    """
    if unit not in UNITS:
        raise InvalidInput("unknown bandwidth_unit {}", repr(unit), f"choose from {', '.join(UNITS)}")
    require_size(spec, len(nodes), sum(1 + link.bidirectional for link in links))
    for node in nodes:
        if node.kind not in KINDS:
            raise InvalidInput(f"the kind of node {node.id} must be compute or switch", repr(node.kind), "correct it")
    ordered = sorted(nodes, key=lambda node: node.kind == "switch")
    position = {node.id: index for index, node in enumerate(ordered)}
    directed: list[Link] = []
    for link in links:
        directed += _directed(link, position)
    abilities: dict[int, SwitchAbility] = {}
    for index, node in enumerate(ordered):
        if (ability := read_ability(node.abilities, node.id) if node.abilities else None) is not None:
            abilities[index] = ability
            if node.kind != "switch":
                rule = f"node {node.id} must be a switch to multicast or reduce by itself"
                way_out = "leave these attributes out: compute nodes copy and add anyway"
                raise InvalidInput(rule, repr(node.kind), way_out)
    topology = Topology(
        spec=spec,
        node_ids=tuple(node.id for node in ordered),
        compute_count=sum(node.kind == "compute" for node in nodes),
        links=Links.build(directed),
        bandwidth_unit=next(name for name in get_args(BandwidthUnit) if name == unit),
        abilities=abilities,
    )
    topology = with_symmetries_found(check_topology(topology))
    guessed = [(link.src, link.dst) for link in links if link.guess]
    guessed += [(link.dst, link.src) for link in links if link.guess and link.bidirectional]
    expected = None
    if any(link.expected is not None for link in links):
        slower = (link if link.expected is None else link._replace(bandwidth=link.expected) for link in links)
        expected = Links.build([each for link in slower for each in _directed(link, position)])
        _check_rates(expected.bandwidths, expected.latencies_s)
    facts = tuple(assumptions)
    if guessed or facts or expected is not None:
        topology = replace(topology, provenance=Provenance(facts, frozenset(guessed), expected, topology.id))
    return topology


def _directed(link: NamedLink, position: dict[str, int]) -> list[Link]:
    name = f"{link.src} to {link.dst}"
    for end in (link.src, link.dst):
        if end not in position:
            raise InvalidInput(
                f"link {name} ends at {{}}, which is not a node", end, "add the node or correct the link"
            )
    bandwidth = parse_rational(link.bandwidth, f"the bandwidth of link {name}")
    if bandwidth <= 0:
        raise InvalidInput(f"the bandwidth of link {name} must be positive", bandwidth, "leave it out or correct it")
    latency_s = parse_rational(link.latency_s, f"the latency_s of link {name}")
    if latency_s < 0:
        raise InvalidInput(f"the latency_s of link {name} must be at least 0", latency_s, "correct it")
    src, dst = position[link.src], position[link.dst]
    there = Link(src, dst, bandwidth, latency_s)
    return [there, Link(dst, src, bandwidth, latency_s)] if link.bidirectional and src != dst else [there]
