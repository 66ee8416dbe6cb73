"""Schedule files: the same id back, damage noticed."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.schedule.codec import from_json_text, from_parquet, stated_id, to_json_text, to_parquet
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases
from tests.strategies import networks

SERIAL = SerialExecutor()


def make(spec="torus:2x3", collective=ALLREDUCE, method="bfb"):
    return synthesize_unverified(method, parse_topology(spec), collective, None, SERIAL)


@random_cases(30)
@given(networks(2, 6))
def test_files_give_back_the_same_id(topology):
    schedule = synthesize_unverified("bfb", topology, ALLGATHER, Options(chunks=2), SERIAL)
    for write, read in ((to_parquet, from_parquet), (lambda s: to_json_text(s).encode(), from_json_text)):
        content = write(schedule)
        back = read(content, lambda _spec: topology)
        assert back.id == schedule.id == stated_id(content)
        assert back.method == "bfb"
        assert dict(back.parameters) == {"chunks": 2}
        assert dict(back.certificate) == dict(schedule.certificate)


@pytest.mark.parametrize("method", ["ring", "biring"])
def test_routes_through_other_ranks_are_kept(method):
    schedule = make("mesh:3x3", ALLGATHER, method)
    assert from_json_text(to_json_text(schedule).encode(), parse_topology).id == schedule.id
    assert from_parquet(to_parquet(schedule), parse_topology).id == schedule.id


def test_a_topology_from_a_file_travels_with_the_schedule():
    network = json.dumps(to_json(parse_topology("ring:4"))).encode()
    topology = parse_topology("file:net.json", lambda _path: network)
    schedule = synthesize_unverified("bfb", topology, ALLGATHER, None, SERIAL)
    back = from_parquet(to_parquet(schedule), lambda spec: pytest.fail(f"{spec} was read again"))
    assert back.id == schedule.id


def test_the_same_bytes_every_time():
    assert to_parquet(make()) == to_parquet(make())
    assert to_json_text(make()) == to_json_text(make())


def test_files_take_less_than_with_dictionaries_which_are_read_as_well():
    schedule = make("torus:8x8", ALLGATHER)
    content = to_parquet(schedule)
    with_dictionaries = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(content)), with_dictionaries, compression="zstd")
    assert from_parquet(with_dictionaries.getvalue(), parse_topology).id == schedule.id
    assert columns_size_bytes(content) < 0.8 * columns_size_bytes(with_dictionaries.getvalue())


def columns_size_bytes(content):
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    return sum(group.column(index).total_compressed_size for index in range(group.num_columns))


def test_a_changed_row_is_noticed():
    document = json.loads(to_json_text(make()))
    document["transfers"][5][2] ^= 1
    content = json.dumps(document).encode()
    with pytest.raises(InvalidInput, match="the content of the schedule file does not match its id: id"):
        from_json_text(content, parse_topology)
    assert from_json_text(content, parse_topology, require_id=False).id != stated_id(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("collective"),
        lambda d: d.update(format="chorale-schedule/9"),
        lambda d: d.update(collective="gossip"),
        lambda d: d.update(kind="sideways"),
        lambda d: d.update(chunks_per_shard=0),
        lambda d: d.update(chunks_per_shard="many"),
        lambda d: d.update(transfers=[[1, 2, 3]]),
        lambda d: d.update(transfers=[["x"] * 6]),
        lambda d: d.update(transfers=[[-1, 0, 0, 0, 1, 0]]),
        lambda d: d.update(transfers=[[10**30, 0, 0, 0, 1, 0]]),
        lambda d: d.update(columns=["step"]),
        lambda d: d["topology"].update(id="0" * 64),
        lambda d: d["topology"].update(spec="torus:9999999x9999999"),
        lambda d: d.update(routes={"offsets": "?"}),
    ],
)
def test_damaged_json_is_refused_with_one_line(damage):
    document = json.loads(to_json_text(make()))
    damage(document)
    with pytest.raises(InvalidInput) as caught:
        from_json_text(json.dumps(document).encode(), parse_topology)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(content):
    with pytest.raises(ChoraleError):
        from_json_text(content, parse_topology)


@pytest.mark.parametrize("cut", [0, 10, -10])
def test_truncated_parquet_is_refused(cut):
    with pytest.raises(InvalidInput, match="Parquet"):
        from_parquet(to_parquet(make())[:cut], parse_topology)


def test_parquet_of_others_is_refused():
    sink = io.BytesIO()
    pq.write_table(pa.table({"step": [1, 2]}), sink)
    with pytest.raises(InvalidInput, match="the schedule file lacks Chorale's columns or metadata"):
        from_parquet(sink.getvalue(), parse_topology)


def test_a_parquet_file_whose_names_are_not_utf8_is_refused():
    content = to_parquet(make())
    assert content.count(b"chunk") > 1
    with pytest.raises(InvalidInput):
        from_parquet(content.replace(b"chunk", b"ch\xffnk"), parse_topology)


def column_of_texts_that_are_not_utf8(rows: int) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(b"\xff" * rows))


@pytest.mark.parametrize(
    "column",
    [
        column_of_texts_that_are_not_utf8,
        lambda rows: pa.array(["x"] * rows).dictionary_encode(),
        lambda rows: pa.array([{"a": 1}] * rows),
        pa.nulls,
        lambda rows: pa.array([0] * rows, pa.timestamp("ns", "No/Where")),
        lambda rows: pa.array([2**64 - 1] * rows, pa.uint64()),
    ],
)
def test_columns_that_hold_no_numbers_are_refused(column):
    table = pq.read_table(pa.BufferReader(to_parquet(make())))
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(0, table.column_names[0], column(len(table))), sink)
    with pytest.raises(InvalidInput):
        from_parquet(bytes(sink.getvalue()), parse_topology)


def test_the_id_of_a_file_that_is_cut_is_refused():
    for content in (b"PAR1", to_parquet(make())[:-9]):
        with pytest.raises(InvalidInput, match="Parquet"):
            stated_id(content)
