"""Writes the JSON of execution plans as MSCCL++ 0.9.0 reads it.

The format has no version; the loader of that release is its definition. Keys that the loader does not know (`root`,
`origin`) are ours, for reading a plan back: it ignores them.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.plans.plan import Action, ExecutionPlan, Operand, Operation, PlanBlock, RankPlan

THREADS_PER_BLOCK = 1024
ALIGNMENT_BYTES = 16
COLLECTIVE_NAMES = {name: name.value for name in CollectiveName} | {CollectiveName.REDUCE_SCATTER: "reducescatter"}
Json = dict[str, Any]


def plan_text(plan: ExecutionPlan) -> str:
    """Return the text of `plan`, the same bytes for equal plans. The executor keeps what it set up under the name of a
    plan, so that the name ends with a digest of all the rest."""
    body = _document(plan)
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:8]
    return json.dumps({"name": f"{plan.name} {digest}", **body}, indent=1) + "\n"


def _document(plan: ExecutionPlan) -> Json:
    collective = plan.collective
    document: Json = {
        "collective": COLLECTIVE_NAMES[collective.name],
        "protocol": "Simple",
        "inplace": plan.in_place,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT_BYTES,
        "num_threads_per_block": THREADS_PER_BLOCK,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
    }
    if collective.root is not None:
        document["root"] = collective.root
    if plan.origin:
        document["origin"] = plan.origin
    return document | {"gpus": [_rank(number, rank) for number, rank in enumerate(plan.ranks)]}


def _rank(number: int, rank: RankPlan) -> Json:
    return {
        "id": number,
        "input_chunks": rank.input_chunks,
        "output_chunks": rank.output_chunks,
        "scratch_chunks": rank.scratch_chunks,
        "channels": [{"channel_type": "memory", "connected_to": list(rank.peers)}] if rank.peers else [],
        "remote_buffers": [
            {"rank": peer, "type": buffer, "access_channel_types": ["memory"]} for peer, buffer in rank.remotes
        ],
        "semaphores": [{"init_value": value} for value in rank.semaphores],
        "threadblocks": [_block(index, block) for index, block in enumerate(rank.blocks)],
    }


def _block(index: int, block: PlanBlock) -> Json:
    return {
        "id": index,
        "channels": [{"channel_type": "memory", "channel_ids": list(block.channels)}] if block.channels else [],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": list(block.remotes)}]
        if block.remotes
        else [],
        "ops": [_operation(operation) for operation in block.operations],
    }


def _operation(operation: Operation) -> Json:
    written: Json = {"name": operation.action.value}
    if operation.channels or operation.action is Action.PUT:
        written["channel_type"] = "memory"
    if operation.channels:
        written["channel_ids"] = list(operation.channels)
    if operation.semaphores:
        written["semaphore_ids"] = list(operation.semaphores)
    if operation.action.moves:
        written["src_buff"] = [_operand(operand) for operand in operation.sources]
        written["dst_buff"] = [_operand(operand) for operand in operation.targets]
    return written


def _operand(operand: Operand) -> Json:
    where = {"type": operand.buffer} if operand.remote is None else {"buffer_id": operand.remote}
    return {**where, "index": operand.first, "size": operand.count}
