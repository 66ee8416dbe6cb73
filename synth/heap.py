"""A binary heap of (key, node) pairs for use inside kernels; ties go to the smaller node, so runs repeat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import inlined

Keys = NDArray[np.float64]
Nodes = NDArray[np.int32]


@inlined
def push(keys: Keys, nodes: Nodes, size: int, key: float, node: int) -> int:
    """Add an entry to the first `size`; return the new size. O(log size)."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and nodes[parent] <= node):
            break
        keys[place], nodes[place] = keys[parent], nodes[parent]
        place = parent
    keys[place], nodes[place] = key, node
    return size + 1


@inlined
def drop_first(keys: Keys, nodes: Nodes, size: int) -> int:
    """Remove the smallest entry, which is at index 0; return the new size. O(log size)."""
    size -= 1
    key, node = keys[size], nodes[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (keys[right] < keys[child] or (keys[right] == keys[child] and nodes[right] < nodes[child])):
            child = right
        if key < keys[child] or (key == keys[child] and node <= nodes[child]):
            break
        keys[place], nodes[place] = keys[child], nodes[child]
        place = child
    keys[place], nodes[place] = key, node
    return size
