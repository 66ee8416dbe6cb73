"""Files of symmetric schedules: the same id back, damage noticed, the forms kept apart."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from synth.bfb.symmetric import symmetric_bfb
from synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from synth.errors import InvalidInput
from synth.executor.serial import SerialExecutor
from synth.schedule.codec import METADATA_KEY, from_parquet, stated_id
from synth.schedule.symmetric_codec import holds_symmetric, symmetric_from_parquet, symmetric_to_parquet
from synth.topology.spec import parse_topology

SERIAL = SerialExecutor()


def content_of(spec="torus:4x3", collective=ALLREDUCE):
    return symmetric_to_parquet(symmetric_bfb(parse_topology(spec), collective, SERIAL))


def with_metadata(content, change):
    table = pq.read_table(io.BytesIO(content))
    document = json.loads(table.schema.metadata[METADATA_KEY])
    change(document)
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(document)}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("spec", ["torus:4x3", "dicirculant:3", "biring:4,6"])
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
def test_files_give_back_the_same_schedule(spec, collective):
    schedule = symmetric_bfb(parse_topology(spec), collective, SERIAL, 4)
    content = symmetric_to_parquet(schedule)
    back = symmetric_from_parquet(content, parse_topology)
    assert holds_symmetric(content)
    assert back.id == schedule.id == stated_id(content)
    assert (back.collective, back.method, dict(back.parameters)) == (collective, "bfb", {"chunks": 4})
    assert [part.certificate for part in back.parts] == [part.certificate for part in schedule.parts]
    assert back.expand().id == schedule.expand().id


def test_the_same_bytes_every_time():
    assert content_of() == content_of()


def test_rows_of_one_rank_are_not_taken_for_a_whole_schedule():
    with pytest.raises(InvalidInput, match="the rows of one rank only"):
        from_parquet(content_of(), parse_topology)


def test_other_symmetries_than_those_of_the_file_are_noticed():
    def turned(spec):
        topology = parse_topology(spec)
        return replace(topology, automorphisms=topology.automorphisms[::-1])

    with pytest.raises(InvalidInput, match="must match its id"):
        symmetric_from_parquet(content_of(), turned)
    assert symmetric_from_parquet(content_of(), turned, require_id=False).id != stated_id(content_of())


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
        symmetric_from_parquet(with_metadata(content_of(), change), parse_topology)


def test_what_is_no_schedule_file_is_no_symmetric_one():
    assert not holds_symmetric(b"PAR1 nothing")
