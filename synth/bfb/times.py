"""Kernels about links in time: what they can carry until then, and when a set of them has carried so much.

Time is counted in ticks: a link of capacity 1 carries a shard in `grain` ticks, once its delay is over. Until T,
a link of capacity c and delay a carries c * max(0, T - a) / grain shards. A link whose delay is not over by then
carries nothing and costs nothing: nobody has to decide which links to leave out. A set S of links has carried n
shards as soon as the sum of c * max(0, T - a) over S reaches n * grain, a piecewise linear function of T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bfb.link_sets import Masks, contains_link
from chorale.synth.bfb.problems import Integers, Problems
from chorale.synth.compiled import inlined


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
