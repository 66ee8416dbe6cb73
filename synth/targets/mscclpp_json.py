"""The JSON execution plans of MSCCL++ 0.9.0 (microsoft/mscclpp): puts and signals between GPUs that share memory.

The format has no version; the loader of that release is its definition. Written are the operations nop, signal, wait,
put, copy, re, sem_acquire and sem_release over memory channels, which need peers to see each other's memory: the GPUs
of one box. Packets (LL), port channels (networks), switch channels (NVLS), reads from peers and pipelines are not.
Keys that the loader ignores (`root`, `origin`) are ours. Reading checks all that the loader requires.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import (
    MAX_BLOCK_OPERATIONS,
    OFFSET_BYTES,
    TARGET,
    Action,
    ExecutionPlan,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
)
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Buffer, Program
from chorale.synth.targets.json_fields import MAX_INTEGER, JsonFields

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


_DIGEST = re.compile(r" [0-9a-f]{8}\Z")  # see `text_of`
MAX_BYTES = 64 * 2**20
_COLLECTIVES = {spelling: name for name, spelling in COLLECTIVE_NAMES.items()}
_BUFFERS: dict[str, Buffer] = {"i": "i", "o": "o", "s": "s"}


def parse_plan(text: bytes, most_bytes: int = MAX_BYTES) -> ExecutionPlan:
    """Return the plan that `text` holds; InvalidInput for anything that is no such plan, and for what of the format is
    not checked here: packets, port and switch channels, pipelines, reads from peers."""
    if len(text) > most_bytes:
        raise InvalidInput(f"a plan must be at most {most_bytes} bytes", len(text), "split the collective")
    try:
        root = JsonFields(json.loads(text.decode(), parse_constant=_refuse_constant), "the plan")
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a plan must be JSON in UTF-8", str(error), "write the file again") from None
    return _plan(root)


def is_plan_text(text: bytes) -> bool:
    """Return whether `text` is a JSON object with what each rank of a plan does, and so no schedule."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(root, dict) and "gpus" in root


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _plan(root: JsonFields) -> ExecutionPlan:
    if root.text("protocol") != "Simple":
        raise root.error("plans are checked for protocol Simple", root.text("protocol"), "write it for Simple")
    for name in ("reuse_resources", "use_double_scratch_buffer"):
        if root.flag(name, False):
            raise root.error(f"plans are checked without {name}", True, "write it without")
    spelling = root.text("collective")
    if spelling not in _COLLECTIVES:
        rule = "the collective of a plan must be one that is known"
        raise root.error(rule, spelling, f"known are {', '.join(_COLLECTIVES)}")
    collective = Collective(_COLLECTIVES[spelling])
    if collective.is_rooted:
        collective = Collective(collective.name, root.integer("root", 0))
    ranks = tuple(_read_rank(number, rank) for number, rank in enumerate(root.objects("gpus")))
    if not ranks:
        raise root.error("a plan must have gpus", "none", "write one for each rank")
    return ExecutionPlan(
        _DIGEST.sub("", root.text("name")),
        collective,
        root.flag("inplace"),
        ranks,
        root.integer("min_message_size", 0),
        root.integer("max_message_size", MAX_INTEGER),
        root.text("origin", ""),
    )


def _read_rank(number: int, fields: JsonFields) -> RankPlan:
    if fields.integer("id") != number:
        raise fields.error("the id of a gpu must be its place in the list", fields.integer("id"), f"write {number}")
    blocks = []
    for index, block in enumerate(fields.objects("threadblocks")):
        if block.integer("id") != index:
            raise block.error("the id of a block must be its place in the list", block.integer("id"), f"write {index}")
        blocks.append(_read_block(block))
    return RankPlan(
        fields.integer("input_chunks", least=1),
        fields.integer("output_chunks", least=1),
        fields.integer("scratch_chunks"),
        tuple(peer for channel in fields.objects("channels") for peer in _of_memory(channel).integers("connected_to")),
        tuple((remote.integer("rank"), _read_remote(remote)) for remote in fields.objects("remote_buffers")),
        tuple(semaphore.integer("init_value") for semaphore in fields.objects("semaphores")),
        tuple(blocks),
    )


def _of_memory(fields: JsonFields, name: str = "channel_type") -> JsonFields:
    if fields.text(name) != "memory":
        raise fields.error("plans are checked for memory channels", fields.text(name), "write it for these")
    return fields


def _read_remote(fields: JsonFields) -> Buffer:
    if fields.texts("access_channel_types") != ("memory",):
        raise fields.error(
            "plans are checked for memory channels", fields.texts("access_channel_types"), "write it for these"
        )
    return _read_buffer(fields)


def _read_buffer(fields: JsonFields) -> Buffer:
    letter = fields.text("type")
    if letter not in _BUFFERS:
        raise fields.error("the type of a buffer must be i, o or s", letter, "name one of the buffers")
    return _BUFFERS[letter]


def _read_block(fields: JsonFields) -> PlanBlock:
    channels = [number for each in fields.objects("channels") for number in _of_memory(each).integers("channel_ids")]
    remotes = [
        number
        for each in fields.objects("remote_buffer_refs")
        for number in _of_memory(each, "access_channel_type").integers("remote_buffer_ids")
    ]
    return PlanBlock(tuple(channels), tuple(remotes), tuple(map(_read_operation, fields.objects("ops"))))


def _read_operation(fields: JsonFields) -> Operation:
    name = fields.text("name")
    try:
        action = Action(name)
    except ValueError:
        known = ", ".join(known.value for known in Action)
        raise fields.error("operations of a plan must be among those that are checked", name, known) from None
    if "tbg_info" in fields:
        raise fields.error("operations are checked without groups of blocks", "tbg_info", "write them without")
    if "channel_type" in fields:
        _of_memory(fields)
    return Operation(
        action,
        tuple(map(_read_operand, fields.objects("src_buff"))),
        tuple(map(_read_operand, fields.objects("dst_buff"))),
        fields.integers("channel_ids"),
        fields.integers("semaphore_ids"),
    )


def _read_operand(fields: JsonFields) -> Operand:
    first, count = fields.integer("index"), fields.integer("size")
    if "buffer_id" in fields:
        return Operand(first, count, remote=fields.integer("buffer_id"))
    return Operand(first, count, _read_buffer(fields))


LIMITS = TargetLimits(
    ranks=64,
    channels=1024,
    threadblocks=1024,
    resident_threadblocks=108,
    waitable_threadblocks=1024,
    blocks_per_direction=1024,
    steps=MAX_BLOCK_OPERATIONS,
    waits=MAX_BLOCK_OPERATIONS,
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
    """Target `mscclpp-json`. Limits: every block is on the GPU at once, with up to 1024 threads."""

    name: str = TARGET
    limits: TargetLimits = LIMITS

    def emit(self, program: Program) -> str:
        """Return the text of `program` as one-sided operations; InvalidInput where the executor would not take it."""
        require_valid_structure(program, self.limits, self.name)
        plan = plan_of(program)
        for violation in plan_structure_violations(plan):
            rule = f"a plan must fit {self.name} ({violation.rule})"
            raise InvalidInput(rule, violation.message, "lower it with more channels, or fewer chunks")
        return plan_text(plan)
