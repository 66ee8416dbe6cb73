"""Kernels that run the problems of a block of nodes: least loads, loads for whole chunks, and the transfers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.bfb.problems import (
    Integers,
    Masks,
    capacity_of,
    count_inside,
    fill_masks,
    find_classes,
    place,
    reached_links,
    sort_by_step,
)
from synth.compiled import compiled, inlined


@inlined
def _gcd(first: int, second: int) -> int:
    while second:
        first, second = second, first % second
    return first


@inlined
def _table_size(jobs: int) -> int:
    size = 4
    while size < 2 * jobs:
        size *= 2
    return size


@compiled
def least_loads(
    first: int,
    last: int,
    offsets: Integers,
    tails: NDArray[np.int32],
    capacities: Integers,
    rows: NDArray[np.uint16],
    steps: int,
    words: int,
) -> tuple[Integers, Integers, Integers, Masks]:
    """Solve the problems of nodes `first` to `last - 1`: the largest U(u, t) of each step and why.

    Returns (p, q, node, links), rows by step: max over the block's nodes of U(u, t) = p / q in lowest terms,
    the node that attains it and its critical link set S, so that n(S) / c(S) = p / q. q = 0: nothing arrives.
    """
    nodes = len(offsets) - 1
    degree_limit = 64 * words
    top = np.zeros(steps, dtype=np.int64)
    bottom = np.zeros(steps, dtype=np.int64)
    witness = np.zeros(steps, dtype=np.int64)
    witness_links = np.zeros((steps, words), dtype=np.uint64)
    masks = np.zeros((nodes, words), dtype=np.uint64)
    order = np.empty(nodes, dtype=np.int32)
    starts = np.empty(steps + 2, dtype=np.int64)
    table = np.full(_table_size(nodes), -1, dtype=np.int32)
    class_masks = np.zeros((nodes, words), dtype=np.uint64)
    sizes = np.zeros(nodes, dtype=np.int64)
    member = np.empty(nodes, dtype=np.int32)
    via = np.empty((degree_limit, 2), dtype=np.int32)
    links = np.zeros(words, dtype=np.uint64)
    widest = 0
    for node in range(nodes):
        widest = max(widest, offsets[node + 1] - offsets[node])
    flow = np.zeros((nodes, widest), dtype=np.int64)
    for node in range(first, last):
        degree = offsets[node + 1] - offsets[node]
        own_capacities = capacities[offsets[node] : offsets[node + 1]]
        fill_masks(node, offsets, tails, rows, masks)
        sort_by_step(rows[node], starts, order)
        for step in range(steps):
            jobs = order[starts[step + 1] : starts[step + 2]]
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, masks, table, class_masks, sizes, member)
            links[:] = 0
            for index in range(classes):
                for word in range(words):
                    links[word] |= class_masks[index, word]
            feasible = False
            while not feasible:
                count = count_inside(classes, class_masks, sizes, links)
                capacity = capacity_of(links, degree, own_capacities)
                if bottom[step] == 0 or count * bottom[step] > top[step] * capacity:
                    divisor = _gcd(count, capacity)
                    top[step], bottom[step] = count // divisor, capacity // divisor
                    witness[step] = node
                    witness_links[step] = links
                room = own_capacities * top[step]
                feasible = place(classes, degree, class_masks, sizes, bottom[step], room, flow, via)
                if not feasible:
                    reached_links(degree, via, links)
    return top, bottom, witness, witness_links


@inlined
def _raise_time(top: int, bottom: int, need: int, links: Masks, degree: int, capacities: Integers) -> tuple[int, int]:
    """Return the least time above top / bottom at which the links of S can carry `need` whole chunks."""
    while True:
        total = 0
        best_top, best_bottom = np.int64(-1), np.int64(1)
        for link in range(degree):
            if (links[link // 64] >> np.uint64(link % 64)) & np.uint64(1):
                whole = capacities[link] * top // bottom
                total += whole
                if best_top < 0 or (whole + 1) * best_bottom < best_top * capacities[link]:
                    best_top, best_bottom = whole + 1, capacities[link]
        if total >= need:
            return top, bottom
        top, bottom = best_top, best_bottom


@compiled
def whole_chunk_times(
    first: int,
    last: int,
    offsets: Integers,
    tails: NDArray[np.int32],
    capacities: Integers,
    rows: NDArray[np.uint16],
    chunks: int,
    top: Integers,
    bottom: Integers,
    words: int,
) -> tuple[Integers, Integers, Integers, Masks]:
    """Return (p, q, node, links) per step: the least time p / q >= top / bottom that lets all nodes finish it.

    `node` and `links` say which problem made the time longer than top / bottom (-1: none did). Shards are cut into `chunks` equal chunks and a link of capacity c carries floor(c * time) whole chunks in
    that time; `top / bottom` (chunks over capacity) is a lower bound to start from. Exact for any capacities:
    with whole chunks the problem is a transportation problem, whose polytope is integral.
    """
    steps = len(top)
    nodes = len(offsets) - 1
    top, bottom = top.copy(), bottom.copy()
    witness = np.full(steps, -1, dtype=np.int64)
    witness_links = np.zeros((steps, words), dtype=np.uint64)
    masks = np.zeros((nodes, words), dtype=np.uint64)
    order = np.empty(nodes, dtype=np.int32)
    starts = np.empty(steps + 2, dtype=np.int64)
    table = np.full(_table_size(nodes), -1, dtype=np.int32)
    class_masks = np.zeros((nodes, words), dtype=np.uint64)
    sizes = np.zeros(nodes, dtype=np.int64)
    member = np.empty(nodes, dtype=np.int32)
    via = np.empty((64 * words, 2), dtype=np.int32)
    links = np.zeros(words, dtype=np.uint64)
    widest = 0
    for node in range(nodes):
        widest = max(widest, offsets[node + 1] - offsets[node])
    flow = np.zeros((nodes, widest), dtype=np.int64)
    for node in range(first, last):
        degree = offsets[node + 1] - offsets[node]
        own_capacities = capacities[offsets[node] : offsets[node + 1]]
        fill_masks(node, offsets, tails, rows, masks)
        sort_by_step(rows[node], starts, order)
        for step in range(steps):
            jobs = order[starts[step + 1] : starts[step + 2]]
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, masks, table, class_masks, sizes, member)
            while not place(
                classes, degree, class_masks, sizes, chunks, own_capacities * top[step] // bottom[step], flow, via
            ):
                reached_links(degree, via, links)
                need = chunks * count_inside(classes, class_masks, sizes, links)
                top[step], bottom[step] = _raise_time(top[step], bottom[step], need, links, degree, own_capacities)
                witness[step] = node
                witness_links[step] = links
    return top, bottom, witness, witness_links


@inlined
def _cut(
    jobs: NDArray[np.int32],
    member: NDArray[np.int32],
    classes: int,
    degree: int,
    flow: NDArray[np.int64],
    chunks: int,
    out: NDArray[np.int32],
    written: int,
) -> int:
    """Write one row (in-link, shard, lo, hi) per piece: each class hands its jobs to its links in order."""
    link_of = np.zeros(classes, dtype=np.int64)
    for index in range(len(jobs)):
        group = member[index]
        position = 0
        while position < chunks:
            while flow[group, link_of[group]] == 0:
                link_of[group] += 1
            link = link_of[group]
            amount = min(chunks - position, flow[group, link])
            flow[group, link] -= amount
            out[written, 0] = link
            out[written, 1] = jobs[index]
            out[written, 2] = position
            out[written, 3] = position + amount
            written += 1
            position += amount
    return written


@compiled
def place_chunks(
    first: int,
    last: int,
    offsets: Integers,
    tails: NDArray[np.int32],
    capacities: Integers,
    rows: NDArray[np.uint16],
    chunks: int,
    top: Integers,
    bottom: Integers,
    words: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Assign every chunk that nodes `first` to `last - 1` receive to a link, within time top / bottom per step.

    Returns int32 columns (step, link, piece) with piece rows (shard, lo, hi), ordered by node, step and class.
    Raises ValueError if a step does not fit its time.
    """
    steps = len(top)
    nodes = len(offsets) - 1
    masks = np.zeros((nodes, words), dtype=np.uint64)
    order = np.empty(nodes, dtype=np.int32)
    starts = np.empty(steps + 2, dtype=np.int64)
    table = np.full(_table_size(nodes), -1, dtype=np.int32)
    class_masks = np.zeros((nodes, words), dtype=np.uint64)
    sizes = np.zeros(nodes, dtype=np.int64)
    member = np.empty(nodes, dtype=np.int32)
    via = np.empty((64 * words, 2), dtype=np.int32)
    widest = 0
    for node in range(nodes):
        widest = max(widest, offsets[node + 1] - offsets[node])
    flow = np.zeros((nodes, widest), dtype=np.int64)
    limit = 2 * nodes * (last - first) + 1024
    out = np.empty((limit, 4), dtype=np.int32)
    step_of = np.empty(limit, dtype=np.int32)
    written = 0
    for node in range(first, last):
        degree = offsets[node + 1] - offsets[node]
        own_capacities = capacities[offsets[node] : offsets[node + 1]]
        fill_masks(node, offsets, tails, rows, masks)
        sort_by_step(rows[node], starts, order)
        for step in range(steps):
            jobs = order[starts[step + 1] : starts[step + 2]]
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, masks, table, class_masks, sizes, member)
            room = own_capacities * top[step] // bottom[step]
            if not place(classes, degree, class_masks, sizes, chunks, room, flow, via):
                raise ValueError("a step does not fit its time")
            # A class of j jobs on k links makes at most j + k - 1 pieces.
            most = len(jobs) + classes * degree
            if written + most > len(step_of):
                step_of = np.concatenate((step_of, np.empty(len(step_of) + most, dtype=np.int32)))
                out = np.concatenate((out, np.empty((len(out) + most, 4), dtype=np.int32)))
            after = _cut(jobs, member, classes, degree, flow, chunks, out, written)
            step_of[written:after] = step
            out[written:after, 0] += offsets[node]
            written = after
    return step_of[:written].copy(), out[:written, 0].copy(), out[:written, 1:].copy()
