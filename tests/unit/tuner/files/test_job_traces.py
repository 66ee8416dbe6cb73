"""Traces of PyTorch and Chakra as records of what a job calls."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chorale.job.record import CallCount, CallKey
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign_file import RecordedJob
from chorale.tuner.files import job_traces
from chorale.tuner.files.job_traces import load_record
from tests.command import chorale

DATA = Path(__file__).parents[3] / "data" / "results"
CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}, "1": {"name": "1", "ranks": [0, 2]}}


def entry(name: str, size: list[int], **more: object) -> dict[str, object]:
    entry = {
        "profiling_name": name,
        "process_group": ("0", "default_pg"),
        "input_sizes": [size],
        "output_sizes": [size],
    }
    return entry | {"input_dtypes": ["BFloat16"], "is_p2p": False} | more


def written(path: Path, document: Mapping[str, Any], as_pickle: bool = False) -> Path:
    path.write_bytes(pickle.dumps(document) if as_pickle else json.dumps(document).encode())
    return path


@pytest.mark.parametrize("as_pickle", [False, True])
def test_a_flight_recorder(tmp_path, as_pickle):
    entries = [
        entry("nccl:all_reduce", [3, 4], duration_ms=2.0),
        entry("nccl:all_reduce", [3, 4], time_discovered_started_ns=10, time_discovered_completed_ns=1000010),
        entry("nccl:_all_gather_base", [5], output_sizes=[[20]], process_group=("1", "tp")),
        entry("nccl:all_reduce_barrier", [1]),
        entry("nccl:send 0->1", [7], is_p2p=True),
    ]
    record = load_record(written(tmp_path / "dump", {"pg_config": CONFIG, "entries": entries}, as_pickle))
    assert record.ranks == 4
    assert record.calls == {
        CallKey("allreduce", "bfloat16", None, None, 24): CallCount(2, pytest.approx(0.003)),
        CallKey("allgather", "bfloat16", (0, 2), None, 40): CallCount(1, 0.0),
    }
    sample = load_record(DATA / "flight-recorder.json")
    assert (sample.ranks, list(sample.calls)) == (2, [CallKey("alltoallv", "float32", None, None, 16)])


def attributes(**values: object) -> list[dict[str, object]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def test_a_host_trace_of_chakra(tmp_path):
    groups = json.dumps([{"pg_name": "0", "ranks": [0, 1, 2, 3], "group_size": 4}, {"pg_name": "1", "ranks": [1, 3]}])
    called = {"dtype": "Float", "in_msg_nelems": 100, "out_msg_nelems": 400, "pg_name": "0"}
    nodes = [
        {"name": "## process_group:init ##", "inputs": {"values": [groups]}, "attrs": []},
        {"name": "record_param_comms", "attrs": attributes(collective_name="_allgather_base", **called)},
        {"name": "record_param_comms", "attrs": attributes(collective_name="allreduce", **called | {"pg_name": "1"})},
        {"name": "record_param_comms", "attrs": attributes(collective_name="wait", **called)},
        {"name": "aten::mm", "attrs": []},
    ]
    record = load_record(written(tmp_path / "et.json", {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    assert set(record.calls) == {
        CallKey("allgather", "float32", None, None, 1600),
        CallKey("allreduce", "float32", (1, 3), None, 1600),
    }
    job = RecordedJob.of(record)
    assert (job.timed, job.covered) == (False, 0.5)


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def part(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def chakra_node(node_type: int, comm_type: int, size: int) -> bytes:
    named = {b"comm_type": (9, comm_type), b"comm_size": (13, size)}
    attributes = b"".join(part(10, part(1, name) + part(*value)) for name, value in named.items())
    return part(1, 300) + part(2, b"node") + part(3, node_type) + part(7, 1500) + attributes


def test_chakra_messages_are_read_and_endless_ones_refused(tmp_path, monkeypatch):
    messages = [part(1, b"0.0.4"), chakra_node(7, 0, 2**20), chakra_node(4, 0, 5), chakra_node(7, 7, 2**21)]
    content = b"".join(varint(len(message)) + message for message in messages)
    for rank in range(4):
        (tmp_path / f"job.{rank}.et").write_bytes(content)
    record = load_record(tmp_path / "job.0.et")
    assert (record.ranks, record.seconds) == (4, pytest.approx(0.003))
    assert {(key.collective, key.size_bytes) for key in record.calls} == {
        ("allreduce", 2**20),
        ("reduce_scatter", 2**21),
    }
    alone = tmp_path / "trace.et"
    alone.write_bytes(content)
    assert load_record(alone, 8).ranks == 8
    with pytest.raises(InvalidInput, match="the Chakra trace"):
        load_record(alone)
    alone.write_bytes(content[:-3])
    with pytest.raises(InvalidInput, match="ends within a mess"):
        load_record(alone, 8)
    monkeypatch.setattr(job_traces, "_MAX_MESSAGES", 8)
    (tmp_path / "trace.et").write_bytes(b"\0" * 9)
    with pytest.raises(InvalidInput, match="more than 8 messages"):
        load_record(tmp_path / "trace.et", 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a record or trace of a job"),
        (b"{", "Expecting property name"),
        (b'{"entries": [], "pg_config": {}}', "names no ranks"),
        (b'{"entries": [], "pg_config": {"0": {"ranks": [0, 1]}}}', "has no calls of collectives"),
        (pickle.dumps(Path("x")), "not a plain value"),
        (b'{"version": 1}', "no key "),
        # small traces with much inside
        (b"\x80\x02]r\xff\xff\xff\x7f.", "LONG_BINPUT 2147483647, is too large"),
        (b"\x80\x02(" + b"}" * 1001 + b"l.", "is too large"),
        (b"\x80\x04\x8f.", "EMPTY_SET"),
        (pickle.dumps({"entries": [entry("nccl:all_reduce", [1], input_sizes=[[1] * 50] * 50)]}, 2), "values"),
        (json.dumps({"entries": [], "pg_config": {"0": {"ranks": [10**15]}}}).encode(), "1048576 are allowed"),
        (json.dumps({"entries": [entry("nccl:all_reduce", [9] * 65)], "pg_config": CONFIG}).encode(), "65 axes"),
    ],
    ids=range(12),
)
def test_what_is_no_trace_or_holds_too_much_is_refused(tmp_path, content, message, monkeypatch):
    monkeypatch.setattr(job_traces, "MAX_JSON_VALUES", 1000)
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        load_record(tmp_path / "x")


def test_the_command_converts_a_trace(capsys, tmp_path):
    dump = written(tmp_path / "dump", {"pg_config": CONFIG, "entries": [entry("nccl:all_reduce", [1024])]})
    done = chorale(capsys, "record", dump, "-o", tmp_path / "job.json", "--json", code=0)
    assert done.document["calls"][0]["size_bytes"] == 2048
    assert "100% of the bytes" in done.stderr
    plan = chorale(capsys, "tune", "--from-record", dump, "--topology", "ring:4", "--dry-run", "--json", code=0)
    assert plan.document["campaigns"][0]["collective"] == "allreduce"
