"""Programs and schedules that several tests of lowering use: written by hand, or lowered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock, Wait
from chorale.synth.schedule.schedule import ColumnBounds, Kind, Routes, Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

Edit = tuple[int, int, int, Instruction | None]
"""Rank, block, step, and what to put there; None removes the instruction."""


@lru_cache(maxsize=64)
def verified(spec: str, collective: str, method: str = "bfb", chunks: int | None = None) -> VerifiedSchedule:
    return synthesized(method, spec, collective, chunks=chunks)


def lowered(spec: str, collective: str, target: str = "oneccl-xml", method: str = "bfb", **options: object) -> Program:
    return lower(verified(spec, collective, method), LoweringOptions(target, **options))  # type: ignore[arg-type]


def exchange_schedule(chunks: int) -> VerifiedSchedule:
    """Recursive doubling on a square: in each step both ends of a link send all they have to each other."""
    topology, rows = parse_topology("hypercube:2"), []
    for step, distance in enumerate((1, 2)):
        for link, (src, dst, *_) in enumerate(topology.links):
            if src ^ dst == distance:
                rows.extend((step, link, shard, 0, chunks, 1) for shard in range(4))
    return verify(schedule_of(topology, ALLREDUCE, "stepped", chunks, rows))


def stars(spec: str) -> Schedule:
    """Each rank is the root of one shard: sums go up to the switch and to it, results from it back to all others."""
    topology = parse_topology(spec)
    ranks, links = topology.compute_count, topology.links
    switch = min(topology.abilities)
    up = {src: link for link, (src, dst, *_) in enumerate(links) if dst == switch}
    down = {dst: link for link, (src, dst, *_) in enumerate(links) if src == switch}
    rows = []
    for root in range(ranks):
        others = [rank for rank in range(ranks) if rank != root]
        rows += [(0, up[rank], root, 0, 1, 1) for rank in others] + [(0, down[root], root, 0, 1, 1)]
        rows += [(1, up[root], root, 0, 1, 0)] + [(1, down[rank], root, 0, 1, 0) for rank in others]
    return schedule_of(topology, ALLREDUCE, "pipelined", 1, rows)


def instructions(program: Program) -> Iterator[tuple[int, int, int, Instruction]]:
    for rank, rank_program in enumerate(program.ranks):
        for index, block in enumerate(rank_program.blocks):
            for step, instruction in enumerate(block.instructions):
                yield rank, index, step, instruction


def edited(program: Program, edit: Edit) -> Program:
    rank, index, step, instruction = edit
    block = program.ranks[rank].blocks[index]
    items = [*block.instructions[:step], *([instruction] if instruction else []), *block.instructions[step + 1 :]]
    return with_block(program, rank, index, replace(block, instructions=tuple(items)))


def with_block(program: Any, rank: int, index: int, block: Any) -> Any:
    blocks = list(program.ranks[rank].blocks)
    blocks[index] = block
    ranks = list(program.ranks)
    ranks[rank] = replace(ranks[rank], blocks=tuple(blocks))
    return replace(program, ranks=tuple(ranks))


def step(
    op: str, src: str, dst: str | None = None, count: int = 1, waits: Sequence[tuple[int, int]] = ()
) -> Instruction:
    """Build an instruction from words such as step("rrc", "i3", "o3")."""
    places = [BufferRef(word[0], int(word[1:])) for word in (src, dst or src)]  # type: ignore[arg-type]
    return Instruction(Op(op), places[0], places[1], count, tuple(Wait(*wait) for wait in waits))


def block(send: int | None, recv: int | None, *items: Instruction, channel: int = 0) -> ThreadBlock:
    return ThreadBlock(send, recv, channel, items)


def program(
    collective: CollectiveName, chunks: int, *ranks: Sequence[ThreadBlock], scratch: int = 0, **changes: object
) -> Program:
    """Build an in-place program that declares whole buffers."""
    count = len(ranks)
    share = chunks // count
    inputs = share if collective == CollectiveName.ALLGATHER else chunks
    outputs = share if collective == CollectiveName.REDUCE_SCATTER else chunks
    bodies = tuple(RankProgram(inputs, outputs, scratch, tuple(blocks)) for blocks in ranks)
    rooted = collective in (CollectiveName.BROADCAST, CollectiveName.REDUCE)
    channels = 1 + max(item.channel for blocks in ranks for item in blocks)
    wanted = Collective(collective, 0 if rooted else None)
    made = Program("hand made", "oneccl-xml", wanted, chunks, True, "Simple", channels, bodies)
    return replace(made, **changes)  # type: ignore[arg-type]


def exchange(count: int, target: str = "msccl-xml", **changes: object) -> Program:
    """Both ranks send `count` chunks in one step before they receive as many."""
    ranks = []
    for rank in range(2):
        mine, theirs = f"o{rank * count}", f"o{(1 - rank) * count}"
        ranks.append([block(1 - rank, 1 - rank, step("s", mine, count=count), step("r", theirs, count=count))])
    made = program(CollectiveName.ALLGATHER, 2 * count, *ranks, target=target)
    return replace(made, **changes)


Row = tuple[int, int, int, int, int, int]
"""Step, link, shard, low, high, reduces."""
Edge = tuple[int, int, int]
"""Depth, link, and the link back."""


def breadth_first_tree(topology: Topology, root: int, turn: int) -> list[Edge]:
    """Return the edges of a tree from `root` along links; `turn` picks one of several parents."""
    links = list(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    depth, edges, level = {root: 0}, [], 0
    while len(depth) < topology.compute_count:
        order = [(number + turn) % len(links) for number in range(len(links))]
        for link in order:
            src, dst = links[link]
            if depth.get(src) == level and dst not in depth:
                depth[dst] = level + 1
                edges.append((level, link, links.index((dst, src))))
        level += 1
    return edges


def trees(spec: str, collective: Collective, kind: Kind = "pipelined") -> VerifiedSchedule:
    """Return the verified schedule of two chunks per shard, each along a tree of its own: down from the root of the
    shard, up to it, or both. In a broadcast and a reduce, shards take different trees."""
    topology = parse_topology(spec)
    rows: list[Row] = []
    height = 0
    for shard in range(topology.compute_count):
        for chunk in range(2):
            root = shard if collective.root is None else collective.root
            edges = breadth_first_tree(topology, root, 5 * chunk + 3 * shard)
            height = max(height, 1 + max(depth for depth, _, _ in edges))
            rows += _rows(collective, edges, shard, chunk)
    ups = collective.name in (ALLREDUCE.name, REDUCE_SCATTER.name, CollectiveName.REDUCE)
    rows = [((height - 1 - row[0]) if row[5] else row[0] + height * ups, *row[1:]) for row in rows]
    return verify(schedule_of(topology, collective, kind, 2, rows))


def _rows(collective: Collective, edges: list[Edge], shard: int, chunk: int) -> Iterator[Row]:
    for depth, link, back in edges:
        if collective.reduces:
            yield depth, back, shard, chunk, chunk + 1, 1
        if collective.name in (ALLREDUCE.name, ALLGATHER.name, CollectiveName.BROADCAST):
            yield depth, link, shard, chunk, chunk + 1, 0


def hopping_alltoall(spec: str, wait: int = 0) -> VerifiedSchedule:
    """Return an alltoall along breadth-first trees, a hop a step; shard s of rank r starts `wait` * (s + r) late."""
    topology = parse_topology(spec)
    ranks = topology.compute_count
    rows: list[Row] = []
    for source in range(ranks):
        entering = {int(topology.links.dst[link]): link for _, link, _ in breadth_first_tree(topology, source, source)}
        for target in range(ranks):
            path, node = [], target
            while node != source:
                path.insert(0, entering[node])
                node = int(topology.links.src[entering[node]])
            begin = wait * (source + target)
            rows += [(begin + hop, link, source * ranks + target, 0, 1, 0) for hop, link in enumerate(path)]
    return verify(schedule_of(topology, ALLTOALL, "stepped", 1, rows))


def schedule_of(
    topology: Topology, collective: Collective, kind: Kind, chunks: int, rows: list[Row], routes: Routes | None = None
) -> Schedule:
    """Return the schedule of `rows`, whose routes are the links if there are no others."""
    steps, shards = 1 + max(row[0] for row in rows), topology.compute_count ** (2 if collective == ALLTOALL else 1)
    routes = routes or Routes.direct(len(topology.links))
    columns = [np.array(column) for column in zip(*sorted(rows), strict=True)]
    transfers = ColumnBounds(steps, len(routes), shards, chunks).pack(columns)
    return Schedule(topology, collective, kind, steps, chunks, transfers, routes, "plain", {})
