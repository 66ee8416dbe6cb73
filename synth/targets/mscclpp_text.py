"""Writes execution plans of MSCCL++ as JSON, the same bytes for equal plans."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operand, Operation, PlanBlock, RankPlan

COLLECTIVE_NAMES = {name: name.value for name in CollectiveName} | {CollectiveName.REDUCE_SCATTER: "reducescatter"}
Json = dict[str, Any]


def plan_text(plan: ExecutionPlan) -> str:
    """Return the text of `plan`, the same bytes for equal plans. The executor keeps what it set up under the name of a
    plan, so that the name ends with a digest of all the rest."""
    head, hashed, texts = _head(plan), sha256(), []
    before, after = json.dumps({**head, _RANKS: []}, sort_keys=True).split(_NO_RANKS)
    hashed.update(f'{before}"{_RANKS}": ['.encode())
    for number, rank in enumerate(plan.ranks):
        document = _rank(number, rank)
        hashed.update((", " * bool(number) + json.dumps(document, sort_keys=True)).encode())
        texts.append(_indented(document, "\n  "))
    hashed.update(f"]{after}".encode())
    name = f"{plan.name} {hashed.hexdigest()[:8]}"
    before, after = _indented({"name": name, **head, _RANKS: []}, "\n").split(_NO_RANKS)
    return "".join((before, f'"{_RANKS}": [\n  ', ",\n  ".join(texts), "\n ]", after, "\n"))


_RANKS = "gpus"
_NO_RANKS = f'"{_RANKS}": []'
"""What stands for the ranks, which are written one by one; in a string the quotes would be escaped."""


def _indented(value: Any, line: str) -> str:
    """Return `value` as `json.dumps` writes it with an indent of 1, in a third of the time. `line`: how lines begin."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or not value:
        return str(value)
    inner = line + " "
    if isinstance(value, dict):
        items = [f'"{key}": {_indented(item, inner)}' for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{line}}}"
    return f"[{inner}{f',{inner}'.join([_indented(item, inner) for item in value])}{line}]"


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
