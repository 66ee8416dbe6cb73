"""Kernels that solve the per-(node, step) problems of breadth-first broadcast exactly, in integers.

One problem: node u must receive in step t every shard v at distance t. Shard v may come over the in-links k of
u whose tail is at distance t - 1 from v: its mask f(v). Shards are divisible jobs, links are processors with
integer capacity c_k. The least time to finish is, by max-flow / min-cut (full paper, theorem 19),

    U(u, t) = max over non-empty link sets S of n(S) / c(S),    n(S) = number of v with f(v) inside S.

It is found by Newton's method on the parametric flow: start from a lower bound p/q, give job v q units and
link k p * c_k units, and look for a flow that places everything. If there is none, the links reached from a
stuck job form an S with larger n(S) / c(S); take that and try again. Shards with equal masks are one class.
Where link k has a delay a_k besides, it carries c_k * max(0, U - a_k) until U, and in place of n(S) / c(S) stands
the time at which S has carried n(S) (`chorale.synth.methods.bfb.node_batches`); all else is the same (full paper,
appendix E.3).

All arrays are C-contiguous; masks are rows of uint64 words, bit k of word k // 64 for in-link k of the node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.bfb.link_sets import Masks, add_links, contains_link, equal_links

Integers = NDArray[np.int64]
Ranks = NDArray[np.int32]


class Problems(NamedTuple):
    """The problems of nodes: their in-links in rows (see `BfbNetwork`), and hop counts `rows[u, v]` from shard v to u.

    There may be rows of more nodes than are solved, which `tails` may name. `delays`, in ticks of which a shard
    takes `grain` on a link of capacity 1, are 0 where latencies do not count (see
    `chorale.synth.methods.bfb.node_batches`).
    """

    offsets: Integers
    tails: Ranks
    capacities: Integers
    delays: Integers
    grain: int
    rows: Matrix[np.uint16]
    words: int


class Workspace(NamedTuple):
    """Scratch for one node at a time; sized for the worst node, so that nothing is allocated in the loops.

    masks:       uint64[shards, words], usable in-links of each shard
    order:       shards by distance; distance t stands at `starts[t]` to `starts[t + 1] - 1`
    table:       open addressing from mask to class, a power of two in length, all -1 between uses
    class_masks, sizes: mask and number of jobs of each class; `member[i]` is the class of the i-th job
    flow:        `flow[k, c]` units of class c on link k; classes side by side, since all of one link are looked through
    via:         how a link was reached in the search for room: (link before or -1, class), -2 if it was not
    """

    masks: Matrix[np.uint64]
    order: Ranks
    starts: Integers
    table: Ranks
    class_masks: Matrix[np.uint64]
    sizes: Integers
    member: Ranks
    flow: Matrix[np.int64]
    via: Matrix[np.int32]


@inlined
def make_workspace(problems: Problems, steps: int) -> Workspace:
    """Return scratch for the problems of any node."""
    nodes, shards = len(problems.offsets) - 1, problems.rows.shape[1]
    widest = 0
    for node in range(nodes):
        widest = max(widest, problems.offsets[node + 1] - problems.offsets[node])
    table_size = 4
    while table_size < 2 * shards:
        table_size *= 2
    return Workspace(
        np.zeros((shards, problems.words), dtype=np.uint64),
        np.empty(shards, dtype=np.int32),
        np.empty(steps + 2, dtype=np.int64),
        np.full(table_size, -1, dtype=np.int32),
        np.zeros((shards, problems.words), dtype=np.uint64),
        np.zeros(shards, dtype=np.int64),
        np.empty(shards, dtype=np.int32),
        np.zeros((widest, shards), dtype=np.int64),
        np.empty((widest, 2), dtype=np.int32),
    )


@inlined
def prepare_node(node: int, problems: Problems, work: Workspace) -> None:
    """Write the masks of all shards for `node`, and the shards ordered by distance, ties by rank."""
    hops = problems.rows[node]
    first = problems.offsets[node]
    work.masks[:] = 0
    for position in range(problems.offsets[node + 1] - first):
        near = problems.rows[problems.tails[first + position]]
        word, bit = position // 64, np.uint64(1) << np.uint64(position % 64)
        for shard in range(len(hops)):
            if near[shard] + 1 == hops[shard]:
                work.masks[shard, word] |= bit
    work.starts[:] = 0
    for shard in range(len(hops)):
        work.starts[hops[shard] + 1] += 1
    for step in range(1, len(work.starts)):
        work.starts[step] += work.starts[step - 1]
    cursor = work.starts.copy()
    for shard in range(len(hops)):
        work.order[cursor[hops[shard]]] = shard
        cursor[hops[shard]] += 1


@inlined
def jobs_of(step: int, work: Workspace) -> Ranks:
    """Return the shards that arrive in `step` (0-based), after `prepare_node`."""
    return work.order[work.starts[step + 1] : work.starts[step + 2]]


@inlined
def find_classes(jobs: Ranks, work: Workspace) -> int:
    """Group `jobs` by mask, classes numbered by first appearance; return the number of classes.

    Fills `class_masks`, `sizes` and `member`.
    """
    last = np.uint64(len(work.table) - 1)
    classes = 0
    used = np.empty(len(jobs), dtype=np.int64)
    for index in range(len(jobs)):
        mask = work.masks[jobs[index]]
        key = np.uint64(1469598103934665603)
        for word in range(len(mask)):
            key = (key ^ mask[word]) * np.uint64(11400714819323198485)
        slot = np.int64((key >> np.uint64(20)) & last)
        while work.table[slot] >= 0 and not equal_links(work.class_masks[work.table[slot]], mask):
            slot = np.int64((np.uint64(slot) + np.uint64(1)) & last)
        if work.table[slot] < 0:
            work.table[slot] = classes
            used[classes] = slot
            work.class_masks[classes] = mask
            work.sizes[classes] = 0
            classes += 1
        work.member[index] = work.table[slot]
        work.sizes[work.table[slot]] += 1
    for index in range(classes):
        work.table[used[index]] = -1
    return classes


@inlined
def _link_with_most_slack(links: Masks, slack: Integers) -> int:
    best = -1
    for link in range(len(slack)):
        if contains_link(links, link) and (best < 0 or slack[link] > slack[best]):
            best = link
    return best


@inlined
def _augment(start: int, amount: int, classes: int, slack: Integers, work: Workspace) -> int:
    """Make room for units of class `start` by moving other classes aside along one shortest path of links.

    Returns the units placed, 0 if no link with room can be reached; then `via[k, 0] != -2` marks the set S of
    links that were reached.
    """
    degree = len(slack)
    via = work.via
    via[:degree, 0] = -2
    queue = np.empty(degree, dtype=np.int32)
    seen = work.class_masks[start].copy()
    tail = 0
    for link in range(degree):
        if contains_link(work.class_masks[start], link):
            via[link, 0] = -1
            via[link, 1] = start
            queue[tail] = link
            tail += 1
    head = 0
    while head < tail:
        link = queue[head]
        head += 1
        if slack[link] > 0:
            return _shift(link, amount, slack, work)
        for other in range(classes):
            if work.flow[link, other] > 0 and add_links(work.class_masks[other], seen):
                for onward in range(degree):
                    if via[onward, 0] == -2 and contains_link(seen, onward):
                        via[onward, 0] = link
                        via[onward, 1] = other
                        queue[tail] = onward
                        tail += 1
    return 0


@inlined
def _shift(last: int, amount: int, slack: Integers, work: Workspace) -> int:
    """Move units along the path that ends at link `last`, as many as fit, at most `amount`."""
    via, flow = work.via, work.flow
    moved: int = min(amount, slack[last])
    link = last
    while via[link, 0] >= 0:
        moved = min(moved, flow[via[link, 0], via[link, 1]])
        link = via[link, 0]
    slack[last] -= moved
    link = last
    while link >= 0:
        flow[link, via[link, 1]] += moved
        if via[link, 0] >= 0:
            flow[via[link, 0], via[link, 1]] -= moved
        link = via[link, 0]
    return moved


@inlined
def _narrow_first(classes: int, degree: int, work: Workspace) -> Integers:
    widths = np.zeros(classes, dtype=np.int64)
    for index in range(classes):
        for link in range(degree):
            widths[index] += contains_link(work.class_masks[index], link)
    return np.argsort(widths, kind="mergesort")


@inlined
def assign_units(classes: int, unit: int, room: Integers, work: Workspace) -> bool:
    """Spread `sizes[c] * unit` units of every class over the links of its mask, at most `room[k]` on link k.

    Returns whether everything fits; `flow[k, c]` holds the units. If it does not fit, `via[k, 0] != -2` marks a
    violated set S of links. Narrow classes go first and whole jobs go to the roomiest link, so that few jobs
    are split; what is left is filled in and then augmented.
    """
    degree = len(room)
    work.flow[:degree, :classes] = 0
    slack = room.copy()
    for index in _narrow_first(classes, degree, work):
        left = work.sizes[index] * unit
        while left > 0:
            link = _link_with_most_slack(work.class_masks[index], slack)
            if slack[link] <= 0:
                break
            amount = min(left, unit, slack[link])
            work.flow[link, index] += amount
            slack[link] -= amount
            left -= amount
        while left > 0:
            moved = _augment(index, left, classes, slack, work)
            if moved == 0:
                return False
            left -= moved
    return True


@inlined
def count_inside(classes: int, links: Masks, work: Workspace) -> int:
    """Return n(S): the number of jobs whose mask lies inside the link set `links`."""
    total = 0
    for index in range(classes):
        inside = True
        for word in range(len(links)):
            inside &= (work.class_masks[index, word] & ~links[word]) == np.uint64(0)
        if inside:
            total += work.sizes[index]
    return total


@inlined
def usable_links(classes: int, links: Masks, work: Workspace) -> None:
    """Write the set of links that any job may use."""
    links[:] = 0
    for index in range(classes):
        for word in range(len(links)):
            links[word] |= work.class_masks[index, word]


@inlined
def reached_links(degree: int, links: Masks, work: Workspace) -> None:
    """Write the set S that a failed `assign_units` reached."""
    links[:] = 0
    for link in range(degree):
        if work.via[link, 0] != -2:
            links[link // 64] |= np.uint64(1) << np.uint64(link % 64)
