"""What a page needs to draw a network: positions of nodes, and the pairs of nodes with links between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.layout import node_positions
from chorale.tuner.reports.topology import able_text, describe_topology
from chorale.tuner.service.jobs.limits import JobLimits, NetworkSource, built_network

MAX_NODES, MAX_LINKS = 512, 8192
_WAY_OUT = "take `chorale topology show` or `chorale show FILE` with `--plot` for larger ones"


@dataclass(frozen=True, slots=True, eq=False)
class Connections:
    """The pairs of nodes with links, parallel links as one.

    src, dst, bandwidth: a row per pair, in the order of its first link
    of_link:             int64[links], the pair of each link
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    bandwidth: NDArray[np.float64]
    of_link: NDArray[np.int64]

    @staticmethod
    def of(topology: Topology) -> Connections:
        """Return the connections of a network. O(links log links)."""
        links = topology.links
        key = links.src.astype(np.int64) * topology.node_count + links.dst
        _, first, pair = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        of_link = number[pair.ravel()]
        rates = np.array([float(link.bandwidth) for link in links])
        bandwidth: NDArray[np.float64] = np.bincount(of_link, weights=rates).astype(np.float64)
        ends = key[first[order]]
        return Connections(ends // topology.node_count, ends % topology.node_count, bandwidth, of_link)

    def rows(self) -> list[dict[str, Any]]:
        """Return an object per pair, for JSON."""
        columns = (self.src.tolist(), self.dst.tolist(), self.bandwidth.tolist())
        return [{"src": src, "dst": dst, "bandwidth": rate} for src, dst, rate in zip(*columns, strict=True)]


def nodes_view(topology: Topology) -> list[dict[str, Any]]:
    """Return nodes with their kind, position, and for switches that can do more what they can do.

    CheckFailed for networks too large to draw.
    """
    if topology.node_count > MAX_NODES or len(topology.links) > MAX_LINKS:
        value = f"{topology.node_count} nodes, {len(topology.links)} links"
        raise CheckFailed(f"a picture has at most {MAX_NODES} nodes and {MAX_LINKS} links", value, _WAY_OUT)
    places = zip(topology.node_ids, node_positions(topology), strict=True)
    nodes = []
    for node, (name, (x, y)) in enumerate(places):
        ability = topology.abilities.get(node)
        able = {} if ability is None else {"able": able_text(ability, topology)}
        kind = topology.node_kind(node)
        nodes.append({"id": name, "kind": kind, "x": round(float(x), 4), "y": round(float(y), 4), **able})
    return nodes


def topology_view(source: NetworkSource, limits: JobLimits) -> dict[str, Any]:
    """Return the description of a network, and what is drawn of it: null and the reason where it is too large.

    InvalidInput for what is no network, or beyond `limits`.
    """
    topology = built_network(source, limits).topology
    document: dict[str, Any] = {"topology": describe_topology(topology), "unit": topology.bandwidth_unit}
    try:
        picture = {"nodes": nodes_view(topology), "connections": Connections.of(topology).rows()}
    except CheckFailed as error:
        return document | {"picture": None, "why": str(error)}
    return document | {"picture": picture, "why": None}
