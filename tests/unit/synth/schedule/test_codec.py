"""Schedule files, whole and symmetric: the same id back, damage noticed; documents too large or deep are refused."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.schedule.codec import METADATA_KEY, from_json_text, from_parquet, stated_id, to_json_text, to_parquet
from chorale.synth.schedule.schedule import COLUMN_NAMES
from chorale.synth.schedule.symmetric import SymmetricGather
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.strategies import networks
from tests.symmetric_networks import symmetric_networks

SERIAL = SerialExecutor()


def make(spec="torus:2x3", collective=ALLREDUCE, method="bfb", **options):
    return synthesized(method, spec, collective, **options).schedule


def read_back(schedule, read_topology=parse_topology):
    parquet, text = to_parquet(schedule), to_json_text(schedule).encode()
    assert stated_id(parquet) == stated_id(text) == schedule.id
    return from_parquet(parquet, read_topology), from_json_text(text, read_topology)


@random_cases(30)
@given(networks(2, 6))
def test_files_give_back_the_same_id(topology):
    schedule = make(topology, ALLGATHER, chunks=2)
    for back in read_back(schedule, lambda _spec: topology):
        assert (back.id, back.method, dict(back.parameters)) == (schedule.id, "bfb", {"chunks": 2})
        assert dict(back.certificate) == dict(schedule.certificate)


@pytest.mark.parametrize(
    "write",
    [
        lambda: make("mesh:3x3", ALLGATHER, "biring"),  # routes through other ranks
        lambda: make("ring:4", ALLREDUCE, "forest-phases"),  # barriers
        lambda: make("able(h100:1;reduce-bandwidth=100)", ALLREDUCE, "in-network").expand(),
        lambda: traffic_schedule(plan_traffic(parse_topology("complete:2"), traffic_matrix("m", [[1, 30], [2, 40]]))),
    ],
    ids=["routes", "barriers", "adding switches", "sizes"],
)
def test_every_kind_of_schedule_comes_back(write):
    schedule = write()
    for back in read_back(schedule):
        assert (back.id, back.barriers, back.collective) == (schedule.id, schedule.barriers, schedule.collective)
        assert verify(back).cost == verify(schedule).cost
    assert not schedule.barriers or replace(schedule, barriers=()).id != schedule.id


def test_a_topology_from_a_file_travels_with_the_schedule():
    network = json.dumps(to_json(parse_topology("ring:4"))).encode()
    topology = parse_topology("file:net.json", lambda _path: network)
    schedule = make(topology, ALLGATHER)
    for back in read_back(schedule, lambda spec: pytest.fail(f"{spec} was read again")):
        assert back.id == schedule.id


def test_files_take_less_than_with_dictionaries_which_are_read_as_well():
    schedule = make("torus:8x8", ALLGATHER)
    content = to_parquet(schedule)
    with_dictionaries = written(pq.read_table(io.BytesIO(content)), compression="zstd")
    assert from_parquet(with_dictionaries, parse_topology).id == schedule.id
    assert columns_size_bytes(content) < 0.8 * columns_size_bytes(with_dictionaries)


def written(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def columns_size_bytes(content):
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    return sum(group.column(index).total_compressed_size for index in range(group.num_columns))


def test_the_same_bytes_are_written_every_time_and_a_changed_row_is_noticed():
    assert to_parquet(make()) == to_parquet(make())
    assert to_json_text(make()) == to_json_text(make())
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
        lambda d: d.update(transfers=[[1, 2, 3]]),
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


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(content):
    with pytest.raises(ChoraleError):
        from_json_text(content, parse_topology)


def test_truncated_parquet_and_that_of_others_are_refused():
    for cut in (0, 10, -9):
        for read in (lambda content: from_parquet(content, parse_topology), stated_id):
            with pytest.raises(InvalidInput, match="Parquet"):
                read(to_parquet(make())[:cut] or b"PAR1")
    with pytest.raises(InvalidInput, match="the schedule file lacks Chorale's columns or metadata"):
        from_parquet(written(pa.table({"step": [1, 2]})), parse_topology)
    with pytest.raises(InvalidInput):  # names that are not UTF-8
        from_parquet(to_parquet(make()).replace(b"chunk", b"ch\xffnk"), parse_topology)


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
    table = pq.read_table(io.BytesIO(to_parquet(make())))
    with pytest.raises(InvalidInput):
        from_parquet(written(table.set_column(0, table.column_names[0], column(len(table)))), parse_topology)


@pytest.mark.parametrize("topology", symmetric_networks(), ids=lambda topology: topology.spec)
def test_writing_out_gives_rank_after_rank_the_image_of_what_rank_0_receives(topology):
    schedule = symmetric_bfb(topology, ALLGATHER, SERIAL)
    gather, expanded, links = schedule.gather, schedule.expand(), topology.links
    ranks, rows = topology.compute_count, len(gather.base)
    assert np.array_equal(expanded.dst, np.repeat(np.arange(ranks), rows))
    base_links = gather.base_links()
    assert np.array_equal(
        base_links[expanded.transfers.route].reshape(ranks, rows), np.tile(gather.base.route, (ranks, 1))
    )
    assert np.array_equal(expanded.transfers.step.reshape(ranks, rows), np.tile(gather.base.step, (ranks, 1)))
    assert np.array_equal(links.bandwidth_class, links.bandwidth_class[base_links])


def test_writing_out_has_a_limit():
    schedule = symmetric_bfb(parse_topology("torus:4x3"), ALLREDUCE, SERIAL)
    assert len(schedule.expand(schedule.transfer_count).transfers) == schedule.transfer_count
    with pytest.raises(InvalidInput, match="written out up to"):
        schedule.expand(schedule.transfer_count - 1)
    with pytest.raises(InvalidInput, match="written out up to 134217728 transfers"):
        symmetric_bfb(parse_topology("torus:128x128"), ALLGATHER, SERIAL).expand()


def test_the_id_covers_rows_steps_and_symmetries():
    topology = parse_topology("torus:4x3")
    gather = symmetric_bfb(topology, ALLGATHER, SERIAL).gather
    same = SymmetricGather(topology, gather.steps, gather.chunks_per_shard, gather.base)
    assert same.id == gather.id
    fewer = replace(gather, base=gather.base.select(slice(1, None)))
    longer = replace(gather, steps=gather.steps + 1)
    other = replace(gather, topology=replace(topology, automorphisms=topology.automorphisms[::-1]))
    assert len({gather.id, fewer.id, longer.id, other.id}) == 4


def content_of(spec="torus:4x3", collective=ALLREDUCE):
    return to_parquet(symmetric_bfb(parse_topology(spec), collective, SERIAL))


def rewritten(content, change):
    """Write the file again after `change` of its table and its metadata; it returns the table."""
    table = pq.read_table(io.BytesIO(content))
    document = json.loads(table.schema.metadata[METADATA_KEY])
    changed = change(table, document)
    table = changed if isinstance(changed, pa.Table) else table
    return written(table.replace_schema_metadata({METADATA_KEY: json.dumps(document)}))


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_files_give_back_the_same_schedule(collective):
    schedule = symmetric_bfb(parse_topology("dicirculant:3"), collective, SERIAL, 4)
    content = to_parquet(schedule)
    back = from_parquet(content, parse_topology)
    assert back.form == schedule.form == "symmetric"
    assert back.id == schedule.id == stated_id(content)
    assert (back.collective, back.method, dict(back.parameters)) == (collective, "bfb", {"chunks": 4})
    assert [part.certificate for part in back.parts] == [part.certificate for part in schedule.parts]
    assert back.expand().id == schedule.expand().id


def test_rows_of_one_rank_are_not_taken_for_a_whole_schedule():
    for column, rule in (("lo", "the schedule file lacks Chorale's columns"), ("part", "the schedule file is damaged")):
        with pytest.raises(InvalidInput, match=rule):
            from_parquet(
                rewritten(content_of(), lambda table, _, name=column: table.drop_columns([name])), parse_topology
            )


def test_other_symmetries_than_those_of_the_file_are_noticed():
    def turned(spec):
        topology = parse_topology(spec)
        return replace(topology, automorphisms=topology.automorphisms[::-1])

    with pytest.raises(InvalidInput, match="the content of the schedule file does not match its id: id"):
        from_parquet(content_of(), turned)
    assert from_parquet(content_of(), turned, require_id=False).id != stated_id(content_of())


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("parts"),
        lambda document: document.pop("form"),
        lambda document: document["parts"][0].pop("steps"),
        lambda document: document["parts"][0].update(name="sideways"),
        lambda document: document["parts"][0].update(chunks_per_shard=0),
        lambda document: document.update(parameters={}, collective="allgather"),
        lambda document: document["topology"].update(spec="torus:3x4"),
    ],
)
def test_damaged_metadata_is_refused(change):
    with pytest.raises(InvalidInput):
        from_parquet(rewritten(content_of(), lambda _, document: change(document)), parse_topology)


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
