"""Schedules as bytes: Parquet for any size, JSON for reading. Loading gives back the same content id."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from synth.collective import parse_collective
from synth.errors import InvalidInput
from synth.schedule.routes import Routes
from synth.schedule.schedule import Schedule
from synth.schedule.transfers import COLUMN_NAMES, ColumnBounds
from synth.topology.exchange import from_json, to_json
from synth.topology.topology import Topology

FORMAT = "chorale-schedule/1"
METADATA_KEY = b"chorale"
MAX_JSON_ROWS = 2**20

ParseSpec = Callable[[str], Topology]
_AGAIN = "write the file again with `chorale synth`"


def to_parquet(schedule: Schedule) -> bytes:
    """Return `schedule` as a Parquet file: one row per transfer, metadata in one JSON document.

    `src` and `dst` are written too, for readers that know nothing of routes.
    """
    named = dict(zip(COLUMN_NAMES, schedule.transfers.columns, strict=True))
    ends = {"src": schedule.src.astype(np.uint32), "dst": schedule.dst.astype(np.uint32)}
    table = pa.table({name: pa.array(column) for name, column in {**named, **ends}.items()})
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(_metadata(schedule), sort_keys=True)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def from_parquet(content: bytes, parse_spec: ParseSpec, require_id: bool = True) -> Schedule:
    """Read a schedule back. Raises InvalidInput if the file is damaged.

    With `require_id`, also if the content does not give the id that the file states; without it the caller
    must compare (see `stated_id`), as the verifier does to report more than the first difference.
    """
    document, table = read_table(content)
    if is_symmetric(document):
        rule = "a schedule in symmetric form holds the rows of one rank only"
        raise InvalidInput(rule, "a file in that form", "read it with `synth.schedule.symmetric_codec`")
    columns = [table.column(name).to_numpy() for name in COLUMN_NAMES]
    return _schedule(document, columns, parse_spec, require_id)


def read_table(content: bytes) -> tuple[dict[str, Any], pa.Table]:
    """Return the metadata and the columns of a .parquet schedule of any form."""
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput("a .parquet schedule must be a Parquet file", error, _AGAIN) from error
    text = (table.schema.metadata or {}).get(METADATA_KEY)
    if text is None or any(name not in table.column_names for name in COLUMN_NAMES):
        raise InvalidInput("a schedule file must hold Chorale's columns and metadata", "other content", _AGAIN)
    return parse_document(text), table


def is_symmetric(document: Mapping[str, Any]) -> bool:
    """Whether the file with this metadata holds a `SymmetricSchedule`."""
    return bool(document.get("form", "columns") == "symmetric")


def to_json_text(schedule: Schedule) -> str:
    """Return `schedule` as JSON with one transfer per line; refused beyond about a million transfers."""
    rows = len(schedule.transfers)
    if rows > MAX_JSON_ROWS:
        rule = f"a JSON schedule holds at most {MAX_JSON_ROWS} transfers"
        raise InvalidInput(rule, f"{rows} transfers", "use a file name that ends in .parquet")
    columns = [column.tolist() for column in schedule.transfers.columns]
    lines = ",\n".join("  " + json.dumps(row) for row in zip(*columns, strict=True))
    head = json.dumps({**_metadata(schedule), "columns": COLUMN_NAMES}, sort_keys=True, indent=1)
    return f'{head[:-2]},\n "transfers": [\n{lines}\n ]\n}}\n'


def from_json_text(content: bytes, parse_spec: ParseSpec, require_id: bool = True) -> Schedule:
    """Read a schedule back from JSON. Raises InvalidInput like `from_parquet`."""
    document = parse_document(content)
    rows = document.get("transfers")
    if document.get("columns") != list(COLUMN_NAMES) or not isinstance(rows, list):
        raise InvalidInput("a JSON schedule must have `columns` and `transfers`", "other keys", _AGAIN)
    try:
        table = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMN_NAMES))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput("every transfer must be a row of six integers", error, _AGAIN) from error
    return _schedule(document, list(table.T), parse_spec, require_id)


def stated_id(content: bytes) -> str:
    """Return the content id that a schedule file states."""
    if content[:4] == b"PAR1":
        metadata = pq.read_schema(io.BytesIO(content)).metadata
        return str(parse_document(metadata[METADATA_KEY])["id"])
    return str(parse_document(content)["id"])


def _metadata(schedule: Schedule) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "id": schedule.id,
        "topology": topology_reference(schedule.topology),
        "collective": schedule.collective.name.value,
        "root": schedule.collective.root,
        "kind": schedule.kind,
        "steps": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
        "trees_per_root": schedule.trees_per_root,
        "barriers": list(schedule.barriers),
        "method": schedule.method,
        "parameters": dict(schedule.parameters),
        "certificate": dict(schedule.certificate),
        "routes": None if schedule.routes.is_direct(len(schedule.topology.links)) else _route_lists(schedule.routes),
    }


def topology_reference(topology: Topology) -> dict[str, Any]:
    """Name the topology by spec and id; a spec that reads a file travels with the whole network."""
    reference: dict[str, Any] = {"spec": topology.spec, "id": topology.id}
    if "file:" in topology.spec:
        reference["network"] = to_json(topology)
    return reference


def _route_lists(routes: Routes) -> dict[str, list[int]]:
    return {"offsets": routes.offsets.tolist(), "link_ids": routes.link_ids.tolist()}


def parse_document(text: bytes) -> dict[str, Any]:
    """Return the metadata of a schedule file, after checking its format."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("a schedule must be valid JSON", error, _AGAIN) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise InvalidInput(f"a schedule file must have the format {FORMAT}", found, _AGAIN)
    return document


def _schedule(
    document: Mapping[str, Any], columns: list[np.ndarray], parse_spec: ParseSpec, require_id: bool
) -> Schedule:
    try:
        schedule = _build(document, columns, parse_spec)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidInput("a schedule file must be complete and well-typed", repr(error), _AGAIN) from error
    if require_id and schedule.id != document.get("id"):
        rule = "the content of a schedule file must match its id"
        raise InvalidInput(rule, f"id {document.get('id')}, content {schedule.id}", _AGAIN)
    return schedule


def _build(document: Mapping[str, Any], columns: list[np.ndarray], parse_spec: ParseSpec) -> Schedule:
    topology = read_topology(document["topology"], parse_spec)
    collective = parse_collective(document["collective"], document["root"] or 0)
    table = document["routes"]
    routes = Routes.direct(len(topology.links)) if table is None else _read_routes(table)
    steps, chunks = int(document["steps"]), int(document["chunks_per_shard"])
    if document["kind"] not in ("stepped", "pipelined") or steps < 0 or chunks < 1:
        raise ValueError("kind, steps or chunks_per_shard")
    shards = topology.compute_count ** (2 if collective.name == "alltoall" else 1)
    bounds = ColumnBounds(steps, len(routes), shards, chunks)
    for column, dtype in zip(columns, bounds.dtypes, strict=True):
        if len(column) and not (int(column.min()) >= 0 and int(column.max()) <= np.iinfo(dtype).max):
            raise ValueError("a column holds numbers beyond its range")
    return Schedule(
        topology, collective, document["kind"], steps, chunks, bounds.pack(columns), routes,
        str(document["method"]), document["parameters"], document["certificate"], document["trees_per_root"],
        tuple(int(step) for step in document.get("barriers", ())),
    )  # fmt: skip


def read_topology(reference: Mapping[str, Any], parse_spec: ParseSpec) -> Topology:
    """Return the topology that `topology_reference` described. Raises InvalidInput if it is another one by now."""
    network = reference.get("network")
    topology = (
        parse_spec(reference["spec"]) if network is None else from_json(json.dumps(network).encode(), reference["spec"])
    )
    if topology.id != reference["id"]:
        rule = "the topology of a schedule file must match its id"
        raise InvalidInput(rule, f"{reference['spec']} with id {topology.id}", _AGAIN)
    return topology


def _read_routes(table: Mapping[str, Any]) -> Routes:
    return Routes(np.array(table["offsets"], dtype=np.int64), np.array(table["link_ids"], dtype=np.int32))
