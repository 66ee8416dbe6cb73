"""Documents that would take the memory or the stack are refused before they do."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.schedule.codec import METADATA_KEY, from_json_text, from_parquet
from chorale.synth.schedule.schedule import COLUMN_NAMES
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.spec import parse_topology

GRAPHML = b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 200_000, "recursion"),
        (b'{"a":[' + b"[]," * 2**21 + b"1]}", "lists and objects"),
        (b'{"a":[' + b"1," * (2**23 + 1) + b"1]}", "values"),
        (GRAPHML + b"<a>" * 5000 + b"</a>" * 5000 + b"</graphml>", "nest at most 64"),
        (GRAPHML + b"<a/>" * 2**22 + b"</graphml>", "tags"),
    ],
)
def test_deep_and_large_networks_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        from_bytes(content, "file:x.json" if content[:1] in b"[{" else "file:x.graphml")


def test_a_large_schedule_in_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="values"):
        from_json_text(b'{"transfers": [' + b"1," * (2**23 + 1) + b"1]}", parse_topology)


def test_a_small_parquet_file_with_many_rows_is_refused() -> None:
    """Seven columns of 50 million zeros are a file of some kilobytes."""
    zeros = pa.array(np.zeros(2**22, dtype=np.uint32))
    columns = dict.fromkeys(COLUMN_NAMES, zeros)
    metadata = {METADATA_KEY: json.dumps({"format": "chorale-schedule/1"})}
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        for _ in range(12):
            writer.write_table(table)
    with pytest.raises(InvalidInput, match="must take at most"):
        from_parquet(bytes(sink.getvalue()), parse_topology)


def test_a_network_of_endless_paths_is_refused_in_seconds() -> None:
    with pytest.raises(InvalidInput, match="links times hops"):
        lower_bound(parse_topology("uniring:1,200000"), ALLREDUCE)


def test_bounds_of_amounts_near_2_to_the_40_are_exact() -> None:
    plan = plan_traffic(parse_topology("complete:2"), traffic_matrix("m3", [[0, 1016865568473], [458170049596, 0]]))
    assert plan.bound.time <= plan.time
    assert plan.bound.time == 1016865568473
