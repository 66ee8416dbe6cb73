"""Minimal paths between pairs of ranks on any network, through switches too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.routes import Routes
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology

_TARGETS_AT_ONCE = 512
_CHOICES_AT_ONCE = 2**24


def minimal_paths(topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[Routes, Routes]:
    """Return two tables with a path of fewest links for each pair (equal where there is one only).

    Where several links lead nearer, the first path takes the one of number dst modulo their count, so that
    destinations are spread over equal ways as static routing on fat trees does it, and the second path the next
    one. O(targets * links + hops * degree).
    """
    links = _single_links(topology, src, dst)
    if links is not None:
        return links, links
    order = np.argsort(dst, kind="stable")
    out_links = _out_links(topology)
    blocks: list[list[NDArray[np.int64]]] = [[], []]
    targets = np.unique(dst)
    for first in range(0, len(targets), _TARGETS_AT_ONCE):
        block = targets[first : first + _TARGETS_AT_ONCE]
        hops = distances_to(topology, block)
        pairs = order[np.searchsorted(dst[order], block[0]) : np.searchsorted(dst[order], block[-1], side="right")]
        at_once = max(1, _CHOICES_AT_ONCE // out_links.shape[1])
        for low in range(0, len(pairs), at_once):
            some = pairs[low : low + at_once]
            row = np.searchsorted(block, dst[some])
            for choice in (0, 1):
                blocks[choice] += _walk(topology, out_links, np.asarray(hops), row, src[some], dst[some], some, choice)
    return _routes(blocks[0], len(src)), _routes(blocks[1], len(src))


def _out_links(topology: Topology) -> NDArray[np.int64]:
    """Return int64[nodes, largest out-degree]: the links that leave each node, then -1."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    degree = np.bincount(links.src, minlength=topology.node_count)
    table = np.full((topology.node_count, int(degree.max())), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < degree[:, None]] = order
    return table


def _walk(
    topology: Topology,
    out_links: NDArray[np.int64],
    hops: NDArray[np.unsignedinteger],
    row: NDArray[np.int64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    pair: NDArray[np.int64],
    choice: int,
) -> list[NDArray[np.int64]]:
    """Return arrays (pair, hop number, link) [3, …], one per hop, of all walks from `src` to `dst` at once.

    `hops[row[i], v]` is the distance from node v to `dst[i]`.
    """
    found = []
    node = src
    distance = hops.astype(np.int64)
    number = 0
    while len(node):
        candidates = out_links[node]
        nearer = distance[row[:, None], topology.links.dst[candidates]] == distance[row, node][:, None] - 1
        nearer &= candidates >= 0
        wanted = (dst + choice) % nearer.sum(axis=1)
        place = np.argmax(np.cumsum(nearer, axis=1) > wanted[:, None], axis=1)
        link = candidates[np.arange(len(node)), place]
        found.append(np.stack([pair, np.full_like(pair, number), link]))
        node = topology.links.dst[link].astype(np.int64)
        going = node != dst
        node, row, dst, pair = node[going], row[going], dst[going], pair[going]
        number += 1
    return found


def _single_links(topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]) -> Routes | None:
    """Return the links from src to dst themselves if each pair has exactly one, else None."""
    links = topology.links
    keys = links.dst.astype(np.int64) * topology.node_count + links.src
    wanted = dst * topology.node_count + src
    first = np.searchsorted(keys, wanted)
    if not (np.searchsorted(keys, wanted, side="right") - first == 1).all():
        return None
    return Routes(np.arange(len(first) + 1), first.astype(np.int32))


def _routes(parts: list[NDArray[np.int64]], pairs: int) -> Routes:
    pair, number, link = np.concatenate([np.zeros((3, 0), dtype=np.int64), *parts], axis=1)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=pairs))]).astype(np.int64)
    link_ids = np.empty(len(link), dtype=np.int32)
    link_ids[offsets[pair] + number] = link
    return Routes(offsets, link_ids)
