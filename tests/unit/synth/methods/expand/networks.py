"""Random bases, and the sends of their schedules in words of nodes."""

from collections import Counter
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
