"""Hops between all pairs of nodes: 64 ends at a time in the bits of a word where all are near, else node by node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix

UNREACHED = 2**16 - 1
_PLANES = 6
_MOST_HOPS = 2**_PLANES - 1
"""Up to so many hops rounds over all nodes are fewer steps than queues of single nodes."""


def hops_between_all(offsets: NDArray[np.int64], neighbours: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Return uint16[N, N]: hops along these arcs from every node (by row), 65535 to what it does not reach.

    `neighbours[offsets[v] : offsets[v + 1]]` are one arc away from node v. Fewer than 65535 nodes.
    O(diameter * links * N / 64 + N * N) where no two nodes are more than 63 hops apart, else O(N * links).
    """
    nodes = len(offsets) - 1
    words = -(-nodes // 64)
    packed = np.empty((nodes, 8 * words), dtype=np.uint64)
    if _search_by_bits(offsets, neighbours, _spread_bytes(), packed):
        return packed.astype("<u8", copy=False).view(np.uint8)[:, :nodes].astype(np.uint16)
    hops = np.full((nodes, nodes), np.uint16(UNREACHED), dtype=np.uint16)
    search_from(offsets, neighbours, np.arange(nodes), UNREACHED, hops)
    return hops


def _spread_bytes() -> NDArray[np.uint64]:
    """Return uint64[256]: byte i of entry b is bit i of b."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return bits.view("<u8")[:, 0].astype(np.uint64)


@compiled
def _search_by_bits(
    offsets: NDArray[np.int64], neighbours: NDArray[np.int32], spread: NDArray[np.uint64], packed: Matrix[np.uint64]
) -> bool:
    """Write the hops from each node (by row) to all, eight to a word; return False where some are above 63.

    Bit i of a node's word: whether end 64 * w + i is within as many hops as there were rounds. Its distance is the
    number of rounds in which it was not, counted in the binary digits of `planes`.
    """
    nodes = len(offsets) - 1
    reached, following = np.empty(nodes, dtype=np.uint64), np.empty(nodes, dtype=np.uint64)
    planes = np.empty((_PLANES, nodes), dtype=np.uint64)
    for word in range((nodes + 63) // 64):
        everyone = np.uint64(0)
        reached[:] = np.uint64(0)
        planes[:] = np.uint64(0)
        for end in range(64 * word, min(nodes, 64 * word + 64)):
            reached[end] = np.uint64(1) << np.uint64(end % 64)
            everyone |= reached[end]
        rounds, missing = 0, True
        while missing:
            missing = False
            for node in range(nodes):
                far = everyone & ~reached[node]
                if far != np.uint64(0):
                    if rounds == _MOST_HOPS:
                        return False
                    missing = True
                    _count(far, planes, node)
            if missing:
                rounds += 1
                for node in range(nodes):
                    bits = reached[node]
                    for position in range(offsets[node], offsets[node + 1]):
                        bits |= reached[neighbours[position]]
                    following[node] = bits
                reached, following = following, reached
        _write(planes, spread, word, rounds, packed)
    return True


@inlined
def _count(far: np.uint64, planes: Matrix[np.uint64], node: int) -> None:
    """Add 1 to the numbers of a node whose bit is set in `far`."""
    carry = far
    plane = 0
    while carry != np.uint64(0):
        digit = planes[plane, node]
        planes[plane, node] = digit ^ carry
        carry = digit & carry
        plane += 1


@inlined
def _write(
    planes: Matrix[np.uint64], spread: NDArray[np.uint64], word: int, largest: int, packed: Matrix[np.uint64]
) -> None:
    """Write the numbers of all nodes, none above `largest`, a byte each."""
    used = 0
    while largest >> used > 0:
        used += 1
    for node in range(planes.shape[1]):
        for part in range(8):
            eight = np.uint64(0)
            for plane in range(used):
                digits = planes[plane, node] >> np.uint64(8 * part) & np.uint64(255)
                eight |= spread[digits] << np.uint64(plane)
            packed[node, 8 * word + part] = eight


@compiled
def search_from(
    offsets: NDArray[np.int64],
    neighbours: NDArray[np.int32],
    starts: NDArray[np.int64],
    unreached: int,
    distances: Matrix[np.uint16] | Matrix[np.uint32],
) -> None:
    """Fill `distances[i]`, all `unreached` before, with the hops from `starts[i]` to what it reaches."""
    queue = np.empty(distances.shape[1], dtype=np.int32)
    for row in range(len(starts)):
        queue[0] = starts[row]
        distances[row, starts[row]] = 0
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            hops = distances[row, node] + 1
            for position in range(offsets[node], offsets[node + 1]):
                neighbour = neighbours[position]
                if distances[row, neighbour] == unreached:
                    distances[row, neighbour] = hops
                    queue[tail] = neighbour
                    tail += 1
