"""Read a job's calls from traces of other tools: PyTorch's flight recorder and Chakra execution traces.

Such traces describe one rank. The flight recorder writes JSON or a pickle; PyTorch's execution trace observer writes
Chakra's host traces as JSON; Chakra's converter writes a sequence of protocol buffers (`et_def.proto`).
"""

import io
import json
import math
import pickle
import pickletools
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from chorale.job.files import read_file
from chorale.job.record import CallCount, CallKey, Record, parse_record, require_ranks
from chorale.synth.document_limits import MAX_JSON_VALUES, require_small_json
from chorale.synth.errors import InvalidInput, fault_in
from chorale.tuner.files.result_files import collective_named

MAX_BYTES = 2**28
_MAX_MEMBERS, _MAX_AXES = 2**28, 64
_MAX_MESSAGES, _MAX_MESSAGE_BYTES = 2**22, 2**20
_WAY_OUT = "give a record of `chorale record`, a dump of PyTorch's flight recorder, or a Chakra trace"
_DTYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "long": ("int64", 8), "int": ("int32", 4), "short": ("int16", 2), "char": ("int8", 1), "byte": ("uint8", 1),
    "bool": ("bool", 1), "complexfloat": ("complex64", 8), "complexdouble": ("complex128", 16),
    "uint16": ("uint16", 2), "uint32": ("uint32", 4), "uint64": ("uint64", 8),
}  # fmt: skip
"""PyTorch's name of an element type -> (Chorale's name, bytes per element). Types named `float8…` have one byte."""
UNKNOWN = "unknown"
"""Element type of calls whose type the trace does not contain; 4 bytes per element are assumed."""
_NOT_IN_JSON = ("EMPTY_SET", "FROZENSET", "ADDITEMS", "BYTEARRAY8")


class _Call(NamedTuple):
    """A collective call by the ranks in `group` (None: all ranks). `size_bytes` is the larger of input and output."""

    collective: str
    dtype: str
    group: tuple[int, ...] | None
    size_bytes: int
    seconds: float


def load_record(path: Path, ranks: int | None = None) -> Record:
    """Return a job's calls from a file that `chorale record` wrote, or from a trace that rank 0 of the job wrote.

    ranks: number of ranks, which Chakra's .et files do not contain; default: the number of the job's .et files

    Raises InvalidInput for any other file, and for a file without collectives.
    """
    content = read_file(str(path), MAX_BYTES)
    try:
        if content[:1] == b"\x80":
            return _from_flight_recorder(_unpickled(content))
        if content.lstrip()[:1] == b"{":
            require_small_json(content, "a trace")
            document = json.loads(content)
            if "entries" in document:
                return _from_flight_recorder(document)
            if "nodes" in document and "schema" in document:
                return _from_host_trace(document)
            return parse_record(content)
        if path.suffix == ".et":
            return _from_chakra(content, ranks or _files_beside(path), path)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, RecursionError, struct.error,
            pickle.UnpicklingError) as error:  # fmt: skip
        value = f"{path}: {fault_in(error)}"
        raise InvalidInput("cannot read the record of a job: {}", value, _WAY_OUT) from error
    raise InvalidInput("{} is not a record or trace of a job", path, _WAY_OUT)


def _unpickled(content: bytes) -> Any:
    """Return the plain values in a pickle. Raises ValueError if there are too many, or if one has no JSON form."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
        is_far = "PUT" in operation.name and int(argument or 0) > count
        if count > MAX_JSON_VALUES or is_far or operation.name in _NOT_IN_JSON:
            raise ValueError(f"operation {count}, {operation.name} {str(argument)[:20]}, is too large")
    value = _SafeUnpickler(io.BytesIO(content)).load()
    waiting, left = [value], MAX_JSON_VALUES
    while waiting and left > 0:  # an object counts as often as it is referenced
        each = waiting.pop()
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
        left -= 1 + len(inner)
        waiting += [one for one in inner if isinstance(one, dict | list | tuple)] if left > 0 else []
    if left <= 0:
        raise ValueError(f"it has more than {MAX_JSON_VALUES} values")
    return value


class _SafeUnpickler(pickle.Unpickler):
    """Loads only plain values: a flight recorder writes nothing else, and other pickles can run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not a plain value")


def collective_of_torch(name: str) -> str | None:
    """Return the collective that PyTorch calls `name`, or None for other calls, such as barriers and sends.

    >>> collective_of_torch("nccl:_all_gather_base"), collective_of_torch("nccl:send 0->1")
    ('allgather', None)
    """
    return None if "barrier" in name else collective_named(name.rpartition(":")[2])


def _from_flight_recorder(document: Mapping[str, Any]) -> Record:
    groups = {str(name): _ranks(config.get("ranks", ())) for name, config in document.get("pg_config", {}).items()}
    ranks = 1 + max((rank for group in groups.values() for rank in group), default=-1)
    if ranks < 1:
        raise ValueError("its pg_config names no ranks")
    return _record(ranks, (_flight_call(entry, groups) for entry in document["entries"]), "flight recorder")


def _flight_call(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> _Call | None:
    collective = collective_of_torch(str(entry.get("profiling_name", "")))
    if entry.get("is_p2p") or collective is None:
        return None
    splits = [*(entry.get("input_split_sizes") or ()), *(entry.get("output_split_sizes") or ())]
    if collective == "alltoall" and len(set(splits)) > 1:
        collective = "alltoallv"
    dtype, width = _dtype(next(iter(entry.get("input_dtypes") or ()), None))
    elements = max(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes")))
    named = entry.get("process_group") or (str(entry.get("pg_id", 0)),)
    group = groups.get(str(named[0]), groups.get(str(entry.get("pg_id"))))
    seconds = float(entry.get("duration_ms") or 0) / 1e3
    if not seconds and entry.get("time_discovered_started_ns") and entry.get("time_discovered_completed_ns"):
        seconds = max(0.0, (entry["time_discovered_completed_ns"] - entry["time_discovered_started_ns"]) / 1e9)
    return _Call(collective, dtype, group, elements * width, seconds)


def _ranks(value: Any) -> tuple[int, ...]:
    """Return a group's ranks, given as a list or, by older versions of PyTorch, as a string."""
    return tuple(int(rank) for rank in (json.loads(value) if isinstance(value, str) and value else value))


def _elements(sizes: Any) -> int:
    total = 0
    for shape in sizes or ():
        if len(shape) > _MAX_AXES:
            raise ValueError(f"a tensor of {len(shape)} axes")
        total += math.prod(map(int, shape))
    return total


def _dtype(name: object) -> tuple[str, int]:
    plain = str(name or "").lower().removeprefix("torch.")
    return (plain, 1) if plain.startswith("float8") else _DTYPES.get(plain, (plain or UNKNOWN, 4))


def _from_host_trace(document: Mapping[str, Any]) -> Record:
    """Read the process groups and the nodes named `record_param_comms` in PyTorch's execution trace."""
    groups: dict[str, tuple[int, ...]] = {}
    calls: list[tuple[str, Mapping[str, Any]]] = []
    largest = 0
    for node in document["nodes"]:
        attributes = {str(each.get("name")): each.get("value") for each in node.get("attrs", ())}
        if str(node.get("name")).startswith("## process_group:init"):
            for group in json.loads(node["inputs"]["values"][0]):
                groups[str(group["pg_name"])] = _ranks(group.get("ranks") or ())
                largest = max(largest, int(group.get("group_size", 0)))
        elif node.get("name") == "record_param_comms" and "collective_name" in attributes:
            largest = max(largest, int(attributes.get("pg_size", attributes.get("group_size", 0)) or 0))
            calls.append((str(attributes.get("pg_name")), attributes))
    ranks = max(largest, 1 + max((rank for group in groups.values() for rank in group), default=-1))
    return _record(ranks, (_host_call(name, attributes, groups) for name, attributes in calls), "Chakra trace")


def _host_call(name: str, attributes: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> _Call | None:
    collective = collective_of_torch(str(attributes["collective_name"]))
    if collective is None:
        return None
    dtype, width = _dtype(attributes.get("dtype"))
    elements = max(int(attributes.get("in_msg_nelems", 0)), int(attributes.get("out_msg_nelems", 0)))
    return _Call(collective, dtype, groups.get(name) or None, elements * width, 0.0)


_COLLECTIVE_NODE = 7
_CHAKRA = {
    0: "allreduce",
    1: "reduce",
    2: "allgather",
    5: "broadcast",
    6: "alltoall",
    7: "reduce_scatter",
    8: "reduce_scatter",
}
"""Chakra's `CollectiveCommType` -> collective. Values without a corresponding collective are left out."""
_NAME, _TYPE, _DURATION_US, _ATTRIBUTE = 2, 3, 7, 10
"""Field numbers in Chakra's `Node`. In an attribute, field 1 is the name, and any field except 2 is the value."""


def _from_chakra(content: bytes, ranks: int, path: Path) -> Record:
    if ranks < 2:
        rule = "the Chakra trace {} does not say how many ranks the job has"
        raise InvalidInput(rule, path, "add --ranks, or put the .et files of all ranks into one folder")
    from google.protobuf.empty_pb2 import Empty  # noqa: PLC0415 - only these traces need it
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from google.protobuf.proto import parse_length_prefixed  # noqa: PLC0415

    def calls() -> Iterator[_Call | None]:
        stream = io.BytesIO(content)
        for count in range(_MAX_MESSAGES + 1):
            message = parse_length_prefixed(Empty, stream)
            if message is None:
                return
            if count == _MAX_MESSAGES or message.ByteSize() > _MAX_MESSAGE_BYTES:
                raise ValueError(f"it has more than {_MAX_MESSAGES} messages, or one of {message.ByteSize()} bytes")
            if count:  # the first message is metadata
                yield _chakra_call(message)

    try:
        return _record(ranks, calls(), "Chakra trace")
    except DecodeError as error:
        raise ValueError("it ends within a message, or has a different format") from error


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415

    return ((field.field_number, field.data) for field in UnknownFieldSet(message))


def _chakra_call(message: Any) -> _Call | None:
    node_type, duration_us, attributes = 0, 0, {}
    for number, value in _fields(message):
        if number == _TYPE and isinstance(value, int):
            node_type = value
        elif number == _DURATION_US and isinstance(value, int):
            duration_us = value
        elif number == _ATTRIBUTE and isinstance(value, bytes):
            parts = dict(_fields(type(message).FromString(value)))
            name = parts.get(1, b"")
            attributes[name.decode() if isinstance(name, bytes) else ""] = next(
                (part for field, part in parts.items() if field > 2), None
            )
    collective = _CHAKRA.get(int(attributes.get("comm_type") or 0))
    if node_type != _COLLECTIVE_NODE or collective is None:
        return None
    return _Call(collective, UNKNOWN, None, int(attributes.get("comm_size") or 0), duration_us / 1e6)


def _files_beside(path: Path) -> int:
    """Return the number of trace files in the folder of `path` that belong to its job: PREFIX.0.et, PREFIX.1.et, …"""
    match = re.fullmatch(r"(.*?)(\d+)\.et", path.name)
    if match is None:
        return 0
    name = re.compile(re.escape(match[1]) + r"\d+\.et")
    return sum(name.fullmatch(file.name) is not None for file in path.absolute().parent.iterdir())


def _record(ranks: int, calls: Iterable[_Call | None], what: str) -> Record:
    counts: dict[CallKey, CallCount] = defaultdict(lambda: CallCount(0, 0.0))
    everybody, members = tuple(range(require_ranks(ranks))), 0
    for call in calls:
        if call is not None and call.size_bytes > 0:
            group = None if call.group is None or call.group == everybody else call.group
            members += len(call.group or ())
            if members > _MAX_MEMBERS:
                raise ValueError(f"its calls have more than {_MAX_MEMBERS} members together")
            root = 0 if call.collective in ("broadcast", "reduce") else None
            counts[CallKey(call.collective, call.dtype, group, root, call.size_bytes)] += CallCount(1, call.seconds)
    if not counts:
        raise InvalidInput(f"the {what} has no calls of collectives", "", "record more of the job")
    return Record(ranks, dict(counts))
