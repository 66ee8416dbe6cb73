"""What one node does for one program: its instructions, and the links its messages leave by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chorale.runners.api.connections import ConnectionPaths, program_connections
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, RankProgram, Wait
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A thread block; `send` and `receive` are connection ids."""

    send: int | None
    receive: int | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The part of a program that concerns one node; `rank` is None for a switch, which only forwards.

    outgoing_links: connection id -> link id, for the connections that this node sends on or forwards.
    """

    collective: Collective
    ranks: int
    rank: int | None
    chunks: int
    in_place: bool
    scratch_chunks: int
    blocks: tuple[BlockPlan, ...]
    outgoing_links: Mapping[int, int]


def node_plans(program: Program, topology: Topology) -> list[NodePlan]:
    """Return the plan of every node, compute nodes first. `program` must have been admitted for `topology`."""
    paths = ConnectionPaths(topology)
    ids = {connection: number for number, connection in enumerate(program_connections(program))}
    exits: list[dict[int, int]] = [{} for _ in range(topology.node_count)]
    for connection, number in ids.items():
        for link in paths.path(connection) or ():
            exits[int(topology.links.src[link])][number] = link
    idle = RankProgram(0, 0, 0, ())
    plans = []
    for node in range(topology.node_count):
        is_rank = node < topology.compute_count
        part = program.ranks[node] if is_rank else idle
        blocks = tuple(
            BlockPlan(
                None if block.send_peer is None else ids[node, block.send_peer, block.channel],  # type: ignore[index]
                None if block.recv_peer is None else ids[block.recv_peer, node, block.channel],  # type: ignore[index]
                block.instructions,
            )
            for block in part.blocks
        )
        head = (program.collective, len(program.ranks), node if is_rank else None, program.chunks, program.in_place)
        plans.append(NodePlan(*head, part.scratch_chunks, blocks, exits[node]))
    return plans


def encode_plan(plan: NodePlan) -> dict[str, Any]:
    """Return `plan` as plain JSON values."""
    return {
        "collective": [plan.collective.name.value, plan.collective.root],
        "ranks": plan.ranks,
        "rank": plan.rank,
        "chunks": plan.chunks,
        "in_place": plan.in_place,
        "scratch_chunks": plan.scratch_chunks,
        "blocks": [[b.send, b.receive, [_encode_instruction(step) for step in b.instructions]] for b in plan.blocks],
        "exits": list(plan.outgoing_links.items()),
    }


def decode_plan(value: Mapping[str, Any]) -> NodePlan:
    """Return the plan that `encode_plan` wrote."""
    name, root = value["collective"]
    return NodePlan(
        Collective(CollectiveName(name), root),
        value["ranks"],
        value["rank"],
        value["chunks"],
        value["in_place"],
        value["scratch_chunks"],
        tuple(BlockPlan(b[0], b[1], tuple(_decode_instruction(step) for step in b[2])) for b in value["blocks"]),
        dict(value["exits"]),
    )


def _encode_instruction(step: Instruction) -> list[Any]:
    waits = [[wait.block, wait.step] for wait in step.waits]
    return [step.op.value, step.src.buffer, step.src.offset, step.dst.buffer, step.dst.offset, step.count, waits]


def _decode_instruction(value: list[Any]) -> Instruction:
    op, src_buffer, src_offset, dst_buffer, dst_offset, count, waits = value
    src, dst = BufferRef(src_buffer, src_offset), BufferRef(dst_buffer, dst_offset)
    return Instruction(Op(op), src, dst, count, tuple(Wait(block, step) for block, step in waits))
