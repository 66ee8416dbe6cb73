"""Switches between two nodes only, such as the NIC of a GPU: what enters from one can only leave to the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.flow.graph import Integers
from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.split.splits import Splits

Flags = NDArray[np.bool_]


def series_switches(network: ForestNetwork) -> tuple[Flags, Splits]:
    """Return switches with at most two neighbours, and the splits after which nothing is lost by dropping them.

    No cut of the others gets smaller, since at most the smaller of both capacities could ever pass. A switch next
    to another one of that kind waits for the next call, unless its number is the smaller one. O(arcs log arcs).
    """
    first, last = _outer_neighbours(network)
    narrow = _is_narrow(network, first, last)
    chosen = narrow.copy()
    for neighbour in (first, last):
        switch = np.flatnonzero(narrow)
        beside = neighbour[switch]
        waits = narrow[beside] & (beside < switch)
        chosen[switch[waits]] = False
    return chosen, _through(network, chosen, first + last)


def _outer_neighbours(network: ForestNetwork) -> tuple[Integers, Integers]:
    """Return the smallest and the largest neighbour of each node, arcs taken both ways; itself if it has none."""
    first = np.arange(network.nodes, dtype=np.int64)
    last = first.copy()
    nodes, others = np.concatenate([network.src, network.dst]), np.concatenate([network.dst, network.src])
    alone = np.ones(network.nodes, dtype=bool)
    alone[nodes] = False
    first[~alone], last[~alone] = network.nodes, -1
    np.minimum.at(first, nodes, others)
    np.maximum.at(last, nodes, others)
    return first, last


def _is_narrow(network: ForestNetwork, first: Integers, last: Integers) -> Flags:
    """Whether each node is a switch with arcs, and with no neighbour besides `first` and `last`."""
    wide = np.zeros(network.nodes, dtype=bool)
    for node, other in ((network.src, network.dst), (network.dst, network.src)):
        wide[node[(other != first[node]) & (other != last[node])]] = True
    used = np.zeros(network.nodes, dtype=bool)
    used[network.src] = used[network.dst] = True
    return used & ~wide & (np.arange(network.nodes) >= network.compute_count)


def _through(network: ForestNetwork, chosen: Flags, ends: Integers) -> Splits:
    """Return the splits from either neighbour of each chosen switch to the other; `ends` is the sum of both."""
    keys = network.dst.astype(np.int64) * network.nodes + network.src
    entry = np.flatnonzero(chosen[network.dst])
    switch = network.dst[entry]
    wanted = (ends[switch] - network.src[entry]) * network.nodes + switch
    leave = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    real = (keys[leave] == wanted) & (network.src[entry] != network.dst[leave])
    pairs = np.stack([entry[real], leave[real]], axis=1)
    offsets = 2 * np.arange(len(pairs) + 1, dtype=np.int64)
    return Splits(network.capacity[pairs].min(axis=1), offsets, pairs.ravel())
