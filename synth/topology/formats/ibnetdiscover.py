"""InfiniBand networks from what `ibnetdiscover` prints: switches, and hosts with their adapters as ranks.

A port's line ends with its width and speed, such as 4xHDR; rates are those of data, after the line code.
"""

from __future__ import annotations

import re
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.topology import Topology

LANE_GBIT_PER_S = {
    "SDR": Fraction(2),
    "DDR": Fraction(4),
    "QDR": Fraction(8),
    "FDR10": Fraction(10),
    "FDR": Fraction(150, 11),
    "EDR": Fraction(25),
    "HDR": Fraction(50),
    "NDR": Fraction(100),
    "XDR": Fraction(200),
}
"""Data rate of a lane: 8b/10b coded up to QDR, 64b/66b from FDR on; from HDR on the nominal one."""

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(r'^\[(\d+)\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d+)\].*?(\d+)x([A-Z]+[0-9]*)\s*$')
_ADAPTER = re.compile(r"[\s_:]+(?:HCA-?\d+|mlx\d+_\d+|ibp?\S*|hfi\d+_\d+)$", re.IGNORECASE)


def is_ibnetdiscover(text: str) -> bool:
    """Return whether `text` is an output of ibnetdiscover."""
    return re.search(_HEAD.pattern, text, re.MULTILINE) is not None


def from_ibnetdiscover(text: str, spec: str) -> Topology:
    """Return the network in Gbit/s; ranks are the hosts in the order of their first line.

    Adapters whose descriptions name the same host, such as `node7 HCA-1` and `node7 HCA-2`, are one rank. Raises
    InvalidInput for a text without hosts, or for speeds that are not known.
    """
    names: dict[str, tuple[str, str]] = {}
    cables: dict[frozenset[tuple[str, str]], Fraction] = {}
    here = ""
    for line in text.splitlines():
        if (head := _HEAD.match(line.strip())) is not None:
            here = head[2]
            names[here] = (head[1], head[3])
        elif (port := _PORT.match(line.strip())) is not None and here:
            ends, rate = frozenset(((here, port[1]), (port[2], port[3]))), _rate(port[4], port[5], line)
            cables[ends] = min(rate, cables.get(ends, rate))  # each end tells it; the slower one counts
    ids = _node_ids(names)
    links = []
    for ends, rate in cables.items():
        nodes = [ids[guid] for guid, _ in sorted(ends) if guid in ids]
        if len(nodes) == 2 and nodes[0] != nodes[1]:
            links.append(NamedLink(nodes[0], nodes[1], rate, bidirectional=True))
    used = {name for link in links for name in (link.src, link.dst)}
    kinds = {ids[guid]: "switch" if kind != "Ca" else "compute" for guid, (kind, _) in names.items()}
    nodes_of_file = [NamedNode(name, kind) for name, kind in kinds.items() if name in used]
    if sum(node.kind == "compute" for node in nodes_of_file) < 2:
        rule, way_out = "an output of ibnetdiscover must have two hosts or more", "save all that it prints"
        raise InvalidInput(rule, f"{len(nodes_of_file)} nodes with links", way_out)
    return assemble_topology(spec, "Gbit/s", nodes_of_file, links)


def _node_ids(names: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return the id of each node by its GUID: of adapters their host, where descriptions tell hosts apart."""
    hosts: dict[str, str] = {}
    for guid, (kind, description) in names.items():
        host = _ADAPTER.sub("", description.strip())
        is_named = kind == "Ca" and host != description.strip() and host
        hosts[guid] = re.sub(r"[^A-Za-z0-9_.:]", "_", host) if is_named else guid.replace("-", "_")
    return hosts


def _rate(width: str, speed: str, line: str) -> Fraction:
    if speed not in LANE_GBIT_PER_S:
        known = ", ".join(LANE_GBIT_PER_S)
        rule = "the speed of an InfiniBand link must be known"
        raise InvalidInput(rule, f"{speed} in {line.strip()!r}", f"known are {known}")
    return int(width) * LANE_GBIT_PER_S[speed]
