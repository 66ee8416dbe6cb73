"""What every topology must satisfy before anything is computed on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import require_strongly_connected
from chorale.synth.topology.registry import require_size
from chorale.synth.topology.topology import Topology

MAX_BANDWIDTH_UNITS = 2**53
_NODE_ID = re.compile(r"[A-Za-z0-9_.:]+")


def check_topology(topology: Topology) -> Topology:
    """Return `topology` if it is sound, else raise InvalidInput.

    At most 2^20 nodes and 2^27 links, at least two compute nodes, unique node ids of letters, digits, "_", "."
    and ":", every bandwidth positive, every latency at least 0, and a path from every node to every other. All
    bandwidths must be multiples of one common unit above 2^-53 and below 2^53 such units, so that they are exact
    in 64 bits. O(nodes + links).
    """
    require_size(topology.spec, topology.node_count, len(topology.links))
    if topology.compute_count < 2:
        value = f"{topology.compute_count} in {topology.spec}"
        raise InvalidInput("a topology must have at least two compute nodes", value, "add compute nodes")
    _check_ids(topology.node_ids)
    _check_rates(topology.links.bandwidths, topology.links.latencies_s)
    require_strongly_connected(topology)
    return topology


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first of `names` that was there before, None if all differ. O(n)."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_ids(node_ids: tuple[str, ...]) -> None:
    wrong = next((name for name in node_ids if not _NODE_ID.fullmatch(name)), None)
    if wrong is not None:
        raise InvalidInput(
            'a node id must be made of letters, digits, "_", "." and ":"', repr(wrong), "rename the node"
        )
    twice = first_repeated(node_ids)
    if twice is not None:
        raise InvalidInput("node ids must be unique", twice, "rename one of the nodes")


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
