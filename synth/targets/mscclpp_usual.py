"""Reads operations of plans that are written as here, in a fifth of the time; all others `JsonFields` reads or refuses.

Most operations of a large plan are alike, such as waits for the first channel of a block, and become one object.
"""

from __future__ import annotations

from typing import Any

from chorale.synth.programs.plans.plan import Action, Kind, Operand, Operation
from chorale.synth.programs.program import Buffer

MAX_CHUNKS = 2**24

_ACTIONS = {action.value: action for action in Action if action is not Action.PIPELINE}
_BUFFERS: dict[str, Buffer] = {"i": "i", "o": "o", "s": "s"}
_KINDS: dict[str, Kind] = {"memory": "memory", "port": "port", "switch": "switch"}
_KEYS = {"name", "channel_type", "channel_ids", "semaphore_ids", "src_buff", "dst_buff"}


def usual_operation(value: Any, shared: dict[str, Operation]) -> Operation | None:
    """Return the operation that `value` of a JSON document holds; None where it has anything that is less usual.

    shared: operations that move nothing, by their text; what is found is added
    """
    if type(value) is not dict or type(value.get("name")) is not str:
        return None
    action = _ACTIONS.get(value["name"])
    if action is None or not _KEYS.issuperset(value):
        return None
    if action.moves:
        return _usual(action, value)
    text = repr(value)
    found = shared.get(text)
    if found is None:
        found = _usual(action, value)
        if found is not None:
            shared[text] = found
    return found


def _usual(action: Action, value: dict[str, Any]) -> Operation | None:
    kind = value.get("channel_type", "memory")
    sides = _operands(value.get("src_buff", ())), _operands(value.get("dst_buff", ()))
    numbers = _numbers(value.get("channel_ids", ())), _numbers(value.get("semaphore_ids", ()))
    if type(kind) is not str or kind not in _KINDS or action is Action.BARRIER:
        return None
    if sides[0] is None or sides[1] is None or numbers[0] is None or numbers[1] is None:
        return None
    return Operation(action, sides[0], sides[1], numbers[0], numbers[1], _KINDS[kind])


def _numbers(values: Any) -> tuple[int, ...] | None:
    if type(values) not in (list, tuple) or not all(type(each) is int and 0 <= each < MAX_CHUNKS for each in values):
        return None
    return tuple(values)


def _operands(values: Any) -> tuple[Operand, ...] | None:
    if type(values) not in (list, tuple):
        return None
    found = []
    for value in values:
        operand = _operand(value)
        if operand is None:
            return None
        found.append(operand)
    return tuple(found)


def _operand(value: Any) -> Operand | None:
    if type(value) is not dict or len(value) != 3:
        return None
    first, count = value.get("index"), value.get("size")
    if type(first) is not int or type(count) is not int or first < 0 or count < 0 or first + count > MAX_CHUNKS:
        return None
    remote = value.get("buffer_id")
    if type(remote) is int and 0 <= remote < MAX_CHUNKS:
        return Operand(first, count, remote=remote)
    buffer = value.get("type")
    return Operand(first, count, _BUFFERS[buffer]) if type(buffer) is str and buffer in _BUFFERS else None
