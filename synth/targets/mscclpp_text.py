"""Writes MSCCL++ execution plans (microsoft/mscclpp) as JSON.

The format has no version number; it is defined by the loaders of releases 0.8.0 to 0.10, which can all read Chorale's
plans. Chorale adds the keys `root` and `origin`, which the loaders ignore.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import (
    MAX_BLOCK_OPERATIONS,
    OFFSET_BYTES,
    TARGET,
    VECTOR_BYTES,
    Action,
    ExecutionPlan,
    Kind,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
)
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Program

ALIGNMENT_BYTES = 16

LIMITS = TargetLimits(
    ranks=128,
    channels=1024,
    threadblocks=1024,
    resident_threadblocks=108,
    waitable_threadblocks=1024,
    blocks_per_direction=1024,
    steps=2**20,  # a nominal limit: longer blocks are cut
    waits=2**20,
    single_wait=False,
    count=2**20,
    offset=2**20,
    elements_per_rank=1_000_000,
    elements=1_000_000,
    fused_reductions=None,
    largest_max_bytes=OFFSET_BYTES - 1,
    one_sided_operations=MAX_BLOCK_OPERATIONS,
    alltoall_in_place=True,
    alignment_bytes=ALIGNMENT_BYTES,
    message_buffers=None,
)


@dataclass(frozen=True, slots=True)
class MscclppJson:
    """Target `mscclpp-json`. Its limits assume that all blocks, of up to 1024 threads, run on a GPU simultaneously."""

    name: str = TARGET
    limits: TargetLimits = LIMITS

    def emit(self, program: Program) -> str:
        """Return `program` as one-sided operations in JSON. Raises InvalidInput if MSCCL++ would reject them."""
        require_valid_structure(program, self.limits, self.name)
        plan = plan_of(program)
        for violation in plan_structure_violations(plan):
            rule = f"a plan must fit {self.name} ({violation.rule})"
            raise InvalidInput(rule, violation.message, "lower it with more channels, or fewer chunks")
        return plan_text(plan)


COLLECTIVE_NAMES = {name: name.value for name in CollectiveName} | {CollectiveName.REDUCE_SCATTER: "reducescatter"}
Json = dict[str, Any]


def plan_text(plan: ExecutionPlan) -> str:
    """Return `plan` as JSON text. Equal plans give equal bytes.

    The executor caches its state by the plan's name, so the name ends with a digest of all other contents.
    """
    document = {**_head(plan), "gpus": [_rank(number, rank) for number, rank in enumerate(plan.ranks)]}
    digest = sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:8]
    return json.dumps({"name": f"{plan.name} {digest}", **document}, indent=1) + "\n"


def _head(plan: ExecutionPlan) -> Json:
    collective, settings = plan.collective, plan.settings
    document: Json = {
        "collective": COLLECTIVE_NAMES[collective.name],
        "protocol": plan.protocol,
        "inplace": plan.in_place,
        "reuse_resources": settings.reuse,
        "use_double_scratch_buffer": settings.double_scratch,
        "buffer_alignment": settings.alignment_bytes,
        "num_threads_per_block": settings.threads,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
    }
    if settings.vector_bytes != VECTOR_BYTES[-1]:
        document["vector_bytes"] = settings.vector_bytes
    if collective.root is not None:
        document["root"] = collective.root
    if plan.origin:
        document["origin"] = plan.origin
    return document


def _rank(number: int, rank: RankPlan) -> Json:
    channels: list[Json] = [
        {"channel_type": kind, "connected_to": list(peers)}
        for kind, peers in (("memory", rank.peers), ("port", rank.port_peers))
        if peers
    ]
    channels += [
        {"channel_type": "switch", "buffer_type": buffer, "rank_groups": [{"size": len(group), "ranks": list(group)}]}
        for buffer, group in rank.switches
    ]
    access = [*rank.access, *[("memory",)] * (len(rank.remotes) - len(rank.access))]
    return {
        "id": number,
        "input_chunks": rank.input_chunks,
        "output_chunks": rank.output_chunks,
        "scratch_chunks": rank.scratch_chunks,
        "channels": channels,
        "remote_buffers": [
            {"rank": peer, "type": buffer, "access_channel_types": list(kinds)}
            for (peer, buffer), kinds in zip(rank.remotes, access, strict=True)
        ],
        "semaphores": [{"init_value": value} for value in rank.semaphores],
        "threadblocks": [_block(index, block) for index, block in enumerate(rank.blocks)],
    }


_KINDS: tuple[Kind, ...] = ("memory", "port", "switch")


def _block(index: int, block: PlanBlock) -> Json:
    return {
        "id": index,
        "channels": [
            {"channel_type": kind, "channel_ids": list(block.channels_of(kind))}
            for kind in _KINDS
            if block.channels_of(kind)
        ],
        "remote_buffer_refs": [
            {"access_channel_type": kind, "remote_buffer_ids": list(block.remotes_of(kind))}
            for kind in _KINDS[:2]
            if block.remotes_of(kind)
        ],
        "ops": [_operation(operation) for operation in block.operations],
    }


def _operation(operation: Operation) -> Json:
    written: Json = {"name": operation.action.value}
    remote = any(operand.remote is not None for operand in (*operation.sources, *operation.targets))
    if operation.channels or remote or operation.kind != "memory":
        written["channel_type"] = operation.kind
    if operation.channels:
        written["channel_ids"] = list(operation.channels)
    if operation.semaphores:
        written["semaphore_ids"] = list(operation.semaphores)
    if operation.action.moves:
        written["src_buff"] = [_operand(operand) for operand in operation.sources]
        written["dst_buff"] = [_operand(operand) for operand in operation.targets]
    if operation.part != (0, 1):
        written["tbg_info"] = {"tb_id": operation.part[0], "tbg_size": operation.part[1]}
    if operation.barrier is not None:
        written |= {"barrier_id": operation.barrier[0], "num_threadblocks": operation.barrier[1]}
    if operation.action is Action.PIPELINE and operation.pipeline is not None:
        unit_bytes, chunks = operation.pipeline
        written["iter_context"] = {"unit_size": unit_bytes, "num_chunks": chunks}
        written["ops"] = [_operation(inner) for inner in operation.body]
    return written


def _operand(operand: Operand) -> Json:
    if operand.switch is not None:
        return {"switch_channel_id": operand.switch, "index": operand.first, "size": operand.count}
    where = {"type": operand.buffer} if operand.remote is None else {"buffer_id": operand.remote}
    return {**where, "index": operand.first, "size": operand.count}
