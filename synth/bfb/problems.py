"""Kernels that solve the per-(node, step) problems of breadth-first broadcast exactly, in integers.

One problem: node u must receive in step t every shard v at distance t. Shard v may come over the in-links k of
u whose tail is at distance t - 1 from v: its mask f(v). Shards are divisible jobs, links are processors with
integer capacity c_k. The least time to finish is, by max-flow / min-cut (full paper, theorem 19),

    U(u, t) = max over non-empty link sets S of n(S) / c(S),    n(S) = number of v with f(v) inside S.

It is found by Newton's method on the parametric flow: start from a lower bound p/q, give job v q units and
link k p * c_k units, and look for a flow that places everything. If there is none, the links reached from a
stuck job form an S with larger n(S) / c(S); take that and try again. Shards with equal masks are one class.

All arrays are C-contiguous; masks are rows of uint64 words, bit k of word k // 64 for in-link k of the node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.compiled import compiled, inlined

Masks = NDArray[np.uint64]
Integers = NDArray[np.int64]


@compiled
def hop_rows(offsets: Integers, tails: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Return uint16[N, N]: `rows[u, v]` is the number of hops from v to u. O(N * links)."""
    nodes = len(offsets) - 1
    unreached = np.uint16(65535)
    rows = np.full((nodes, nodes), unreached, dtype=np.uint16)
    queue = np.empty(nodes, dtype=np.int32)
    for root in range(nodes):
        row = rows[root]
        row[root] = 0
        queue[0] = root
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            following = np.uint16(row[node] + 1)
            for link in range(offsets[node], offsets[node + 1]):
                source = tails[link]
                if row[source] == unreached:
                    row[source] = following
                    queue[tail] = source
                    tail += 1
    return rows


@inlined
def fill_masks(node: int, offsets: Integers, tails: NDArray[np.int32], rows: NDArray[np.uint16], masks: Masks) -> None:
    """Write `masks[v]`: the in-links of `node` whose tail is one hop nearer to v than `node` is."""
    masks[:] = 0
    own = rows[node]
    for position in range(offsets[node + 1] - offsets[node]):
        near = rows[tails[offsets[node] + position]]
        word, bit = position // 64, np.uint64(1) << np.uint64(position % 64)
        for shard in range(len(own)):
            if near[shard] + 1 == own[shard]:
                masks[shard, word] |= bit


@inlined
def sort_by_step(own: NDArray[np.uint16], starts: Integers, order: NDArray[np.int32]) -> None:
    """Write the shards in `order` by distance, ties by rank; distance t stands at `starts[t]` to `starts[t + 1] - 1`."""
    starts[:] = 0
    for shard in range(len(own)):
        starts[own[shard] + 1] += 1
    for step in range(1, len(starts)):
        starts[step] += starts[step - 1]
    cursor = starts.copy()
    for shard in range(len(own)):
        order[cursor[own[shard]]] = shard
        cursor[own[shard]] += 1


@inlined
def _same(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> bool:
    for word in range(len(left)):
        if left[word] != right[word]:
            return False
    return True


@inlined
def find_classes(
    jobs: NDArray[np.int32], masks: Masks, table: NDArray[np.int32], class_masks: Masks, sizes: Integers, member: NDArray[np.int32]
) -> int:
    """Group `jobs` by mask, classes numbered by first appearance; return the number of classes.

    Fills `class_masks`, `sizes` (jobs per class) and `member[i]`, the class of `jobs[i]`. `table` is scratch for
    open addressing: a power of two of at least twice the jobs, all -1 before and after.
    """
    last = np.uint64(len(table) - 1)
    classes = 0
    used = np.empty(len(jobs), dtype=np.int64)
    for index in range(len(jobs)):
        mask = masks[jobs[index]]
        key = np.uint64(1469598103934665603)
        for word in range(len(mask)):
            key = (key ^ mask[word]) * np.uint64(11400714819323198485)
        slot = np.int64((key >> np.uint64(20)) & last)
        while table[slot] >= 0 and not _same(class_masks[table[slot]], mask):
            slot = np.int64((np.uint64(slot) + np.uint64(1)) & last)
        if table[slot] < 0:
            table[slot] = classes
            used[classes] = slot
            class_masks[classes] = mask
            sizes[classes] = 0
            classes += 1
        member[index] = table[slot]
        sizes[table[slot]] += 1
    for index in range(classes):
        table[used[index]] = -1
    return classes


@inlined
def _holds(mask: NDArray[np.uint64], link: int) -> bool:
    return bool((mask[link // 64] >> np.uint64(link % 64)) & np.uint64(1))


@inlined
def _roomiest(mask: NDArray[np.uint64], degree: int, slack: Integers) -> int:
    best = -1
    for link in range(degree):
        if _holds(mask, link) and (best < 0 or slack[link] > slack[best]):
            best = link
    return best


@inlined
def _augment(
    start: int, amount: int, classes: int, degree: int, class_masks: Masks, flow: NDArray[np.int64], slack: Integers, via: NDArray[np.int32]
) -> int:
    """Make room for units of class `start` by moving other classes aside along one shortest path of links.

    Returns the units placed, 0 if no link with room can be reached; then `via[k, 0] != -2` marks the set S of
    links that were reached.
    """
    via[:degree, 0] = -2
    queue = np.empty(degree, dtype=np.int32)
    tail = 0
    for link in range(degree):
        if _holds(class_masks[start], link):
            via[link, 0] = -1
            via[link, 1] = start
            queue[tail] = link
            tail += 1
    head = 0
    while head < tail:
        link = queue[head]
        head += 1
        if slack[link] > 0:
            return _shift(link, amount, flow, slack, via)
        for other in range(classes):
            if flow[other, link] > 0:
                for onward in range(degree):
                    if via[onward, 0] == -2 and _holds(class_masks[other], onward):
                        via[onward, 0] = link
                        via[onward, 1] = other
                        queue[tail] = onward
                        tail += 1
    return 0


@inlined
def _shift(last: int, amount: int, flow: NDArray[np.int64], slack: Integers, via: NDArray[np.int32]) -> int:
    moved = min(amount, slack[last])
    link = last
    while via[link, 0] >= 0:
        moved = min(moved, flow[via[link, 1], via[link, 0]])
        link = via[link, 0]
    slack[last] -= moved
    link = last
    while link >= 0:
        flow[via[link, 1], link] += moved
        if via[link, 0] >= 0:
            flow[via[link, 1], via[link, 0]] -= moved
        link = via[link, 0]
    return moved


@inlined
def _by_width(classes: int, degree: int, class_masks: Masks) -> NDArray[np.int64]:
    widths = np.zeros(classes, dtype=np.int64)
    for index in range(classes):
        for link in range(degree):
            if _holds(class_masks[index], link):
                widths[index] += 1
    return np.argsort(widths, kind="mergesort")


@inlined
def place(
    classes: int, degree: int, class_masks: Masks, sizes: Integers, unit: int, room: Integers, flow: NDArray[np.int64], via: NDArray[np.int32]
) -> bool:
    """Spread `sizes[c] * unit` units of every class over the links of its mask, at most `room[k]` on link k.

    Returns whether everything fits; `flow[c, k]` holds the units. If it does not fit, `via[k, 0] != -2` marks a
    violated set S of links. Narrow classes go first and whole jobs go to the roomiest link, so that few jobs
    are split; what is left is filled in and then augmented.
    """
    flow[:classes, :degree] = 0
    slack = room[:degree].copy()
    for index in _by_width(classes, degree, class_masks):
        mask = class_masks[index]
        left = sizes[index] * unit
        while left > 0:
            link = _roomiest(mask, degree, slack)
            if slack[link] <= 0:
                break
            amount = min(left, unit, slack[link])
            flow[index, link] += amount
            slack[link] -= amount
            left -= amount
        while left > 0:
            moved = _augment(index, left, classes, degree, class_masks, flow, slack, via)
            if moved == 0:
                return False
            left -= moved
    return True


@inlined
def count_inside(classes: int, class_masks: Masks, sizes: Integers, links: NDArray[np.uint64]) -> int:
    """Return n(S): the number of jobs whose mask lies inside the link set `links`."""
    total = 0
    for index in range(classes):
        inside = True
        for word in range(len(links)):
            if class_masks[index, word] & ~links[word]:
                inside = False
        if inside:
            total += sizes[index]
    return total


@inlined
def capacity_of(links: NDArray[np.uint64], degree: int, capacities: Integers) -> int:
    """Return c(S): the capacity of the link set `links`."""
    total = 0
    for link in range(degree):
        if _holds(links, link):
            total += capacities[link]
    return total


@inlined
def reached_links(degree: int, via: NDArray[np.int32], links: NDArray[np.uint64]) -> None:
    """Write the set S that a failed `place` left in `via`."""
    links[:] = 0
    for link in range(degree):
        if via[link, 0] != -2:
            links[link // 64] |= np.uint64(1) << np.uint64(link % 64)
