"""Documents that would take the memory or the stack are refused before they do."""

import json
from typing import Any

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


def parquet_file(column: pa.Array, groups: int = 1) -> bytes:
    """Return a file of kilobytes whose columns are all `column`, so often, each time in one page."""
    metadata = {METADATA_KEY: json.dumps({"format": "chorale-schedule/1"})}
    table = pa.table(dict.fromkeys(COLUMN_NAMES, column)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    layout = {"compression": "zstd", "use_dictionary": False, "data_page_size": 2**30, "max_rows_per_page": 2**26}
    with pq.ParquetWriter(sink, table.schema, **layout) as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=2**26)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("column", "groups", "said"),
    [
        (np.zeros(2**22, dtype=np.uint32), 12, "must take at most"),
        (["text"], 1, "BYTE_ARRAY"),
        ([[0, 0]], 1, "this .parquet file is not a Parquet file"),
    ],
    ids=["rows", "texts", "lists"],
)
def test_small_parquet_files_with_much_inside_are_refused(column: Any, groups: int, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        from_parquet(parquet_file(pa.array(column), groups), parse_topology)


def test_a_page_that_takes_much_is_refused_whatever_the_end_of_the_file_says() -> None:
    content = parquet_file(pa.array(np.zeros(2**24 + 1, dtype=np.uint32)))
    with pytest.raises(InvalidInput, match="and a page"):
        from_parquet(content, parse_topology)


def test_a_network_of_endless_paths_is_refused_in_seconds() -> None:
    with pytest.raises(InvalidInput, match="links times hops"):
        lower_bound(parse_topology("uniring:1,200000"), ALLREDUCE)


def test_bounds_of_amounts_near_2_to_the_40_are_exact() -> None:
    plan = plan_traffic(parse_topology("complete:2"), traffic_matrix("m3", [[0, 1016865568473], [458170049596, 0]]))
    assert plan.bound.time <= plan.time
    assert plan.bound.time == 1016865568473
