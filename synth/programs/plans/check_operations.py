"""Rules of the operations of a plan: which operands each takes, how many, and where they may lie."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chorale.synth.programs.plans.plan import (
    MAX_OPERANDS,
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
    Action,
    ExecutionPlan,
    Operand,
    Operation,
    PlanBlock,
)
from chorale.synth.programs.program import Buffer

Fault = tuple[str, str]
"""The rule that is broken, and how."""

MAX_GROUP = 1024
"""Blocks that share an operation."""

# Letters of operands: L input or output, S scratch, R and T those of another rank, X and Y those of a group.
_OPERANDS: dict[Action, tuple[str, str, str]] = {
    Action.PUT: ("[LS]+", "[RT]+", "memory port"),
    Action.PUT_SIGNAL: ("[LS]+", "[RT]+", "port"),
    Action.PUT_SIGNAL_FLUSH: ("[LS]+", "[RT]+", "port"),
    Action.GET: ("[RT]+", "[LS]+", "memory"),
    Action.COPY: ("[LS]", "[LS]", "memory"),
    Action.REDUCE: ("[LS]+", "[LS]", "memory"),
    Action.REDUCE_SEND: ("[LS]+", "[LS][RT]*", "memory"),
    Action.READ_REDUCE: ("[LS][RT]+", "[LS]", "memory"),
    Action.READ_REDUCE_SEND: ("[LS][RT]+", "[LS][RT]+", "memory"),
    Action.PUT_PACKETS: ("L+", "T+", "memory"),
    Action.READ_PUT_PACKETS: ("S+", "T+", "memory port"),
    Action.COPY_PACKETS: ("L", "S", "memory"),
    Action.UNPACK_PACKETS: ("S", "L", "memory"),
    Action.REDUCE_PACKETS: ("LS*", "L", "memory"),
    Action.REDUCE_SEND_PACKETS: ("LS*", "LT*", "memory"),
    Action.REDUCE_COPY_PACKETS: ("LS*", "LS", "memory"),
    Action.REDUCE_COPY_SEND_PACKETS: ("LS*", "LST*", "memory"),
    Action.GROUP_LOAD_REDUCE: ("[XY]", "[LS]", "switch"),
    Action.GROUP_LOAD_REDUCE_STORE: ("[XY]", "[XY]", "switch"),
    Action.GROUP_STORE: ("[LS]", "[XY]", "switch"),
    Action.GROUP_STORE_PACKETS: ("L", "Y", "switch"),
}
"""Sources and targets of each operation that moves data, and the kinds of channels that it works with."""
_PAIRED = frozenset({Action.PUT, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH, Action.GET, Action.PUT_PACKETS})
_LOCKS = frozenset({Action.ACQUIRE, Action.RELEASE})
_WORDS = {
    "L": "own input or output",
    "S": "own scratch",
    "R": "remote",
    "T": "remote scratch",
    "X": "switch",
    "Y": "switch",
}


def operation_faults(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield the rules that `operation` of `block` of `rank` breaks, those in a pipeline included. O(operands)."""
    if operation.action is Action.PIPELINE:
        yield from _pipeline(plan, rank, block, operation)
        return
    yield from _numbers(plan, rank, block, operation)
    index, size = operation.part
    if not (0 <= index < size <= MAX_GROUP):
        yield "group", f"{operation.action.value} is part {index} of {size}, must be one of 1 to {MAX_GROUP}"
    elif operation.action.moves:
        yield from _operands(plan, rank, block, operation)


def _pipeline(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    unit_bytes, chunks = operation.pipeline or (0, 0)
    if unit_bytes < 1 or chunks < 1 or not operation.body:
        yield "pipeline", f"repeats {len(operation.body)} operations for {chunks} chunks in parts of {unit_bytes} bytes"
    for inner in operation.body:
        if inner.action is Action.PIPELINE or inner.action.packets:
            yield "pipeline", f"{inner.action.value} is not done part by part"
            continue
        for operand in (*inner.sources, *inner.targets):
            if operand.count != chunks:
                message = f"{inner.action.value} moves {operand.count} chunks, its pipeline {chunks}: parts lie outside"
                yield "pipeline", message
        yield from operation_faults(plan, rank, block, inner)


def _numbers(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield faults of the channels and semaphores that an operation names."""
    action, kind = operation.action, operation.kind
    through_port = kind == "port" and action.moves
    tells = action.signals or action.waits or through_port
    if tells and kind == "switch":
        yield "channel", f"{action.value} needs memory or port channels"
    if operation.channels or tells:
        there = len(block.channels_of(kind))
        yield from _named("channel", operation, operation.channels, there, MAX_OPERATION_CHANNELS, tells)
    if operation.semaphores or action in _LOCKS:
        there = len(plan.ranks[rank].semaphores)
        yield from _named(
            "semaphore", operation, operation.semaphores, there, MAX_OPERATION_SEMAPHORES, action in _LOCKS
        )
    if through_port and len(operation.channels) != len(operation.targets):
        yield "channel", f"{action.value} has {len(operation.channels)} ports for {len(operation.targets)} targets"


def _named(
    what: str, operation: Operation, named: tuple[int, ...], available: int, largest: int, needed: bool
) -> Iterator[Fault]:
    action = operation.action
    if named and max(named) >= available:
        yield what, f"{action.value} names {what} {max(named)}, there are {available}"
    if len(named) > largest or (needed and not named):
        yield what, f"{action.value} names {len(named)} {what}s, must name 1 to {largest}"
    if needed and len(set(named)) < len(named):
        yield what, f"{action.value} names a {what} twice: threads would change one counter at once"


def _operands(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    action, sources, targets = operation.action, operation.sources, operation.targets
    if not 0 < len(sources) <= MAX_OPERANDS or not 0 < len(targets) <= MAX_OPERANDS:
        yield "operand", f"{action.value} must have 1 to {MAX_OPERANDS} sources and targets"
        return
    unknown = list(_unknown(plan, rank, block, operation))
    if unknown:
        yield from unknown
        return
    yield from _shape(plan, rank, block, operation)
    pairs = action in _PAIRED or action is Action.READ_PUT_PACKETS
    if pairs and len(sources) != len(targets):
        yield "operand", f"{action.value} has {len(sources)} sources and {len(targets)} targets"
    elif action in _PAIRED:
        if any(source.count != target.count for source, target in zip(sources, targets, strict=True)):
            yield "count", "a source and its target differ in their number of chunks"
    elif len({operand.count for operand in (*sources, *targets)}) > 1:
        yield "count", "sources and targets differ in their number of chunks"
    for operand in (*sources, *targets):
        yield from _range(plan, rank, block, operation, operand)


def _unknown(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield faults of operands whose place does not exist."""
    remotes = block.remotes_of(operation.kind)
    for operand in (*operation.sources, *operation.targets):
        if operand.remote is not None and operand.remote >= len(remotes):
            yield "remote buffer", f"names remote buffer {operand.remote}, the block has {len(remotes)}"
        elif operand.remote is not None and not 0 <= plan.ranks[rank].remotes[remotes[operand.remote]][0] < len(
            plan.ranks
        ):
            yield "remote buffer", "names a buffer of a rank that does not exist"
        elif operand.switch is not None and operand.switch >= len(block.switches):
            yield "switch", f"names switch channel {operand.switch}, the block has {len(block.switches)}"
        elif operand.switch is not None and rank not in plan.ranks[rank].switches[block.switches[operand.switch]][1]:
            yield "switch", "names a switch channel of a group without its rank"


def _shape(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield whether the operands are not those that the operation takes."""
    action, packets = operation.action, plan.settings.packets
    sides = [
        "".join(_letter(plan, rank, block, operation, operand) for operand in side)
        for side in (operation.sources, operation.targets)
    ]
    sources, targets, kinds = _OPERANDS[action]
    if action is Action.PUT_PACKETS and operation.kind == "port":
        sources, kinds = "S+", "port"
    if operation.kind not in kinds.split():
        yield "channel", f"{action.value} works with channels of {' or '.join(kinds.split())}, not of {operation.kind}"
    elif not (re.fullmatch(sources, sides[0]) and re.fullmatch(targets, sides[1])):
        named = [", ".join(_WORDS[letter] for letter in side) for side in sides]
        yield "operand", f"{action.value} cannot go from {named[0]} to {named[1]}"
    elif action.packets and not packets:
        yield "packets", f"{action.value} needs protocol LL, which makes room for flags in scratch"
    elif packets and not action.packets and re.search("[STY]", sides[0] + sides[1]):
        yield "packets", f"{action.value} touches scratch, which holds packets with protocol LL"
    elif action in (Action.PUT, Action.PUT_PACKETS) and len({operand.buffer for operand in operation.sources}) > 1:
        yield "operand", "a put reads one buffer: the executor takes that of the first source for all"
    elif action is Action.GET and any(
        source.first != target.first for source, target in zip(operation.sources, operation.targets, strict=False)
    ):
        yield "operand", "a get must have the same chunk on either side: the executor takes them the other way round"


def _letter(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation, operand: Operand) -> str:
    body = plan.ranks[rank]
    if operand.remote is not None:
        return "T" if body.remotes[block.remotes_of(operation.kind)[operand.remote]][1] == "s" else "R"
    if operand.switch is not None:
        return "Y" if body.switches[block.switches[operand.switch]][0] == "s" else "X"
    return "S" if operand.buffer == "s" else "L"


def _range(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation, operand: Operand) -> Iterator[Fault]:
    if operand.count < 1:
        yield "count", "moves no chunks, must move at least 1"
        return
    body = plan.ranks[rank]
    places: list[tuple[int, Buffer]] = [(rank, operand.buffer or "s")]
    if operand.remote is not None:
        places = [body.remotes[block.remotes_of(operation.kind)[operand.remote]]]
    elif operand.switch is not None:
        buffer, group = body.switches[block.switches[operand.switch]]
        places = [(each, buffer) for each in group if 0 <= each < len(plan.ranks)]
    for owner, buffer in places:
        other = plan.ranks[owner]
        chunks = {"i": other.input_chunks, "o": other.output_chunks, "s": other.scratch_chunks}[buffer]
        if operand.first + operand.count > chunks:
            last = operand.first + operand.count - 1
            yield "operand", f"{buffer}[{operand.first}..{last}] of rank {owner} is outside its {chunks} chunks"
