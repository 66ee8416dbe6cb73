"""Writes execution plans for MSCCL++ (microsoft/mscclpp) as JSON, and reads plans from untrusted JSON.

The format has no version number; it is defined by the loaders of releases 0.8.0 to 0.10, which can all read Chorale's
plans. Chorale adds the keys `root` and `origin`, which the loaders ignore.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, get_args

from chorale.synth.collective import STANDARD, Collective, CollectiveName, CustomCollective, custom_collective
from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import TargetLimits, require_valid_structure
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
    PlanSettings,
    RankPlan,
)
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import BUFFERS, Buffer, Program

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
    count=2**20,
    offset=2**20,
    elements_per_rank=1_000_000,
    elements=1_000_000,
    largest_max_bytes=OFFSET_BYTES - 1,
    one_sided_operations=MAX_BLOCK_OPERATIONS,
    alignment_bytes=ALIGNMENT_BYTES,
)
COLLECTIVE_NAMES = {name: name.value for name in CollectiveName} | {CollectiveName.REDUCE_SCATTER: "reducescatter"}
Json = dict[str, Any]
_KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_INTEGER = 2**64 - 1
MAX_BYTES = 64 * 2**20
MAX_GROUP = 2**16
MAX_CHUNKS = 2**24
_DIGEST = re.compile(r" [0-9a-f]{8}\Z")  # see `plan_text`
_COLLECTIVES = {name.value: name for name in STANDARD} | {spelling: name for name, spelling in COLLECTIVE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class MscclppJson:
    """Target `mscclpp-json`. Its limits let a GPU run all blocks, of up to 1024 threads each, at the same time."""

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


def plan_text(plan: ExecutionPlan) -> str:
    """Return `plan` as JSON text. Equal plans give equal bytes.

    The executor caches its state under the plan's name. The name therefore ends with a digest of all other contents.
    """
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
    document["gpus"] = [_rank(number, rank) for number, rank in enumerate(plan.ranks)]
    digest = sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:8]
    return json.dumps({"name": f"{plan.name} {digest}", **document}, indent=1) + "\n"


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


class JsonFields:
    """Reads the fields of a JSON object from an untrusted file. Error messages say where the object is in the file."""

    __slots__ = ("_values", "_where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InvalidInput(f"{where} must be a JSON object", repr(value)[:40], "write the file again")
        self._values: dict[str, Any] = value
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        return str(self._checked(name, "a string", value, isinstance(value, str)))

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        return bool(self._checked(name, "true or false", value, isinstance(value, bool)))

    def integer(self, name: str, default: int | None = None, least: int = 0) -> int:
        """Return the field `name`, an integer from `least` to 2^64 - 1."""
        value = self._get(name, default)
        return int(self._checked(name, f"a whole number from {least} on", value, _is_whole(value, least)))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return the field `name` as a tuple of nonnegative integers, empty if the field is missing."""
        return tuple(
            self._checked(name, "a list of whole numbers", each, _is_whole(each, 0)) for each in self._list(name)
        )

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the field `name` as a tuple of strings, empty if the field is missing."""
        return tuple(self._checked(name, "a list of strings", each, isinstance(each, str)) for each in self._list(name))

    def objects(self, name: str) -> list[JsonFields]:
        """Return the field `name` as a list of objects, empty if the field is missing."""
        return [JsonFields(value, f"{name}[{index}] of {self._where}") for index, value in enumerate(self._list(name))]

    def child(self, name: str) -> JsonFields | None:
        """Return the field `name` as an object, or None if the field is missing."""
        return JsonFields(self._values[name], f"{name} of {self._where}") if name in self._values else None

    def error(self, rule: str, value: object, hint: str) -> InvalidInput:
        return InvalidInput(f"{rule} ({self._where})", value, hint)

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"{self._where} has no {name}", "", f"add {name}")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._values.get(name, [])
        checked: list[Any] = self._checked(name, "a list", value, isinstance(value, list))
        return checked

    def _checked(self, name: str, what: str, value: Any, holds: bool) -> Any:
        if not holds:
            raise InvalidInput(f"{name} of {self._where} must be {what}", repr(value)[:40], "write the file again")
        return value


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


def parse_plan(text: bytes, collective: CustomCollective | None = None) -> ExecutionPlan:
    """Parse the plan in `text`. Raises InvalidInput if it is not a valid plan.

    collective: custom collective that replaces the collective named in the text
    """
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"a plan must be at most {MAX_BYTES} bytes", len(text), "split the collective")
    require_small_json(text, "a plan")
    try:
        root = JsonFields(json.loads(text.decode(), parse_constant=_refuse_constant), "the plan")
    except (ValueError, RecursionError) as error:
        raise InvalidInput("the plan is not JSON in UTF-8: {}", str(error), "write the file again") from None
    known = _collective(root) if collective is None else custom_collective(collective)
    ranks = tuple(_read_rank(number, rank) for number, rank in enumerate(root.objects("gpus")))
    if not ranks:
        raise root.error("a plan must have gpus", "none", "write one for each rank")
    protocol = root.text("protocol")
    if protocol not in ("Simple", "LL"):
        raise root.error("the protocol of a plan must be Simple or LL", protocol, "name one of them")
    return ExecutionPlan(
        _DIGEST.sub("", root.text("name")),
        known,
        root.flag("inplace"),
        ranks,
        root.integer("min_message_size", 0),
        root.integer("max_message_size", MAX_INTEGER),
        root.text("origin", ""),
        PlanSettings(
            protocol == "LL",
            root.flag("use_double_scratch_buffer", False),
            root.flag("reuse_resources", False),
            root.integer("buffer_alignment", 16, least=1),
            root.integer("num_threads_per_block", 1024, least=1),
            root.integer("vector_bytes", 16, least=1),
        ),
    )


def is_plan_text(text: bytes) -> bool:
    """Return whether `text` looks like a plan (a JSON object with a list of ranks), not like a schedule."""
    require_small_json(text, "a schedule or plan")
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(root, dict) and "gpus" in root


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _collective(root: JsonFields) -> Collective:
    spelling = root.text("collective")
    if spelling not in _COLLECTIVES:
        rule = f"a plan for another collective than {', '.join(_COLLECTIVES)} needs a file that defines it"
        raise root.error(rule, spelling, "add --collective-file FILE, or correct it")
    collective = Collective(_COLLECTIVES[spelling])
    return Collective(collective.name, root.integer("root", 0)) if collective.is_rooted else collective


def _read_rank(number: int, fields: JsonFields) -> RankPlan:
    if fields.integer("id") != number:
        raise fields.error("the id of a gpu must be its place in the list", fields.integer("id"), f"write {number}")
    blocks = fields.objects("threadblocks")
    for index, block in enumerate(blocks):
        if block.integer("id") != index:
            raise block.error("the id of a block must be its place in the list", block.integer("id"), f"write {index}")
    peers: dict[Kind, list[int]] = {"memory": [], "port": []}
    switches: list[tuple[Buffer, tuple[int, ...]]] = []
    for channel in fields.objects("channels"):
        kind = _kind(channel, "channel_type")
        if kind == "switch":
            buffer = _buffer(channel, "buffer_type")
            switches += [(buffer, group.integers("ranks")) for group in channel.objects("rank_groups")]
        else:
            peers[kind] += channel.integers("connected_to")
    inputs, outputs = (fields.integer(name, least=1) for name in ("input_chunks", "output_chunks"))
    scratch = fields.integer("scratch_chunks")
    if max(inputs, outputs, scratch) > MAX_CHUNKS:
        most = max(inputs, outputs, scratch)
        raise fields.error(f"buffers must have at most {MAX_CHUNKS} chunks", most, "use fewer chunks")
    remotes = fields.objects("remote_buffers")
    return RankPlan(
        inputs,
        outputs,
        scratch,
        tuple(peers["memory"]),
        tuple((remote.integer("rank"), _buffer(remote, "type")) for remote in remotes),
        tuple(semaphore.integer("init_value") for semaphore in fields.objects("semaphores")),
        tuple(map(_read_block, blocks)),
        tuple(peers["port"]),
        tuple(switches),
        tuple(map(_access, remotes)),
    )


def _kind(fields: JsonFields, name: str) -> Kind:
    for kind in _KINDS:
        if kind == fields.text(name):
            return kind
    raise fields.error(f"unknown {name}", fields.text(name), f"known are {', '.join(_KINDS)}")


def _access(fields: JsonFields) -> tuple[Kind, ...]:
    named = fields.texts("access_channel_types")
    kinds = tuple(kind for text in named for kind in _KINDS[:2] if kind == text)
    if not named or len(kinds) < len(named):
        rule = "a remote buffer must be reached by memory or port channels"
        raise fields.error(rule, ", ".join(named) or "none", "name these")
    return kinds


def _buffer(fields: JsonFields, name: str) -> Buffer:
    for buffer in BUFFERS:
        if buffer == fields.text(name):
            return buffer
    raise fields.error("the type of a buffer must be i, o or s", fields.text(name), "name one of the buffers")


def _read_block(fields: JsonFields) -> PlanBlock:
    channels: dict[Kind, list[int]] = {"memory": [], "port": [], "switch": []}
    for each in fields.objects("channels"):
        channels[_kind(each, "channel_type")] += each.integers("channel_ids")
    remotes: dict[Kind, list[int]] = {"memory": [], "port": [], "switch": []}
    for each in fields.objects("remote_buffer_refs"):
        remotes[_kind(each, "access_channel_type")] += each.integers("remote_buffer_ids")
    return PlanBlock(
        tuple(channels["memory"]),
        tuple(remotes["memory"]),
        tuple(_read_operation(each) for each in fields.objects("ops")),
        tuple(channels["port"]),
        tuple(remotes["port"]),
        tuple(channels["switch"]),
    )


def _read_operation(fields: JsonFields, is_inner: bool = False) -> Operation:
    name = fields.text("name")
    if name not in {action.value for action in Action}:
        known = ", ".join(action.value for action in Action)
        raise fields.error("unknown operation of a plan", name, f"known are {known}")
    action = Action(name)
    if action is Action.PIPELINE and is_inner:
        raise fields.error("a pipeline must not contain a pipeline", "one in another", "write one after the other")
    if action.moves and fields.text("reduce_op", "sum") != "sum":
        raise fields.error("only plans for sums can be checked", fields.text("reduce_op"), "write the plan for sum")
    group, iteration = fields.child("tbg_info"), fields.child("iter_context")
    part, barrier, pipeline = (0, 1), None, None
    if group is not None:
        part = group.integer("tb_id"), group.integer("tbg_size", least=1)
        if part[1] > MAX_GROUP:
            raise group.error(f"a group must have at most {MAX_GROUP} blocks", part[1], "use fewer")
    if action is Action.BARRIER:
        barrier = fields.integer("barrier_id"), fields.integer("num_threadblocks", least=1)
    if iteration is not None:
        pipeline = iteration.integer("unit_size"), iteration.integer("num_chunks")
    return Operation(
        action,
        tuple(map(_read_operand, fields.objects("src_buff"))),
        tuple(map(_read_operand, fields.objects("dst_buff"))),
        fields.integers("channel_ids"),
        fields.integers("semaphore_ids"),
        _kind(fields, "channel_type") if fields.text("channel_type", "none") != "none" else "memory",
        part,
        barrier,
        pipeline,
        tuple(_read_operation(each, is_inner=True) for each in fields.objects("ops")),
    )


def _read_operand(fields: JsonFields) -> Operand:
    first, count = fields.integer("index"), fields.integer("size")
    if first + count > MAX_CHUNKS:
        raise fields.error(f"chunks must be below {MAX_CHUNKS}", first + count, "cut the vector into fewer chunks")
    if "switch_channel_id" in fields:
        return Operand(first, count, switch=fields.integer("switch_channel_id"))
    if "buffer_id" in fields:
        return Operand(first, count, remote=fields.integer("buffer_id"))
    return Operand(first, count, _buffer(fields, "type"))
