"""Computes properties of programs for runners: number of equal parts, connections, and the links that messages use."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from chorale.synth.programs.check_structure import message_counts
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.topology.topology import Topology

PLAN_ALIGNMENT_BYTES = 16
"""Unit in which MSCCL++'s executor moves data. A plan's piece sizes must be multiples of it."""


def only_plans(programs: Iterable[AnyProgram]) -> list[ExecutionPlan]:
    return [program for program in programs if isinstance(program, ExecutionPlan)]


def equal_parts(program: AnyProgram, element_bytes: int) -> int:
    """Return the number of equal parts into which `program` cuts a vector. Each part must consist of complete elements.

    The parts of a program of instructions are its chunks. The parts of a plan are the pieces into which blocks divide
    chunks; a piece's size is a multiple of 16 bytes.
    """
    if not isinstance(program, ExecutionPlan):
        return program.chunks
    return program.chunks * pieces_of_a_chunk(program, 1) * max(1, PLAN_ALIGNMENT_BYTES // element_bytes)


def instruction_name(program: AnyProgram, position: tuple[int, int, int]) -> str:
    """Return the name that `program` uses for the instruction at `position` (rank, block, step)."""
    rank, block, step = position
    if isinstance(program, ExecutionPlan):
        return program.ranks[rank].blocks[block].operations[step].action.value
    assert isinstance(program, Program)
    return str(program.ranks[rank].blocks[block].instructions[step].op)


class Connection(NamedTuple):
    """A one-way queue of messages between two ranks on one channel."""

    src: int
    dst: int
    channel: int


def program_connections(program: Program) -> list[Connection]:
    """Return all connections of `program`, sorted, including those that only one end uses. O(instructions)."""
    sent, received = message_counts(program)
    return [Connection(*ends) for ends in sorted(sent.keys() | received.keys())]


def sent_chunks(program: AnyProgram) -> Mapping[Connection, int]:
    """Return the number of chunks that each connection of `program` carries. O(messages)."""
    found: Counter[Connection] = Counter()
    for src, dst, channel, chunks in program.messages():
        found[Connection(src, dst, channel)] += chunks
    return found


class ConnectionPaths:
    """Finds the links that messages use: the direct link, or else a fixed shortest path through other nodes.

    Channel c takes the parallel link with index c modulo the number of parallel links. If there are several shortest
    paths, source, destination and channel determine the choice, so that traffic spreads without randomness.
    """

    def __init__(self, topology: Topology) -> None:
        self._parallel: dict[tuple[int, int], list[int]] = {}
        self._sources: list[list[int]] = [[] for _ in range(topology.node_count)]
        self._targets: list[list[int]] = [[] for _ in range(topology.node_count)]
        for link_id, (src, dst) in enumerate(
            zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)
        ):
            if src == dst:
                continue
            links = self._parallel.setdefault((src, dst), [])
            links.append(link_id)
            if len(links) == 1:
                self._sources[dst].append(src)
                self._targets[src].append(dst)
        self._hops_from: dict[int, list[int]] = {}  # number of links from a source to every node; -1: no path

    def path(self, connection: Connection) -> tuple[int, ...] | None:
        """Return the ids of the links on `connection`'s path; None if there is no path. O(links) once per source."""
        if connection.src not in self._hops_from:
            hops = [-1] * len(self._sources)
            hops[connection.src] = 0
            queue = deque([connection.src])
            while queue:
                node = queue.popleft()
                for target in self._targets[node]:
                    if hops[target] < 0:
                        hops[target] = hops[node] + 1
                        queue.append(target)
            self._hops_from[connection.src] = hops
        hops = self._hops_from[connection.src]
        if hops[connection.dst] < 0:
            return None
        node, links = connection.dst, []
        while node != connection.src:
            before = [source for source in self._sources[node] if hops[source] == hops[node] - 1]
            source = before[sum(connection) % len(before)]
            parallel = self._parallel[source, node]
            links.append(parallel[connection.channel % len(parallel)])
            node = source
        return tuple(reversed(links))


def busiest_share(program: Program, topology: Topology) -> Fraction:
    """Return the busiest link's bytes divided by the vector's bytes. Connections without a path are ignored."""
    paths, chunks = ConnectionPaths(topology), Counter[int]()
    for connection, count in sent_chunks(program).items():
        for link in paths.path(connection) or ():
            chunks[link] += count
    return Fraction(max(chunks.values(), default=0), program.chunks)
