"""Colours of nodes that do not depend on their names: refined until neighbours tell no more apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled, inlined
from chorale.synth.topology.topology import Topology

Colours = NDArray[np.uint64]

_COMPUTE, _SWITCH = np.uint64(0x1F83D9ABFB41BD6B), np.uint64(0x5BE0CD19137E2179)
CHOSEN = np.uint64(0xA54FF53A5F1D36F1)
"""Mixed into the colour of a node to set it apart from the others of its colour."""


@dataclass(frozen=True, slots=True, eq=False)
class Coloured:
    """Links of a topology as columns for refinement. `kind` is a number per (bandwidth, latency)."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    kind: NDArray[np.uint64]
    start: Colours

    @staticmethod
    def of(topology: Topology) -> Coloured:
        """Return `topology` with one colour for compute nodes and one for switches."""
        links = topology.links
        kind = links.bandwidth_class.astype(np.uint64) * np.uint64(len(links.latencies_s))
        kind += links.latency_class.astype(np.uint64)
        start = np.full(topology.node_count, _SWITCH, dtype=np.uint64)
        start[: topology.compute_count] = _COMPUTE
        return Coloured(links.src.astype(np.int64), links.dst.astype(np.int64), kind, start)

    def refined(self, colours: Colours) -> Colours:
        """Return `colours` refined until the number of different ones grows no more.

        A colour is a 64-bit mix of the node's own, of those that it has links from and of those that it has links to,
        with the kinds of the links: the same for nodes of isomorphic networks, whatever their names. Different
        nodes may share one by accident, so that whoever needs to be sure checks. O(N log N + L) per round.
        """
        return _refine(self.src, self.dst, self.kind, colours)

    def chosen(self, colours: Colours, node: int) -> Colours:
        """Return `colours` with `node` set apart, refined."""
        changed = colours.copy()
        changed[node] ^= CHOSEN
        return self.refined(changed)


@compiled
def _refine(
    src: NDArray[np.int64], dst: NDArray[np.int64], kind: NDArray[np.uint64], colours: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    colour, count = colours.copy(), _distinct(colours)
    while count < len(colour):
        arriving, leaving = np.zeros_like(colour), np.zeros_like(colour)
        for link in range(len(src)):
            tail, head = src[link], dst[link]
            arriving[head] += _mix(colour[tail] + kind[link] * np.uint64(0x9E3779B97F4A7C15))
            leaving[tail] += _mix(~colour[head] + kind[link] * np.uint64(0x9E3779B97F4A7C15))
        for node in range(len(colour)):
            colour[node] = _mix(colour[node] + np.uint64(3) * _mix(arriving[node]) + np.uint64(5) * _mix(leaving[node]))
        now = _distinct(colour)
        if now <= count:
            break
        count = now
    return colour


@inlined
def _mix(value: np.uint64) -> np.uint64:
    """Spread the bits of `value`, as the finaliser of splitmix64 does."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _distinct(colours: NDArray[np.uint64]) -> int:
    ordered = np.sort(colours)
    count = 1
    for place in range(1, len(ordered)):
        if ordered[place] != ordered[place - 1]:
            count += 1
    return count
