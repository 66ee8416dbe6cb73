"""Symmetric schedules: the rows of one rank, content ids, files."""

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.schedule.codec import METADATA_KEY, from_parquet, stated_id, to_parquet
from chorale.synth.schedule.symmetric import SymmetricGather
from chorale.synth.topology.spec import parse_topology
from tests.symmetric_networks import symmetric_networks

SERIAL = SerialExecutor()


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


def with_metadata(content, change):
    table = pq.read_table(io.BytesIO(content))
    document = json.loads(table.schema.metadata[METADATA_KEY])
    change(document)
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(document)}), sink)
    return sink.getvalue()


def without_column(content, name):
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(content)).drop_columns([name]), sink)
    return sink.getvalue()


@pytest.mark.parametrize("spec", ["torus:4x3", "dicirculant:3", "biring:4,6"])
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_files_give_back_the_same_schedule(spec, collective):
    schedule = symmetric_bfb(parse_topology(spec), collective, SERIAL, 4)
    content = to_parquet(schedule)
    back = from_parquet(content, parse_topology)
    assert back.form == schedule.form == "symmetric"
    assert back.id == schedule.id == stated_id(content)
    assert (back.collective, back.method, dict(back.parameters)) == (collective, "bfb", {"chunks": 4})
    assert [part.certificate for part in back.parts] == [part.certificate for part in schedule.parts]
    assert back.expand().id == schedule.expand().id


def test_the_same_bytes_every_time():
    assert content_of() == content_of()


def test_rows_of_one_rank_are_not_taken_for_a_whole_schedule():
    assert from_parquet(content_of(), parse_topology).form == "symmetric"
    columns = from_parquet(content_of(), parse_topology).expand()
    assert from_parquet(to_parquet(columns), parse_topology).form == "columns"
    with pytest.raises(InvalidInput, match="the schedule file lacks Chorale's columns or metadata"):
        from_parquet(without_column(content_of(), "lo"), parse_topology)
    with pytest.raises(InvalidInput, match="the schedule file is damaged"):
        from_parquet(without_column(content_of(), "part"), parse_topology)
    with pytest.raises(InvalidInput, match="the schedule file is damaged"):
        from_parquet(with_metadata(content_of(), lambda document: document.pop("form")), parse_topology)


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
        lambda document: document["parts"][0].pop("steps"),
        lambda document: document["parts"][0].update(name="sideways"),
        lambda document: document["parts"][0].update(chunks_per_shard=0),
        lambda document: document["parts"][0].update(steps="many"),
        lambda document: document.update(parameters={}, collective="allgather"),
        lambda document: document["topology"].update(spec="torus:3x4"),
        lambda document: document["topology"].update(spec="mesh:3x3"),
    ],
)
def test_damaged_metadata_is_refused(change):
    with pytest.raises(InvalidInput):
        from_parquet(with_metadata(content_of(), change), parse_topology)


def test_what_is_no_schedule_file_is_refused():
    with pytest.raises(InvalidInput, match="Parquet"):
        from_parquet(b"PAR1 nothing", parse_topology)
