"""What expansions share: ranks as names, links in canonical order, and the networks that they take."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.errors import InvalidInput
from synth.topology.links import Links
from synth.topology.topology import Topology

Column = NDArray[np.integer]


class Rates(NamedTuple):
    """Dictionary-encoded bandwidths and latencies: the rate of link i is `bandwidths[bandwidth_class[i]]`."""

    bandwidth_class: Column
    bandwidths: tuple[Fraction, ...]
    latency_class: Column
    latencies_s: tuple[Fraction, ...]


def sorted_links(src: Column, dst: Column, rates: Rates) -> Links:
    """Return links in canonical order; the tables of `rates` must ascend and hold used values only. O(L log L)."""
    order = np.lexsort((rates.latency_class, -rates.bandwidth_class, src, dst))
    return Links(
        src=src[order].astype(np.int32),
        dst=dst[order].astype(np.int32),
        bandwidth_class=rates.bandwidth_class[order].astype(np.int32),
        bandwidths=rates.bandwidths,
        latency_class=rates.latency_class[order].astype(np.int32),
        latencies_s=rates.latencies_s,
    )


def ranked_topology(spec: str, node_count: int, links: Links, like: Topology, symmetries: list[Column]) -> Topology:
    """Return a direct-connect network whose nodes are named by rank, in the bandwidth unit of `like`."""
    return Topology(
        spec=spec,
        node_ids=tuple(map(str, range(node_count))),
        compute_count=node_count,
        links=links,
        bandwidth_unit=like.bandwidth_unit,
        automorphisms=tuple(symmetry.astype(np.int32) for symmetry in symmetries),
    )


def require_direct(topology: Topology, function: str) -> None:
    """Refuse a network with switches."""
    if topology.switch_count:
        value = f"{topology.spec} with {topology.switch_count} switches"
        raise InvalidInput(f"{function} must be given a network without switches", value, "choose a direct-connect one")
