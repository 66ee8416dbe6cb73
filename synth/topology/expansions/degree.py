"""Degree expansion: every node becomes several, linked with all copies of its neighbours."""

from __future__ import annotations

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.expansions.columns import ranked_topology, require_direct
from chorale.synth.topology.sorted_links import Column, Rates, sorted_links
from chorale.synth.topology.topology import Topology


def degree_expansion(topology: Topology, copies: int, spec: str) -> Topology:
    """Return G * n: copies 0 to n - 1 of every node, and a link from each copy of u to each of v for every link u v.

    Copy i of node v has rank v n + i. N nodes of degree d become n N nodes of degree n d; links keep bandwidth and
    latency. Symmetries of G carry over, and the copies can be turned. Reverse-symmetry stays.
    Raises InvalidInput for switches and self-loops, which would join copies of one node. O(links of the result).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 13.
    """
    require_direct(topology, "degree")
    links = topology.links
    loops = np.flatnonzero(links.src == links.dst)
    if len(loops):
        rule = "degree must be given a network without self-loops"
        raise InvalidInput(
            rule, f"{topology.spec} with a link from {links.src[loops[0]]} to itself", "use line instead"
        )
    count = copies * topology.node_count
    copy_out = np.repeat(np.arange(copies), copies)
    copy_in = np.tile(np.arange(copies), copies)
    src = (links.src[:, None] * np.int64(copies) + copy_out).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + copy_in).ravel()
    rates = Rates(
        np.repeat(links.bandwidth_class, copies**2),
        links.bandwidths,
        np.repeat(links.latency_class, copies**2),
        links.latencies_s,
    )
    symmetries = _symmetries(topology, copies)
    return ranked_topology(spec, count, sorted_links(src, dst, rates), topology, symmetries)


def _symmetries(topology: Topology, copies: int) -> list[Column]:
    copy = np.arange(copies)
    lifted: list[Column] = [
        (symmetry[:, None] * np.int64(copies) + copy).ravel() for symmetry in topology.automorphisms
    ]
    if copies > 1:
        node = np.arange(topology.node_count)
        lifted.append((node[:, None] * copies + (copy + 1) % copies).ravel())
    return lifted
