"""Kernels that solve a batch of nodes: times of links and link sets, loads, integral chunks, transfers.

Time is counted in ticks: a link of capacity c and delay a carries c * max(0, T - a) / grain shards until T. A link
whose delay is not over by then carries nothing and costs nothing, so links need not be chosen. A set S of links has
carried n shards as soon as the sum of c * max(0, T - a) over S reaches n * grain, a piecewise linear function of T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.bfb.balance_solver import (
    Integers,
    Problems,
    Ranks,
    Workspace,
    assign_units,
    count_inside,
    find_classes,
    jobs_of,
    make_workspace,
    prepare_node,
    reached_links,
    usable_links,
)
from chorale.synth.methods.bfb.link_sets import Masks, contains_link


class InLinks(NamedTuple):
    """Capacity and delay, in ticks, of every in-link of a node."""

    capacities: Integers
    delays: Integers
    grain: int


@inlined
def in_links(node: int, problems: Problems, chunks: int) -> InLinks:
    """Return the in-links of `node`; times are counted in ticks of a chunk, `chunks` to a tick of a shard."""
    first, last = problems.offsets[node], problems.offsets[node + 1]
    return InLinks(problems.capacities[first:last], problems.delays[first:last] * chunks, problems.grain)


@inlined
def room_until(top: int, bottom: int, links: InLinks) -> Integers:
    """Return what every link carries until top / bottom, in 1 / (bottom * grain) shards (or chunks)."""
    room = np.empty(len(links.capacities), dtype=np.int64)
    for link in range(len(room)):
        room[link] = links.capacities[link] * max(0, top - bottom * links.delays[link])
    return room


@inlined
def least_time(need: int, chosen: Masks, links: InLinks) -> tuple[int, int]:
    """Return, in lowest terms, the time at which the set `chosen` has carried `need` (at least 1) shards.

    Were all of the set in use, it would take r; links with delays of r or more only make the others wait, and the
    rest alone takes at most r. So they are dropped until every delay is below the time.
    """
    used = chosen.copy()
    while True:
        capacity, ticks = 0, need * links.grain
        for link in range(len(links.capacities)):
            if contains_link(used, link):
                capacity += links.capacities[link]
                ticks += links.capacities[link] * links.delays[link]
        dropped = False
        for link in range(len(links.capacities)):
            if contains_link(used, link) and links.delays[link] * capacity >= ticks:
                used[link // 64] &= ~(np.uint64(1) << np.uint64(link % 64))
                dropped = True
        if not dropped:
            divisor = _gcd(ticks, capacity)
            return ticks // divisor, capacity // divisor


@inlined
def next_time(top: int, bottom: int, need: int, chosen: Masks, links: InLinks) -> tuple[int, int]:
    """Return the least time from top / bottom on at which the set `chosen` has carried `need` whole chunks."""
    while True:
        total = 0
        best_top, best_bottom = -1, 1
        for link in range(len(links.capacities)):
            if contains_link(chosen, link):
                capacity, delay = links.capacities[link], links.delays[link]
                whole = capacity * max(0, top - bottom * delay) // (bottom * links.grain)
                total += whole
                following = (whole + 1) * links.grain + capacity * delay  # over capacity: when it has one more
                if best_top < 0 or following * best_bottom < best_top * capacity:
                    best_top, best_bottom = following, capacity
        if total >= need:
            return top, bottom
        top, bottom = best_top, best_bottom


@inlined
def _gcd(first: int, second: int) -> int:
    while second:
        first, second = second, first % second
    return first


@compiled
def least_loads(
    first: int, last: int, problems: Problems, steps: int
) -> tuple[Integers, Integers, Integers, Matrix[np.uint64]]:
    """Solve the problems of nodes `first` to `last - 1`: the largest U(u, t) of each step and why.

    Returns (p, q, node, links), rows by step: max over the block's nodes of U(u, t) = p / q in lowest terms,
    the node that attains it and its critical link set S, so that S has carried n(S) shards at p / q ticks and not
    before. q = 0: nothing arrives.
    """
    top = np.zeros(steps, dtype=np.int64)
    bottom = np.zeros(steps, dtype=np.int64)
    witness = np.zeros(steps, dtype=np.int64)
    witness_links = np.zeros((steps, problems.words), dtype=np.uint64)
    work = make_workspace(problems, steps)
    links = np.zeros(problems.words, dtype=np.uint64)
    for node in range(first, last):
        incoming = in_links(node, problems, 1)
        prepare_node(node, problems, work)
        for step in range(steps):
            jobs = jobs_of(step, work)
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, work)
            usable_links(classes, links, work)
            feasible = False
            # The largest load so far is a lower bound that most nodes meet at once.
            while not feasible:
                ticks, parts = least_time(count_inside(classes, links, work), links, incoming)
                if bottom[step] == 0 or ticks * bottom[step] > top[step] * parts:
                    top[step], bottom[step] = ticks, parts
                    witness[step] = node
                    witness_links[step] = links
                unit = bottom[step] * problems.grain
                feasible = assign_units(classes, unit, room_until(top[step], bottom[step], incoming), work)
                if not feasible:
                    reached_links(len(incoming.delays), links, work)
    return top, bottom, witness, witness_links


@inlined
def _whole_chunks(top: int, bottom: int, incoming: InLinks) -> Integers:
    return room_until(top, bottom, incoming) // (bottom * incoming.grain)


@compiled
def integral_chunk_times(
    first: int, last: int, problems: Problems, chunks: int, least_top: Integers, least_bottom: Integers
) -> tuple[Integers, Integers, Integers, Matrix[np.uint64]]:
    """Return (p, q, node, links) per step: the least time p / q >= the given one that lets all nodes finish it.

    `node` and `links` say which problem made the time longer than the given one (-1: none did). Shards are cut
    into `chunks` equal chunks and a link of capacity c and delay a carries floor(c * (time - a) / grain) whole
    chunks, if its delay is over; the given time (in ticks of a chunk) is a lower bound to start from. Exact for any
    capacities and delays: with whole chunks the problem is a transportation problem, whose polytope is integral.
    """
    steps = len(least_top)
    top, bottom = least_top.copy(), least_bottom.copy()
    witness = np.full(steps, -1, dtype=np.int64)
    witness_links = np.zeros((steps, problems.words), dtype=np.uint64)
    work = make_workspace(problems, steps)
    links = np.zeros(problems.words, dtype=np.uint64)
    for node in range(first, last):
        incoming = in_links(node, problems, chunks)
        prepare_node(node, problems, work)
        for step in range(steps):
            jobs = jobs_of(step, work)
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, work)
            while not assign_units(classes, chunks, _whole_chunks(top[step], bottom[step], incoming), work):
                reached_links(len(incoming.delays), links, work)
                need = chunks * count_inside(classes, links, work)
                top[step], bottom[step] = next_time(top[step], bottom[step], need, links, incoming)
                witness[step] = node
                witness_links[step] = links
    return top, bottom, witness, witness_links


@inlined
def _cut(jobs: Ranks, classes: int, chunks: int, work: Workspace, out: Matrix[np.int32]) -> int:
    """Write one row (in-link, shard, lo, hi) per piece: each class hands its jobs to its links in order."""
    link_of = np.zeros(classes, dtype=np.int64)
    written = 0
    for index in range(len(jobs)):
        group = work.member[index]
        position = 0
        while position < chunks:
            while work.flow[link_of[group], group] == 0:
                link_of[group] += 1
            link = link_of[group]
            amount = min(chunks - position, work.flow[link, group])
            work.flow[link, group] -= amount
            out[written, 0] = link
            out[written, 1] = jobs[index]
            out[written, 2] = position
            out[written, 3] = position + amount
            written += 1
            position += amount
    return written


@compiled
def assign_chunks(
    first: int, last: int, problems: Problems, chunks: int, top: Integers, bottom: Integers
) -> tuple[Ranks, Matrix[np.int32]]:
    """Assign every chunk that nodes `first` to `last - 1` receive to a link, within time top / bottom per step.

    Returns (int32 step per row, int32 rows of link, shard, lo, hi), ordered by node, step and shard. Raises
    ValueError if a step does not fit its time.
    """
    steps = len(top)
    work = make_workspace(problems, steps)
    limit = 2 * len(work.order) * (last - first) + 1024
    out = np.empty((limit, 4), dtype=np.int32)
    step_of = np.empty(limit, dtype=np.int32)
    written = 0
    for node in range(first, last):
        incoming = in_links(node, problems, chunks)
        prepare_node(node, problems, work)
        for step in range(steps):
            jobs = jobs_of(step, work)
            if len(jobs) == 0:
                continue
            classes = find_classes(jobs, work)
            if not assign_units(classes, chunks, _whole_chunks(top[step], bottom[step], incoming), work):
                raise ValueError("a step does not fit its time")
            # A class of j jobs on k links makes at most j + k - 1 pieces.
            most = len(jobs) + classes * len(incoming.delays)
            if written + most > len(step_of):
                step_of = np.concatenate((step_of, np.empty(len(step_of) + most, dtype=np.int32)))
                out = np.concatenate((out, np.empty((len(out) + most, 4), dtype=np.int32)))
            after = written + _cut(jobs, classes, chunks, work, out[written:])
            step_of[written:after] = step
            out[written:after, 0] += problems.offsets[node]
            written = after
    return step_of[:written].copy(), out[:written].copy()
