"""Symmetric schedules as Parquet: the base rows of every part; symmetries come back with the topology.

The symmetries are those that the builder of the topology's spec attaches. The content id covers them, so a
file whose spec gives other ones by now is refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from synth.collective import parse_collective
from synth.errors import InvalidInput
from synth.schedule.codec import (
    FORMAT,
    METADATA_KEY,
    ParseSpec,
    is_symmetric,
    parse_document,
    read_table,
    read_topology,
    topology_reference,
)
from synth.schedule.symmetric import SymmetricGather, SymmetricSchedule
from synth.schedule.transfers import COLUMN_NAMES, ColumnBounds
from synth.topology.topology import Topology
from synth.topology.transpose import transpose_with_links

_AGAIN = "write the file again with `chorale synth`"


def symmetric_to_parquet(schedule: SymmetricSchedule) -> bytes:
    """Return `schedule` as a Parquet file: one row per base transfer, `part` says of which part."""
    parts = schedule.parts
    columns = {
        name: np.concatenate([part.base.columns[index].astype(np.uint32) for part in parts])
        for index, name in enumerate(COLUMN_NAMES)
    }
    columns["part"] = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(part.base) for part in parts])
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(_metadata(schedule), sort_keys=True)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def holds_symmetric(content: bytes) -> bool:
    """Whether a .parquet schedule file is in symmetric form; False for what is no schedule file at all."""
    try:
        text = (pq.read_schema(io.BytesIO(content)).metadata or {}).get(METADATA_KEY)
    except (pa.ArrowException, OSError):
        return False
    return text is not None and is_symmetric(parse_document(text))


def symmetric_from_parquet(content: bytes, parse_spec: ParseSpec, require_id: bool = True) -> SymmetricSchedule:
    """Read a symmetric schedule back. Raises InvalidInput like `synth.schedule.codec.from_parquet`."""
    document, table = read_table(content)
    try:
        schedule = _build(document, table, parse_spec)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise InvalidInput("a schedule file must be complete and well-typed", repr(error), _AGAIN) from error
    if require_id and schedule.id != document.get("id"):
        rule = "the content of a schedule file must match its id"
        raise InvalidInput(rule, f"id {document.get('id')}, content {schedule.id}", _AGAIN)
    return schedule


def _metadata(schedule: SymmetricSchedule) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "form": "symmetric",
        "id": schedule.id,
        "topology": topology_reference(schedule.topology),
        "collective": schedule.collective.name.value,
        "method": schedule.method,
        "parameters": dict(schedule.parameters),
        "parts": [
            {
                "name": "scatter" if part is schedule.scatter else "gather",
                "steps": part.steps,
                "chunks_per_shard": part.chunks_per_shard,
                "certificate": dict(part.certificate),
            }
            for part in schedule.parts
        ],
    }


def _build(document: Mapping[str, Any], table: pa.Table, parse_spec: ParseSpec) -> SymmetricSchedule:
    topology = read_topology(document["topology"], parse_spec)
    owner = table.column("part").to_numpy()
    columns = [table.column(name).to_numpy() for name in COLUMN_NAMES]
    parts: dict[str, SymmetricGather] = {}
    for index, facts in enumerate(document["parts"]):
        if facts["name"] not in ("scatter", "gather"):
            raise ValueError("the name of a part")
        oriented = topology if facts["name"] == "gather" else transpose_with_links(topology)[0]
        parts[facts["name"]] = _part(oriented, facts, [column[owner == index] for column in columns])
    return SymmetricSchedule(
        topology, parse_collective(document["collective"]), parts.get("scatter"), parts.get("gather"),
        str(document["method"]), document["parameters"],
    )  # fmt: skip


def _part(topology: Topology, facts: Mapping[str, Any], columns: list[np.ndarray]) -> SymmetricGather:
    steps, chunks = int(facts["steps"]), int(facts["chunks_per_shard"])
    if steps < 0 or not 1 <= chunks < 2**31:
        raise ValueError("steps or chunks_per_shard")
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, chunks)
    for column, dtype in zip(columns, bounds.dtypes, strict=True):
        if len(column) and not (int(column.min()) >= 0 and int(column.max()) <= np.iinfo(dtype).max):
            raise ValueError("a column holds numbers beyond its range")
    return SymmetricGather(topology, steps, chunks, bounds.pack(columns), facts["certificate"])
