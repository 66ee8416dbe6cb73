"""Random bases, and what the paper's definitions of expanded schedules say, node by node and send by send."""

from collections import Counter
from itertools import product
from typing import NamedTuple

from hypothesis import strategies as st

from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

SERIAL = SerialExecutor()


@st.composite
def regular_networks(draw: st.DrawFn, max_nodes: int = 6, max_degree: int = 3, loops: bool = True) -> Topology:
    """Strongly connected networks with d links into and out of every node: parallel ones, self-loops if `loops`."""
    nodes = draw(st.integers(2, max_nodes))
    cycle = draw(st.permutations(range(nodes)))
    links = [Link(cycle[place - 1], cycle[place]) for place in range(nodes)]
    for _ in range(draw(st.integers(0, max_degree - 1))):
        turn = draw(st.permutations(range(nodes)))
        if not loops and any(turn[node] == node for node in range(nodes)):
            turn = _cycle(turn)
        links += [Link(node, turn[node]) for node in range(nodes)]
    return network_of(nodes, links)


def _cycle(order: list[int]) -> list[int]:
    turn = [0] * len(order)
    for place, node in enumerate(order):
        turn[order[place - 1]] = node
    return turn


def network_of(nodes: int, links: list[Link]) -> Topology:
    return Topology("random", tuple(map(str, range(nodes))), nodes, Links.build(links))


def breadth_first(topology: Topology) -> Schedule:
    """Return a BFB allgather in two chunks per shard."""
    return bfb_allgather(topology, SERIAL, chunks=2)


class Send(NamedTuple):
    """One row of a schedule, in words of nodes: parallel links are not told apart."""

    step: int
    src: int
    dst: int
    shard: int
    chunk: int


def sends(schedule: Schedule) -> Counter[Send]:
    """Return every chunk that `schedule` sends."""
    rows = schedule.transfers
    columns = (rows.step, schedule.src, schedule.dst, rows.shard, rows.lo, rows.hi)
    counted: Counter[Send] = Counter()
    for step, src, dst, shard, lo, hi in zip(*(column.tolist() for column in columns), strict=True):
        counted.update(Send(step, src, dst, shard, chunk) for chunk in range(lo, hi))
    return counted


def line_sends(base: Schedule) -> Counter[Send]:
    """Return the sends of definition 1, by pairs of links."""
    links, rows = base.topology.links, base.transfers
    ends = sorted(range(len(links)), key=lambda link: (links.src[link], links.dst[link], link))
    rank = {link: place for place, link in enumerate(ends)}
    src, dst = links.src.tolist(), links.dst.tolist()
    expected: Counter[Send] = Counter()
    for first, second in product(range(len(links)), repeat=2):
        if dst[first] == src[second] and first != second:
            node, neighbour = rank[first], rank[second]
            expected.update(Send(0, node, neighbour, node, chunk) for chunk in range(base.chunks_per_shard))
    for step, route, shard, lo, hi in zip(*(column.tolist() for column in rows.columns[:5]), strict=True):
        for into, out in product(range(len(links)), repeat=2):
            if dst[into] == shard and src[out] == dst[route] and into != out:
                node, neighbour, origin = rank[route], rank[out], rank[into]
                expected.update(Send(step + 1, node, neighbour, origin, chunk) for chunk in range(lo, hi))
    return expected


def degree_sends(base: Schedule, copies: int, chunks: int) -> Counter[Send]:
    """Return the sends of definition 2, with `chunks` per shard."""
    factor = chunks // base.chunks_per_shard
    expected: Counter[Send] = Counter()
    for send, count in sends(base).items():
        for own, other, part in product(range(copies), range(copies), range(factor)):
            u, w, v = send.src * copies + own, send.dst * copies + other, send.shard * copies + own
            expected[Send(send.step, u, w, v, send.chunk * factor + part)] += count
    if copies == 1:
        return expected
    links = base.topology.links
    for node, own, other in product(range(base.topology.node_count), range(copies), range(copies)):
        if own == other:
            continue
        sources = sorted(u * copies + copy for u in links.src[links.dst == node].tolist() for copy in range(copies))
        size = chunks // len(sources)
        for part, source in enumerate(sources):
            for chunk in range(part * size, (part + 1) * size):
                expected[Send(base.steps, source, node * copies + other, node * copies + own, chunk)] += 1
    return expected


def power_sends(base: Schedule, times: int) -> Counter[Send]:
    """Return the sends of definition 14, by tuples of nodes."""
    nodes, chunks = base.topology.node_count, base.chunks_per_shard
    expected: Counter[Send] = Counter()
    for (step, u, v, w, chunk), count in sends(base).items():
        for stage in range(times):
            for x, y, z in product(
                product(range(nodes), repeat=stage),
                product(range(nodes), repeat=stage),
                product(range(nodes), repeat=times - 1 - stage),
            ):
                for part in range(times):
                    src, dst, shard = (
                        _rank(_shifted(node, part), nodes) for node in ((*y, u, *z), (*y, v, *z), (*x, w, *z))
                    )
                    when = step + stage * base.steps
                    expected[Send(when, src, dst, shard, part * chunks + chunk)] += count
    return expected


def _shifted(node: tuple[int, ...], places: int) -> tuple[int, ...]:
    return node[len(node) - places :] + node[: len(node) - places]


def _rank(node: tuple[int, ...], nodes: int) -> int:
    rank = 0
    for coordinate in node:
        rank = rank * nodes + coordinate
    return rank
