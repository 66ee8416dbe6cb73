"""Checks that a topology is valid and builds topologies from named nodes and links."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple, get_args

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.distance import require_strongly_connected
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.symmetry_search import MIN_SEARCHED_RANKS, transitive_symmetries
from chorale.synth.topology.topology import Assumption, BandwidthUnit, Link, Links, Provenance, SwitchAbility, Topology

MAX_BANDWIDTH_UNITS = 2**53
_NODE_ID = re.compile(r"[A-Za-z0-9_.:]+")
_MAX_NAMES = 32
_MAX_NAME = 32
REDUCE_LISTS = ("reduce_types", "reduce_operations")
ABILITY_KEYS = ("multicast", "reduce", "reduce_bandwidth", *REDUCE_LISTS)
"""Attributes in topology files that say what a switch can do besides forwarding data."""


def check_topology(topology: Topology) -> Topology:
    """Return `topology` unchanged if it is valid. Otherwise raises InvalidInput.

    A valid topology has at most 2^20 nodes and 2^27 links, at least two compute nodes, unique node ids made of letters,
    digits, "_", "." and ":", and a path from every node to every other. All bandwidths must be multiples of one common
    unit, so that they are exact in 64 bits: the unit must be larger than 2^-53, and every bandwidth smaller than 2^53
    units. The signs of bandwidths and latencies are checked when they are read. O(nodes + links).
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
    _require_exact(topology.links.bandwidths)
    require_strongly_connected(topology)
    return topology


def first_repeated(names: Iterable[str]) -> str | None:
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return None


def _require_exact(bandwidths: tuple[Fraction, ...]) -> None:
    scale = math.lcm(*(bandwidth.denominator for bandwidth in bandwidths))
    if max(Fraction(scale), scale * max(bandwidths, default=Fraction(0))) >= MAX_BANDWIDTH_UNITS:
        rule = "all bandwidths must be multiples of one common unit above 2^-53, and below 2^53 such units"
        raise InvalidInput(rule, f"a common unit of 1/{scale}", "round the bandwidths to fewer digits")


class NamedNode(NamedTuple):
    """A node as a file describes it. `kind` and `abilities` have not been checked yet."""

    id: str
    kind: object
    abilities: Mapping[str, object] = {}


class NamedLink(NamedTuple):
    """A link as a file describes it. Bandwidths and latency have not been parsed yet.

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

    If the network has at least `MIN_SEARCHED_RANKS` ranks and no switches, the result includes symmetries that map rank
    0 to every other rank, if any are found. Raises InvalidInput, which names the node or link that is invalid.
    O(L log L), plus the search for symmetries.
    """
    units: tuple[BandwidthUnit, ...] = get_args(BandwidthUnit)
    if unit not in units:
        raise InvalidInput("unknown bandwidth_unit {}", repr(unit), f"choose from {', '.join(units)}")
    require_size(spec, len(nodes), sum(1 + link.bidirectional for link in links))
    for node in nodes:
        if node.kind not in ("compute", "switch"):
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
        bandwidth_unit=next(name for name in units if name == unit),
        abilities=abilities,
    )
    topology = check_topology(topology)
    if not topology.switch_count and topology.compute_count >= MIN_SEARCHED_RANKS:
        topology = replace(topology, automorphisms=transitive_symmetries(topology)[0])
    guessed = [(link.src, link.dst) for link in links if link.guess]
    guessed += [(link.dst, link.src) for link in links if link.guess and link.bidirectional]
    expected = None
    if any(link.expected is not None for link in links):
        slower = (link if link.expected is None else link._replace(bandwidth=link.expected) for link in links)
        expected = Links.build([each for link in slower for each in _directed(link, position)])
        _require_exact(expected.bandwidths)
    facts = tuple(assumptions)
    if guessed or facts or expected is not None:
        topology = replace(topology, provenance=Provenance(facts, frozenset(guessed), expected, topology.id))
    return topology


def read_ability(attributes: Mapping[str, object], node: str) -> SwitchAbility | None:
    """Return a switch's abilities (multicast, reduce) and their limits; None if the switch can only forward data.

    attributes: attributes of the switch in a file; `reduce_types` and `reduce_operations` are lists or comma-separated
                text
    Raises InvalidInput, which names the invalid attribute.
    """
    reduce = _flag(attributes, "reduce", node)
    given = attributes.get("reduce_bandwidth")
    bandwidth = None if given is None else parse_rational(given, f"the reduce_bandwidth of node {node}")
    if bandwidth is not None and bandwidth <= 0:
        way_out = "correct it, or write reduce: false"
        raise InvalidInput(f"the reduce_bandwidth of node {node} must be positive", bandwidth, way_out)
    names: dict[str, tuple[str, ...]] = {}
    for key in REDUCE_LISTS:
        value, where = attributes.get(key), f"{key} of node {node}"
        items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        if items is not None and not isinstance(items, (list, tuple)):
            raise InvalidInput(f"{where} must be a list of names", repr(value), 'write, for example, ["float32"]')
        for item in items or ():
            if not (isinstance(item, str) and item.isidentifier() and len(item) <= _MAX_NAME):
                raise InvalidInput(f"{where} must hold names of letters, digits and _", repr(item), "correct it")
        if len(items or ()) > _MAX_NAMES:
            raise InvalidInput(f"{where} must hold at most {_MAX_NAMES} names", len(items or ()), "leave some out")
        names[key] = tuple(items or ())
    if not reduce and (bandwidth is not None or any(names.values())):
        rule = f"node {node} must have reduce: true if it states how it reduces"
        raise InvalidInput(rule, "reduce: false", "write reduce: true, or leave reduce_bandwidth, … out")
    ability = SwitchAbility(_flag(attributes, "multicast", node), reduce, bandwidth, **names)
    return ability if ability.is_able else None


def _flag(attributes: Mapping[str, object], key: str, node: str) -> bool:
    value = attributes.get(key, False)
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{key} of node {node} must be true or false", repr(value), "correct it")


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
