"""Records of what a job calls, and reports of what ran: counts, files, sums, clusters of sizes, orders of additions."""

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.job.record import (
    CallClock,
    CallCount,
    CallKey,
    JobRecorder,
    Record,
    merge,
    parse_record,
    read_record,
    record_bytes,
    size_clusters,
    size_weights,
    write_whole,
)
from chorale.job.report import JobReport
from chorale.synth.errors import InvalidInput
from tests.unit.job.table.test_layout import ring_table

KEYS = st.builds(
    CallKey,
    st.sampled_from(["allreduce", "allgather", "broadcast"]),
    st.sampled_from(["float32", "bfloat16"]),
    st.one_of(st.none(), st.lists(st.integers(0, 7), min_size=1, unique=True).map(tuple)),
    st.one_of(st.none(), st.integers(0, 7)),
    st.integers(0, 2**40),
)
COUNTS = st.builds(CallCount, st.integers(1, 10**6), st.integers(0, 2**20).map(lambda ticks: ticks / 1024))
RECORDS = st.builds(Record, st.just(8), st.dictionaries(KEYS, COUNTS, max_size=8))
SECONDS = st.dictionaries(st.integers(1, 2**30), st.integers(0, 2**20).map(float), min_size=1, max_size=30)


@given(RECORDS)
def test_what_goes_in_comes_out(record: Record) -> None:
    data = record_bytes(record)
    assert parse_record(data) == record
    assert json.loads(data)["format"] == "chorale-record/1"


@given(RECORDS, RECORDS)
def test_merging_adds_calls_and_seconds_of_jobs_with_as_many_ranks(one: Record, other: Record) -> None:
    both = merge([one, other])
    assert both == merge([other, one])
    assert both.calls.keys() == one.calls.keys() | other.calls.keys()
    assert both.seconds == one.seconds + other.seconds
    calls = [sum(count.calls for count in record.calls.values()) for record in (one, other, both)]
    assert calls[2] == calls[0] + calls[1]
    with pytest.raises(InvalidInput, match="different numbers of ranks: 4, 8"):
        merge([Record(8, {}), Record(4, {})])


CALL = {
    "collective": "allreduce", "dtype": "float32", "group": [0, 1], "root": None,
    "size_bytes": 8, "calls": 1, "seconds": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"group": [0, 0]}, {"group": [9]}, {"group": []}, {"size_bytes": -1}, {"size_bytes": 1.5}, {"calls": 0},
        {"seconds": -1}, {"seconds": math.nan}, {"root": "a"}, {"calls": True},
    ],
)  # fmt: skip
def test_calls_that_say_nonsense_are_refused(change: dict[str, object]) -> None:
    parse_record(json.dumps({"format": "chorale-record/1", "ranks": 2, "calls": [CALL]}).encode())
    with pytest.raises(InvalidInput, match="a record must have the"):
        parse_record(json.dumps({"format": "chorale-record/1", "ranks": 2, "calls": [CALL | change]}).encode())


@given(SECONDS, st.integers(1, 10))
def test_clusters_keep_all_sizes_and_all_time(seconds: dict[int, float], most: int) -> None:
    clusters = size_clusters(seconds, most)
    assert len(clusters) == min(most, len(seconds))
    assert sum(cluster.seconds for cluster in clusters) == sum(seconds.values())
    inside = [[size for size in seconds if c.first_bytes <= size <= c.last_bytes] for c in clusters]
    assert sorted(size for sizes in inside for size in sizes) == sorted(seconds)
    for cluster, sizes in zip(clusters, inside, strict=True):
        assert cluster.size_bytes in sizes
        assert cluster.seconds == sum(seconds[size] for size in sizes)
    weights, total = size_weights(clusters), sum(seconds.values())
    assert sum(weights) == pytest.approx(1)
    assert not total or weights == pytest.approx([cluster.seconds / total for cluster in clusters])


def test_the_size_with_most_time_stands_for_its_neighbours() -> None:
    clusters = size_clusters({1000: 0.1, 1024: 5.0, 1030: 0.1, 2**20: 9.0}, 2)
    found = [(cluster.size_bytes, cluster.first_bytes, cluster.last_bytes) for cluster in clusters]
    assert found == [(1024, 1000, 1030), (2**20, 2**20, 2**20)]


def test_calls_under_way_at_once_do_not_count_their_waiting_twice() -> None:
    times = iter([0.0, 1.0, 5.0, 7.0, 10.0, 11.5])
    clock = CallClock(lambda: next(times))
    first, second = clock.start(), clock.start()
    assert (first(), second()) == (5.0, 2.0)
    assert clock.start()() == 1.5


def test_the_file_says_what_was_counted(tmp_path: Path) -> None:
    recorder = JobRecorder(2)
    recorder.add("allgather", "float32", range(2), None, 64, 0.5)
    recorder.add("allgather", "float32", (0, 1), None, 64, 0.25)
    recorder.add("broadcast", "int8", (1, 0), 1, 64, 0.25)
    recorder.write(tmp_path / "job.json")
    assert read_record(tmp_path / "job.json") == recorder.record()
    assert recorder.record().calls == {
        CallKey("allgather", "float32", None, None, 64): CallCount(2, 0.75),
        CallKey("broadcast", "int8", (1, 0), 1, 64): CallCount(1, 0.25),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_file_is_replaced_and_a_device_stays(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for content in (b"first, and longer", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
    write_whole(Path("/dev/null"), b"content")
    (tmp_path / "mine").write_bytes(b"precious")
    (tmp_path / f"record.json.{os.getpid()}.new").symlink_to("mine")  # in a folder that others may write to
    write_whole(tmp_path / "record.json", b"content")
    assert (tmp_path / "mine").read_bytes() == b"precious"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def counted(*calls: tuple[str, str], fallbacks: tuple[str, ...] = (), **changes: object) -> bool:
    """Return whether a job is deterministic that ran programs "fixed", "other" and "loose" as `calls` says."""
    (program,) = ring_table().programs.values()
    order = program.order_of_additions
    assert order is not None
    report = JobReport()
    report.note_orders(
        [
            replace(program, digest="fixed"),
            replace(program, digest="same"),
            replace(program, digest="other", order_of_additions={**order, "digest": "another"}),
            replace(program, digest="loose", order_of_additions={**order, "same_on_all_ranks": False}),
            replace(program, digest="copies", order_of_additions=None),
        ]
    )
    for digest, collective in calls:
        report.count_program(digest, collective, 8, 0.5)
    for collective in fallbacks:
        report.count_fallback("size not in the table", collective, 8)
    return bool(report.to_json()["deterministic"])


def test_orders_are_said_and_fixed_where_programs_of_one_order_added_all_and_only_there() -> None:
    assert counted(("fixed", "allreduce"), ("fixed", "allreduce"))
    assert counted(("fixed", "allreduce"), ("same", "allreduce"), ("other", "reduce_scatter"))
    assert counted(("fixed", "allreduce"), ("copies", "allgather"), fallbacks=("broadcast",))
    assert counted()
    assert not counted(("fixed", "allreduce"), ("other", "allreduce"))
    assert not counted(("loose", "allreduce"))
    assert not counted(("copies", "allreduce"))
    assert not counted(("unheard of", "allreduce"))
    assert not counted(("fixed", "allreduce"), fallbacks=("allreduce",))
    assert not counted(fallbacks=("reduce_scatter",))
    (program,) = ring_table().programs.values()
    order = dict(program.order_of_additions or {})
    assert len(order.pop("digest")) == 64
    assert order == {
        "fixed": True, "same_on_all_ranks": True, "independent_of_position": False, "orders": 4, "depth": 3,
    }  # fmt: skip
