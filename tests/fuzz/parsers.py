"""Every parser of files, with samples of what it reads and the damage that suits them."""

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq

from chorale.job.record import CallCount, CallKey, Record, parse_record, record_bytes
from chorale.job.table.layout import table_bytes
from chorale.job.table.verification import checked_table
from chorale.runners.msccl.results import parse_output
from chorale.runners.recorded.table import read_runs
from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.schedule.codec import METADATA_KEY, from_json_text, from_parquet, stated_id, to_json_text, to_parquet
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import read_unchecked
from chorale.synth.topology.formats.files import from_bytes, machine_of
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.formats.nccl_dump import read_graphs
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.config.campaign_file import parse_campaign
from chorale.tuner.costs.pricing import parse_profile
from chorale.tuner.files.result_files import parse_results
from chorale.tuner.trials.journal import Launch, journal_line, parse_lines
from chorale.tuner.trials.records import Candidate
from tests.campaigns import complete
from tests.dumps import nvswitch_machine, pairs_machine, xgmi_machine
from tests.fuzz.mutations import (
    Mutation,
    damage_bytes,
    damage_json,
    damage_lines,
    damage_tags,
    damage_words,
    damaged_value,
)
from tests.unit.job.table.test_layout import ring_table

ROOT = Path(__file__).parents[2]
DIALECTS = ("msccl-executor-xml", "msccl-xml", "oneccl-xml", "mscclpp-json")


@dataclass(frozen=True, slots=True)
class Parser:
    """`samples` gives inputs that `parse` takes; each case damages one of them in a way that `mutations` has."""

    samples: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes], object]
    mutations: tuple[Mutation, ...]


@cache
def schedules() -> tuple[tuple[AnySchedule, bytes], ...]:
    """Small schedules of different forms, and their Parquet files."""
    requests = [
        ScheduleRequest(parse_topology(spec), parse_collective(collective), method)
        for method, spec, collective in (
            ("bfb", "ring:4", "allgather"),
            ("ring", "ring:3", "allreduce"),
            ("forest", "switch:3,1", "allgather"),
        )
    ]
    schedules = [verified_schedule(request).schedule for request in requests]
    return tuple((schedule, to_parquet(schedule)) for schedule in schedules)


def damage_parquet(content: bytes, draw: random.Random) -> bytes:
    """Damage the metadata or the columns of a Parquet file, and write a whole file again."""
    table = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
    document = json.loads(table.schema.metadata[METADATA_KEY])
    kind = draw.randrange(4)
    if kind <= 1:
        text = json.dumps(damaged_value(document, draw)).encode(errors="surrogatepass")
        table = table.replace_schema_metadata({METADATA_KEY: draw.choice((text, text, damage_bytes(text, draw)))})
    elif kind == 2:
        at = draw.randrange(table.num_columns)
        values = draw.choice(([-1], [2**31], [None], ["x"], [0.5], [0]))
        column = pa.array((values * table.num_rows)[: table.num_rows])
        table = table.set_column(at, table.column_names[at], column)
    else:
        table = table.slice(0, draw.randrange(table.num_rows + 1))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def damage_table(content: bytes, draw: random.Random) -> bytes:
    """Damage the header or the index of a tuning table, and put in the lengths and the checksum of the result."""
    first, second, rest = content.split(b"\n", 2)
    header_bytes, index_bytes = map(int, second.split()[:2])
    header, index = rest[:header_bytes], rest[header_bytes : header_bytes + index_bytes]
    blobs = rest[header_bytes + index_bytes :]
    if draw.random() < 0.7:
        header = damage_json(header, draw) + b"\n"
    else:
        index = draw.choice((damage_words, damage_lines))(index, draw)
    parts = header, index, blobs
    lengths = " ".join(str(len(part)) for part in parts)
    checksum = hashlib.sha256(b"".join(parts)).hexdigest()
    return b"\n".join((first, f"{lengths} {checksum}".encode(), b"".join(parts)))


def _parquet(content: bytes) -> object:
    schedule = from_parquet(content, parse_topology)
    return verify(schedule), stated_id(content)


def _graphml() -> list[bytes]:
    graph = nx.DiGraph()
    for node in range(4):
        graph.add_edge(node, (node + 1) % 4, bandwidth=1.5)
    return ["\n".join(nx.generate_graphml(graph)).encode()]


def _journals() -> list[bytes]:
    launch = Launch("launch", 1, {"topology": "x"}, {"name": "small"}, 1e9)
    records = [complete(Candidate("bfb", channels=number), number=number) for number in (1, 2, 3)]
    lines = map(journal_line, [launch, *records])
    return [b"".join(line + b"\n" for line in lines)]


def _records() -> list[bytes]:
    calls = {CallKey("allreduce", "float32", None, None, 4096 << n): CallCount(n + 1, 0.5) for n in range(4)}
    return [record_bytes(Record(4, {**calls, CallKey("broadcast", "int8", (0, 2), 1, 7): CallCount(1, 0.0)}))]


def _csv() -> list[bytes]:
    content = resources.files("chorale.runners.recorded").joinpath("mi250-runs.csv.gz").read_bytes()
    return [b"\n".join(gzip.decompress(content).split(b"\n")[:12])]


def _files(folder: str, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / folder).glob(pattern))]


JSON = (damage_json, damage_json, damage_bytes)
TAGS = (damage_tags, damage_words, damage_bytes)
LINES = (damage_lines, damage_words, damage_bytes)
TOOLS = "tests/data/fabric_tools"


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


PARSERS: dict[str, Parser] = {
    "topology-json": Parser(
        lambda: [json.dumps(to_json(parse_topology(spec))).encode() for spec in ("ring:4", "switch:4,1", "mesh:2x2")],
        lambda data: from_bytes(data, "file:x.json"),
        JSON,
    ),
    "topology-graphml": Parser(_graphml, lambda data: from_bytes(data, "file:x.graphml"), TAGS),
    "topology-dump": Parser(
        lambda: [nvswitch_machine(), pairs_machine(), xgmi_machine()], lambda data: from_bytes(data, "file:x.xml"), TAGS
    ),
    "schedule-parquet": Parser(
        lambda: [file for _, file in schedules()], _parquet, (damage_parquet, damage_parquet, damage_bytes)
    ),
    "schedule-json": Parser(
        lambda: [to_json_text(schedule).encode() for schedule, _ in schedules()],
        lambda data: verify(from_json_text(data, parse_topology)),
        (*JSON, damage_words),
    ),
    **{
        f"program-{dialect}": Parser(
            lambda dialect=dialect: _files("tests/golden", f"{dialect}-*.*"),
            lambda data: check_program(read_unchecked(data).program),
            (damage_json, damage_words, damage_bytes) if dialect.endswith("json") else (damage_tags, *TAGS),
        )
        for dialect in DIALECTS
    },
    "campaign-yaml": Parser(lambda: _files("examples", "*.yaml"), lambda data: parse_campaign(_text(data)), LINES),
    "tuning-table": Parser(
        lambda: [table_bytes(ring_table())], checked_table, (damage_table, damage_table, damage_table, damage_bytes)
    ),
    "training-profile": Parser(
        lambda: _files("tuner/costs/profiles", "*.json"), lambda data: parse_profile(data, "x.json"), JSON
    ),
    "journal": Parser(_journals, lambda data: parse_lines(data.split(b"\n")[:-1]), LINES),
    "record": Parser(_records, parse_record, JSON),
    "runs-csv": Parser(_csv, lambda data: read_runs(_text(data)), LINES),
    "topology-text": Parser(
        lambda: _files(TOOLS, "*.txt"),
        lambda data: machine_of(data, "file:x.txt", "MI300X" if b"ROCm" in data else "H100"),
        LINES,
    ),
    "topology-infiniband": Parser(
        lambda: _files(TOOLS, "ibnetdiscover*"), lambda data: from_bytes(data, "file:x.txt"), LINES
    ),
    "nccl-graph": Parser(lambda: _files(TOOLS, "nccl-graph.xml"), read_graphs, TAGS),
    "results": Parser(
        lambda: [one for kind in ("csv", "json", "log") for one in _files("tests/data/results", f"*reduce*.{kind}")],
        lambda data: parse_results(data, "all_reduce"),
        (damage_json, *LINES),
    ),
    "launch-log": Parser(
        lambda: _files("tests/data/rccl-tests", "*.txt"), lambda data: parse_output(_text(data)), LINES
    ),
}


def case(name: str, seed: int, number: int) -> bytes:
    """Return the input `number` of a parser: the same for the same seed."""
    draw = random.Random(f"{seed}:{name}:{number}")
    parser = PARSERS[name]
    sample = draw.choice(_samples(name))
    return draw.choice(parser.mutations)(sample, draw)


@cache
def _samples(name: str) -> tuple[bytes, ...]:
    return tuple(PARSERS[name].samples())
