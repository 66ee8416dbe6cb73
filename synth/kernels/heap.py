"""A binary heap of (key, node) pairs for use inside kernels; ties go to the smaller node, so runs repeat.

A binary heap of messages by the time of their next event, for use inside kernels.

Every message has at most one event to come, so the heap holds messages and knows where each one is: an event can
be moved without leaving a stale entry behind. Ties go to the smaller message, so runs repeat.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import inlined

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


class EventHeap(NamedTuple):
    """members[: size[0]] is the heap; time[m] its key; place[m] where message m is, -1 if it is not in the heap."""

    members: NDArray[np.int32]
    position: NDArray[np.int32]
    time: NDArray[np.float64]
    size: NDArray[np.int64]

    @staticmethod
    def of(messages: int) -> EventHeap:
        """Return the empty heap for this many messages."""
        place = np.full(messages, -1, dtype=np.int32)
        return EventHeap(np.empty(messages, np.int32), place, np.zeros(messages), np.zeros(1, np.int64))


@inlined
def _comes_before(heap: EventHeap, first: int, second: int) -> bool:
    one, other = heap.time[first], heap.time[second]
    return one < other or (one == other and first < second)


@inlined
def _rise(heap: EventHeap, place: int, message: int) -> None:
    while place > 0:
        parent = (place - 1) >> 1
        above = heap.members[parent]
        if not _comes_before(heap, message, above):
            break
        heap.members[place] = above
        heap.position[above] = place
        place = parent
    heap.members[place] = message
    heap.position[message] = place


@inlined
def _sink(heap: EventHeap, place: int, message: int) -> None:
    size = heap.size[0]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _comes_before(heap, heap.members[child + 1], heap.members[child]):
            child += 1
        below = heap.members[child]
        if not _comes_before(heap, below, message):
            break
        heap.members[place] = below
        heap.position[below] = place
        place = child
    heap.members[place] = message
    heap.position[message] = place


@inlined
def schedule_event(heap: EventHeap, message: int, time: float) -> None:
    """Let the next event of `message` be at `time`, whether it had one or not. O(log size)."""
    place = heap.position[message]
    earlier = time < heap.time[message]
    heap.time[message] = time
    if place < 0:
        heap.size[0] += 1
        _rise(heap, heap.size[0] - 1, message)
    elif earlier:
        _rise(heap, place, message)
    else:
        _sink(heap, place, message)


@inlined
def next_event(heap: EventHeap) -> int:
    """Remove and return the message whose event comes first. O(log size)."""
    first: int = heap.members[0]
    heap.position[first] = -1
    heap.size[0] -= 1
    if heap.size[0] > 0:
        _sink(heap, 0, heap.members[heap.size[0]])
    return first
