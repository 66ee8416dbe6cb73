"""A fabric in which some links are slower or faster than built."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from chorale.synth.topology.sorted_links import Rates, sorted_links
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.without import LostLink, NodeNames, parallel_links


def scaled(topology: Topology, chosen: Iterable[LostLink], factor: Fraction, spec: str) -> Topology:
    """Return `topology` with the bandwidth of all `chosen` links multiplied by `factor`, each link once.

    Nodes stay; known symmetries are dropped. Raises InvalidInput for a node or link that does not exist.
    O(links) for every chosen pair.
    """
    links, names = topology.links, NodeNames(topology)
    mask = np.zeros(len(links), dtype=bool)
    for pair in chosen:
        mask |= parallel_links(links, names, pair, "scaled")
    plain, slowed = set(links.bandwidth_class[~mask].tolist()), set(links.bandwidth_class[mask].tolist())
    values = {links.bandwidths[index] for index in plain} | {links.bandwidths[index] * factor for index in slowed}
    table = tuple(sorted(values))
    position = {value: index for index, value in enumerate(table)}
    kept = np.array([position.get(value, -1) for value in links.bandwidths])
    changed = np.array([position.get(value * factor, -1) for value in links.bandwidths])
    classes = np.where(mask, changed[links.bandwidth_class], kept[links.bandwidth_class])
    rates = Rates(classes, table, links.latency_class, links.latencies_s)
    return Topology(
        spec=spec,
        node_ids=topology.node_ids,
        compute_count=topology.compute_count,
        links=sorted_links(links.src, links.dst, rates),
        bandwidth_unit=topology.bandwidth_unit,
    )
