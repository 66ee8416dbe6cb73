"""Reads and writes schedule files: Parquet for any size, JSON for small ones. Reading a file preserves the content id.

The file of a symmetric schedule contains the transfers of a few ranks. The symmetries that map them to other ranks are
derived from the topology's spec. The id depends on these symmetries, so the file is rejected if they have changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from chorale.synth.collective import UNEVEN, CollectiveName, parse_collective, uneven_collective
from chorale.synth.document_limits import require_small_columns, require_small_json
from chorale.synth.errors import InvalidInput, fault_in
from chorale.synth.lazy_modules import arrow, parquet
from chorale.synth.schedule.schedule import (
    COLUMN_NAMES,
    AnySchedule,
    ColumnBounds,
    Routes,
    Schedule,
    Transfers,
    shard_count,
)
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricPart, SymmetricSchedule, SymmetricTrees
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.topology import Topology, transpose_with_links

FORMAT = "chorale-schedule/1"
METADATA_KEY = b"chorale"
MAX_JSON_ROWS = 2**20

ParseSpec = Callable[[str], Topology]
_AGAIN = "write the file again with `chorale synth`"
_S = TypeVar("_S", bound="AnySchedule")


def to_parquet(schedule: AnySchedule) -> bytes:
    """Return `schedule` as the bytes of a Parquet file, with one row per transfer and the metadata as JSON.

    The file of a `Schedule` also has the columns `src` and `dst`, for programs that do not interpret routes. A
    symmetric schedule is not expanded; the column `part` says whether a row belongs to its scatter or its gather part.
    The columns are delta-encoded, because neighbouring rows have similar numbers.
    """
    if isinstance(schedule, Schedule):
        columns = dict(zip(COLUMN_NAMES, schedule.transfers.columns, strict=True))
        columns |= {"src": schedule.src.astype(np.uint32), "dst": schedule.dst.astype(np.uint32)}
    else:
        bases = [part.base for part in schedule.parts]
        joined = (
            np.concatenate(each).astype(np.uint32) for each in zip(*(base.columns for base in bases), strict=True)
        )
        columns = dict(zip(COLUMN_NAMES, joined, strict=True))
        columns["part"] = np.repeat(np.arange(len(bases), dtype=np.uint32), list(map(len, bases)))
    arrays = {}
    for name, column in columns.items():  # `arrow.array` would import pandas to inspect the types
        content = np.ascontiguousarray(column)
        buffers = [None, arrow.py_buffer(content)]
        arrays[name] = arrow.Array.from_buffers(arrow.from_numpy_dtype(content.dtype), len(content), buffers)
    table = arrow.table(arrays).replace_schema_metadata({METADATA_KEY: json.dumps(_metadata(schedule), sort_keys=True)})
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    return bytes(sink.getvalue())


def from_parquet(content: bytes, parse_spec: ParseSpec, require_id: bool = True) -> AnySchedule:
    """Read a schedule from a Parquet file. Symmetric schedules are not expanded. Raises InvalidInput for damaged files.

    If `require_id` is true, also raises InvalidInput if the content does not match the id in the file. Otherwise, the
    caller must compare the ids (see `stated_id`). The verifier does this to report other faults of the file too.
    """
    with _parquet_file(content) as file:
        text = (file.metadata.metadata or {}).get(METADATA_KEY)
        names = [name for name in (*COLUMN_NAMES, "part") if name in file.schema_arrow.names]
        require_small_columns(file, content, names, "a .parquet schedule")
        table: dict[str, np.ndarray] = {}
        for name in names:  # Arrow's threads could release a Python buffer while the interpreter exits
            column = file.read(columns=[name], use_threads=False).column(0)
            chunks = [np.from_dlpack(chunk) for chunk in column.chunks]
            # Copied, because kernels need writable arrays.
            table[name] = np.concatenate(chunks) if chunks else np.empty(0, dtype=column.type.to_pandas_dtype())
    if text is None or any(name not in table for name in COLUMN_NAMES):
        raise InvalidInput("the schedule file lacks Chorale's columns or metadata", "", _AGAIN)
    document = _parse_document(text)
    columns = [table[name] for name in COLUMN_NAMES]
    if document.get("form", "columns") == "symmetric":
        return _checked(document, lambda: _build_symmetric(document, table["part"], columns, parse_spec), require_id)
    return _checked(document, lambda: _build(document, columns, parse_spec), require_id)


@contextmanager
def _parquet_file(content: bytes) -> Iterator[parquet.ParquetFile]:
    """Open a Parquet file. Arrow's exceptions and the ValueError for names that are not UTF-8 become InvalidInput."""
    try:
        yield parquet.ParquetFile(arrow.BufferReader(arrow.py_buffer(content)), pre_buffer=False)
    except (arrow.ArrowException, OSError, ValueError, LookupError, TypeError, BufferError, RecursionError) as error:
        raise InvalidInput("this .parquet file is not a Parquet file: {}", error, _AGAIN) from error


def to_json_text(schedule: AnySchedule) -> str:
    """Return the expanded `schedule` as JSON, one transfer per line. Raises InvalidInput above 2^20 transfers."""
    rows = schedule.transfer_count
    if rows > MAX_JSON_ROWS:
        rule = f"a JSON schedule holds at most {MAX_JSON_ROWS} transfers"
        raise InvalidInput(rule, f"{rows} transfers", "use a file name that ends in .parquet")
    expanded = schedule.expand()
    columns = [column.tolist() for column in expanded.transfers.columns]
    lines = ",\n".join("  " + json.dumps(row) for row in zip(*columns, strict=True))
    head = json.dumps({**_metadata(expanded), "columns": COLUMN_NAMES}, sort_keys=True, indent=1)
    return f'{head[:-2]},\n "transfers": [\n{lines}\n ]\n}}\n'


def from_json_text(content: bytes, parse_spec: ParseSpec, require_id: bool = True) -> Schedule:
    """Return the schedule in the JSON text `content`. Raises InvalidInput like `from_parquet`."""
    document = _parse_document(content)
    rows = document.get("transfers")
    if document.get("columns") != list(COLUMN_NAMES) or not isinstance(rows, list):
        raise InvalidInput("this JSON schedule lacks the keys `columns` and `transfers`", "", _AGAIN)
    try:
        table = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMN_NAMES))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput("every transfer needs six integers: {}", error, _AGAIN) from error
    return _checked(document, lambda: _build(document, list(table.T), parse_spec), require_id)


def stated_id(content: bytes) -> str:
    """Return the content id recorded in a schedule file, which may differ from the id of the actual content."""
    if content[:4] == b"PAR1":
        with _parquet_file(content) as file:
            metadata = file.metadata.metadata or {}
        return str(_parse_document(metadata.get(METADATA_KEY, b"")).get("id"))
    return str(_parse_document(content).get("id"))


def _metadata(schedule: AnySchedule) -> dict[str, Any]:
    """Return everything in a schedule file except the rows. Includes the links if the topology was read from a file."""
    topology, collective = schedule.topology, schedule.collective
    reference = {"spec": topology.spec, "id": topology.id}
    document = {
        "format": FORMAT,
        "id": schedule.id,
        "topology": reference | ({"network": to_json(topology)} if "file:" in topology.spec else {}),
        "collective": collective.name.value,
        "method": schedule.method,
        "parameters": dict(schedule.parameters),
    }
    if isinstance(schedule, Schedule):
        return document | {
            "root": collective.root,
            "kind": schedule.kind,
            "steps": schedule.steps,
            "chunks_per_shard": schedule.chunks_per_shard,
            "trees_per_root": schedule.trees_per_root,
            "barriers": list(schedule.barriers),
            "certificate": dict(schedule.certificate),
            "routes": _route_lists(schedule.routes, topology),
            **({} if collective.sizes is None else {"sizes": list(collective.sizes)}),
            **({} if collective.members is None else {"members": list(map(list, collective.members))}),
        }
    parts: list[dict[str, Any]] = []
    for part in schedule.parts:
        facts: dict[str, Any] = {
            "name": "scatter" if part is schedule.scatter else "gather",
            "steps": part.steps,
            "chunks_per_shard": part.chunks_per_shard,
            "certificate": dict(part.certificate),
        }
        if isinstance(part, SymmetricTrees):
            facts |= {"generators": list(part.generators), "trees_per_root": part.trees_per_root}
            facts["routes"] = _route_lists(part.routes, part.topology)
        parts.append(facts)
    return document | {"form": "symmetric", "parts": parts}


def _route_lists(routes: Routes, topology: Topology) -> dict[str, list[int]] | None:
    if routes.is_direct(len(topology.links)):
        return None
    return {"offsets": routes.offsets.tolist(), "link_ids": routes.link_ids.tolist()}


def _parse_document(text: bytes) -> dict[str, Any]:
    require_small_json(text, "a schedule")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("the schedule is not valid JSON: {}", error, _AGAIN) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        actual = document.get("format") if isinstance(document, dict) else type(document).__name__
        value = f"this one has {actual}" if actual else "this one states none"
        raise InvalidInput(f"a schedule file must have the format {FORMAT}, but {{}}", value, _AGAIN)
    return document


def _checked(document: Mapping[str, Any], build: Callable[[], _S], require_id: bool) -> _S:
    try:
        schedule = build()
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise InvalidInput("the schedule file is damaged: {}", fault_in(error), _AGAIN) from error
    if require_id and schedule.id != document.get("id"):
        rule = "the content of the schedule file does not match its id: {}"
        raise InvalidInput(rule, f"id {document.get('id')}, content {schedule.id}", _AGAIN)
    return schedule


def _build(document: Mapping[str, Any], columns: list[np.ndarray], parse_spec: ParseSpec) -> Schedule:
    topology = _read_topology(document["topology"], parse_spec)
    if (name := document["collective"]) in UNEVEN:
        sizes = map(int, document.get("sizes", ()))
        collective = uneven_collective(CollectiveName(name), sizes, document.get("members"))
    else:
        collective = parse_collective(name, document["root"] or 0)
    routes = _read_routes(document["routes"], topology)
    steps, chunks = int(document["steps"]), int(document["chunks_per_shard"])
    if document["kind"] not in ("stepped", "pipelined") or steps < 0 or chunks < 1:
        raise ValueError("kind, steps or chunks_per_shard")
    transfers = _packed(ColumnBounds(steps, len(routes), shard_count(topology, collective), chunks), columns)
    return Schedule(
        topology, collective, document["kind"], steps, chunks, transfers, routes,
        str(document["method"]), document["parameters"], document["certificate"], document["trees_per_root"],
        tuple(int(step) for step in document.get("barriers", ())),
    )  # fmt: skip


def _build_symmetric(
    document: Mapping[str, Any], owner: np.ndarray, columns: list[np.ndarray], parse_spec: ParseSpec
) -> SymmetricSchedule:
    topology = _read_topology(document["topology"], parse_spec)
    parts: dict[str, SymmetricPart] = {}
    for index, facts in enumerate(document["parts"]):
        steps, chunks = int(facts["steps"]), int(facts["chunks_per_shard"])
        if facts["name"] not in ("scatter", "gather") or steps < 0 or not 1 <= chunks < 2**31:
            raise ValueError("name, steps or chunks_per_shard of a part")
        network = topology if facts["name"] == "gather" else transpose_with_links(topology)[0]
        routes = _read_routes(facts["routes"] if "generators" in facts else None, network)
        bounds = ColumnBounds(steps, len(routes), network.compute_count, chunks)
        base = _packed(bounds, [column[owner == index] for column in columns])
        part: SymmetricPart
        if "generators" not in facts:
            part = SymmetricGather(network, steps, chunks, base, facts["certificate"])
        else:
            generators = tuple(int(number) for number in facts["generators"])
            known = range(len(network.automorphisms))
            if not set(generators) <= set(known) or len(set(generators)) < len(generators):
                raise ValueError("generators")
            part = SymmetricTrees(
                network, generators, steps, chunks, base, routes, facts["certificate"], facts["trees_per_root"]
            )
        parts[facts["name"]] = part
    return SymmetricSchedule(
        topology, parse_collective(document["collective"]), parts.get("scatter"), parts.get("gather"),
        str(document["method"]), document["parameters"],
    )  # fmt: skip


def _packed(bounds: ColumnBounds, columns: list[np.ndarray]) -> Transfers:
    for column, dtype in zip(columns, bounds.dtypes, strict=True):
        if len(column) and not (int(column.min()) >= 0 and int(column.max()) <= np.iinfo(dtype).max):
            raise ValueError("a column holds numbers beyond its range")
    return bounds.pack(columns)


def _read_topology(reference: Mapping[str, Any], parse_spec: ParseSpec) -> Topology:
    """Return the topology described by `reference`. Raises InvalidInput if its spec now gives a different network."""
    network = reference.get("network")
    topology = (
        parse_spec(reference["spec"]) if network is None else from_json(json.dumps(network).encode(), reference["spec"])
    )
    if topology.id != reference["id"]:
        rule = "the topology of the schedule file does not match its id: {}"
        raise InvalidInput(rule, f"{reference['spec']} with id {topology.id}", _AGAIN)
    return topology


def _read_routes(table: Mapping[str, Any] | None, topology: Topology) -> Routes:
    """Return the routes in `table`. Without a table, each route is a single link."""
    if table is None:
        return Routes.direct(len(topology.links))
    return Routes(np.array(table["offsets"], dtype=np.int64), np.array(table["link_ids"], dtype=np.int32))
