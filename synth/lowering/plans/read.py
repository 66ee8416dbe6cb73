"""Reads execution plans of MSCCL++ from untrusted JSON: what the loader requires, and what is checked here."""

from __future__ import annotations

import json
import re

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.plans.fields import MAX_INTEGER, JsonFields
from chorale.synth.lowering.plans.plan import Action, ExecutionPlan, Operand, Operation, PlanBlock, RankPlan
from chorale.synth.lowering.plans.text import COLLECTIVE_NAMES
from chorale.synth.lowering.program import Buffer

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
