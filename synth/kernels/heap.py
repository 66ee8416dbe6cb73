"""Two binary heaps for use inside kernels: (key, node) pairs, and messages by the time of their next event.

A message has at most one event to come, and the second heap stores the position of every message, so an event is moved
without leaving a stale entry behind. Ties go to the smaller node or message, so runs repeat.
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
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and nodes[parent] <= node):
            break
        keys[position], nodes[position] = keys[parent], nodes[parent]
        position = parent
    keys[position], nodes[position] = key, node
    return size + 1


@inlined
def drop_first(keys: Keys, nodes: Nodes, size: int) -> int:
    """Remove the smallest entry, which is at index 0; return the new size. O(log size)."""
    size -= 1
    key, node = keys[size], nodes[size]
    position = 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (keys[right] < keys[child] or (keys[right] == keys[child] and nodes[right] < nodes[child])):
            child = right
        if key < keys[child] or (key == keys[child] and node <= nodes[child]):
            break
        keys[position], nodes[position] = keys[child], nodes[child]
        position = child
    keys[position], nodes[position] = key, node
    return size


class EventHeap(NamedTuple):
    """members[: size[0]] is the heap; time[m] its key; position[m] where message m is, -1 if it is not in the heap."""

    members: NDArray[np.int32]
    position: NDArray[np.int32]
    time: NDArray[np.float64]
    size: NDArray[np.int64]

    @staticmethod
    def of(messages: int) -> EventHeap:
        """Return the empty heap for this many messages."""
        position = np.full(messages, -1, dtype=np.int32)
        return EventHeap(np.empty(messages, np.int32), position, np.zeros(messages), np.zeros(1, np.int64))


@inlined
def _comes_before(heap: EventHeap, first: int, second: int) -> bool:
    first_time, second_time = heap.time[first], heap.time[second]
    return first_time < second_time or (first_time == second_time and first < second)


@inlined
def _rise(heap: EventHeap, position: int, message: int) -> None:
    while position > 0:
        parent = (position - 1) >> 1
        above = heap.members[parent]
        if not _comes_before(heap, message, above):
            break
        heap.members[position] = above
        heap.position[above] = position
        position = parent
    heap.members[position] = message
    heap.position[message] = position


@inlined
def _sink(heap: EventHeap, position: int, message: int) -> None:
    size = heap.size[0]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and _comes_before(heap, heap.members[child + 1], heap.members[child]):
            child += 1
        below = heap.members[child]
        if not _comes_before(heap, below, message):
            break
        heap.members[position] = below
        heap.position[below] = position
        position = child
    heap.members[position] = message
    heap.position[message] = position


@inlined
def schedule_event(heap: EventHeap, message: int, time: float) -> None:
    """Let the next event of `message` be at `time`, whether it had one or not. O(log size)."""
    position = heap.position[message]
    earlier = time < heap.time[message]
    heap.time[message] = time
    if position < 0:
        heap.size[0] += 1
        _rise(heap, heap.size[0] - 1, message)
    elif earlier:
        _rise(heap, position, message)
    else:
        _sink(heap, position, message)


@inlined
def next_event(heap: EventHeap) -> int:
    """Remove and return the message whose event comes first. O(log size)."""
    first: int = heap.members[0]
    heap.position[first] = -1
    heap.size[0] -= 1
    if heap.size[0] > 0:
        _sink(heap, 0, heap.members[heap.size[0]])
    return first
