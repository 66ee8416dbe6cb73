"""Read collective results from the output of nccl-tests, rccl-tests, OSU and Intel benchmarks, and `chorale run`.

Formats are recognized by content, not by file name. Sizes are converted to sizes of the whole vector.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chorale.runners.msccl.results import TableCell, parse_output
from chorale.synth.collective import STANDARD
from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.labels import labelled_parts, plain_text

_WAY_OUT = (
    "give the output of nccl-tests or rccl-tests (as text or with -J or -Z), of an OSU or Intel MPI collective "
    "benchmark, or of `chorale run --json`"
)
_TEST = re.compile(r"\b(\w+)_perf\b")
_SECTION = re.compile(r"^# Collective test starting: .*$|^.*\b\w+_perf(?:_mpi)?\b.*$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^\s*\|(?:[^|\n]*\|){5,}[ \t]*$", re.MULTILINE)
"""Row of a Markdown table with copied results."""
_COMMA_ROW = re.compile(
    r"^[ \t]*\d+(?:[ \t]+[\w+-]+)*?[ \t]+\d+,\d+(?:[ \t]+[\w.,+/-]+)*[ \t]*$|^[^;\n]*(?:;[^;\n]*){4,}$", re.MULTILINE
)
"""Row of a table whose numbers have decimal commas."""
_ANCHOR = re.compile(r"#\s+size\s+count|# nThread|# OSU \S|# Size\s|# Benchmarking \S|#bytes #repetitions")
_JSON = re.compile(r"^\s*(?:\{\s*(?:\"|$)|\[\s*(?:\{|$))", re.MULTILINE)
_CSV = re.compile(
    r"^(?=.*size)(?=.*time)(\"?[A-Za-z_#][\w ]*\"?)[,;\t](?:[^,;\t\n]*[,;\t]){4,}.*$", re.MULTILINE | re.IGNORECASE
)
"""Header line of CSV results. Output of a launcher may come before this line."""
_MPI_TEST = re.compile(
    r"^[ \t]*# (?:OSU (?P<kind>\S+?) (?P<test>.*?) Latency Test v\S+|Benchmarking (?P<imb>\S+))", re.MULTILINE
)
_TIMES = ("avg latency(us)", "pure comm.(us)", "latency(us)", "t_pure[usec]", "t_max[usec]")
_PROCESSES = re.compile(r"^[ \t]*# #processes = (\d+)", re.MULTILINE)
_PER_RANK = ("allgather", "alltoall")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A time measured with vectors of `size_bytes`. `wrong` is the number of wrong elements, None if not checked."""

    size_bytes: int
    time_us: float
    in_place: bool
    wrong: int | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """The results for one collective and number of ranks in a file. A field is None if the file does not state it.

    tool:       nccl-tests, rccl-tests, OSU, IMB (Intel MPI Benchmarks) or chorale
    collective: Chorale's name for the collective
    library, version: the measured library, such as NCCL 2.30.7
    device:     kind of GPU or, for `chorale run`, the runner
    link_mbps:  rate of emulated links
    bus_ratio:  busbw / algbw, which gives the number of ranks even if the file lists fewer devices
    per_rank:   whether sizes are those of one rank's shard, as in OSU and IMB, instead of the whole vector
    """

    tool: str
    collective: str | None
    rows: tuple[ResultRow, ...]
    ranks: int | None = None
    library: str | None = None
    version: str | None = None
    device: str | None = None
    link_mbps: float | None = None
    per_rank: bool = False
    bus_ratio: float | None = None

    def of_ranks(self, ranks: int) -> Results:
        """Return the results with sizes of the whole vector; sizes of one rank's shard are multiplied by `ranks`."""
        if not self.per_rank:
            return self
        rows = tuple(replace(row, size_bytes=row.size_bytes * ranks) for row in self.rows)
        return replace(self, rows=rows, per_rank=False)


def parse_results(content: bytes | str, name: str) -> list[Results]:
    """Return the results in `content`, one for each collective and number of ranks, in order of appearance.

    name: file name, from which the collective is taken if the content does not have it

    Raises InvalidInput if there are no results.
    """
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    text = _TABLE_ROW.sub(lambda row: row[0].replace("|", " "), plain_text(text.lstrip("\ufeff")))
    text = _COMMA_ROW.sub(lambda row: row[0].replace(",", "."), text)
    found = _joined(results for part in labelled_parts(text, _ANCHOR) for results in _parsed(part, name))
    if not found:
        raise InvalidInput("{} contains no collective timings", name, _WAY_OUT)
    return found


def _parsed(text: str, name: str) -> list[Results]:
    if (document := _JSON.search(text)) is not None:
        return _from_json(text[document.start() :], name)
    if (header := _CSV.search(text)) is not None:
        rows, comma = io.StringIO(text[header.start() :], newline=""), header[0][len(header[1])]
        try:
            return _from_rows(csv.DictReader(rows, delimiter=comma), name)
        except csv.Error as error:
            raise InvalidInput("the results are not CSV: {}", f"{name}: {error}", _WAY_OUT) from None
    return _from_mpi(text) or _from_tables(text, name)


def collective_named(text: str) -> str | None:
    """Return the collective whose name is in `text`, in any spelling: all_reduce_perf, AllReduce, osu_allreduce."""
    plain = re.sub(r"[^a-z]", "", text.lower())
    names = {one.value: one.value.replace("_", "") for one in STANDARD}
    found = [value for value, spelled in names.items() if spelled in plain]
    if not found and "bcast" in plain:
        return "broadcast"
    return max(found, key=lambda value: len(names[value]), default=None)


def _from_tables(text: str, name: str) -> list[Results]:
    """Return the tables of nccl-tests and rccl-tests, one for each collective and number of ranks."""
    begun, parts = 0, []
    ends = [match.end() for match in re.finditer(r"# Avg bus bandwidth[^\n]*\n", text)]
    starts = [match.start() for match in re.finditer(r"# nThread ", text)]
    for start in starts[1:]:  # output of the launcher belongs to the run that follows
        cut = max((end for end in ends if end <= start), default=start)
        if cut > begun:
            parts.append(text[begun:cut])
            begun = cut
    return _joined(results for part in (*parts, text[begun:]) for results in _of_run(part, name))


def _of_run(text: str, name: str) -> list[Results]:
    """Return the tables in the output of one run, which may have started several tests."""
    output = parse_output(text if text.endswith("\n") else f"{text}\n")
    amd = re.search(r"rccl|AMD Instinct|Radeon", text)
    common = Results(
        "rccl-tests" if amd else "nccl-tests", None, (), output.ranks or None, "RCCL" if amd else "NCCL",
        _version(output.version), output.device,
    )  # fmt: skip
    found: list[Results] = []
    for heading, part in _sections(text):
        rows = parse_output(part if part.endswith("\n") else f"{part}\n").rows
        both = [(row.size_bytes, (row.out_of_place, row.in_place)) for row in rows]
        cells = [(size_bytes, cell, bool(place)) for size_bytes, pair in both for place, cell in enumerate(pair)]
        ratio = _bus_ratio(cells)
        collective = collective_named(heading) or collective_named(name)
        if collective is None and rows and not heading:  # sendrecv_perf is not a collective
            collective = _by_operation(rows[-1].redop, rows[-1].root, ratio)
        found.append(replace(common, collective=collective, rows=tuple(_measured(cells)), bus_ratio=ratio))
    return _joined(found)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Split `text` at the lines that name a test; yield each test's name and text.

    Text before the first such line belongs to no test and gets the name "", unless this line reports the end of a test:
    then the text belongs to that test.
    """
    starts = [match for match in _SECTION.finditer(text) if _TEST.search(match[0])]
    if not starts:
        yield "", text
        return
    ended = _TEST.search(starts[0][0]) if " concluded: " in starts[0][0] else None
    yield ended[1] if ended else "", text[: starts[0].start()]
    for index, match in enumerate(starts):
        test = _TEST.search(match[0])
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        yield test[1] if test else match[0], text[match.start() : end]


def _joined(found: Iterable[Results]) -> list[Results]:
    joined: dict[tuple[str | None, int | None, bool], Results] = {}
    for each in found:
        if each.rows:
            key = each.collective, each.ranks, each.per_rank
            before = joined.get(key)
            joined[key] = each if before is None else replace(before, rows=before.rows + each.rows)
    return list(joined.values())


def _by_operation(redop: str, root: float | None, bus_ratio: float | None) -> str | None:
    """Identify the collective by its operation, root and busbw / algbw. Return None if several are possible."""
    reduces = redop not in ("none", "")
    if root is not None and root >= 0:
        return "reduce" if reduces else "broadcast"
    if not reduces or bus_ratio is None:
        return None
    return "allreduce" if bus_ratio > 1 else "reduce_scatter"


def _bus_ratio(cells: Iterable[tuple[int, TableCell, bool]]) -> float | None:
    """Return busbw / algbw of the fastest row, which has the most digits, or None if no algbw reaches 1 GB/s."""
    bandwidths = [cell.bandwidths for _, cell, _ in cells if cell.bandwidths is not None]
    algbw, busbw = max(bandwidths, default=(0.0, 0.0))
    return busbw / algbw if algbw >= 1 and math.isfinite(busbw) else None


def _measured(cells: Iterable[tuple[int, TableCell, bool]]) -> Iterator[ResultRow]:
    for size_bytes, cell, in_place in cells:
        if cell.time_us is not None and cell.time_us > 0 and math.isfinite(cell.time_us) and size_bytes > 0:
            algbw = (cell.bandwidths or (0.0, 0.0))[0]
            is_ms = 0.5 < algbw * cell.time_us * 1e6 / size_bytes < 2  # the first nccl-tests print ms
            yield ResultRow(size_bytes, cell.time_us * (1000 if is_ms else 1), in_place, cell.wrong)


def _version(text: str | None) -> str | None:
    """Format a version code with dots: 23007 becomes 2.30.7. Codes up to version 2.8 are shorter: 2708 is 2.7.8."""
    if text is None or not text.isdigit():
        return None if text is None else text.partition("+")[0]
    code = int(text)
    major, minor, patch = (code // 10000, code // 100 % 100, code % 100) if code >= 10000 else (
        code // 1000, code // 100 % 10, code % 100)  # fmt: skip
    return f"{major}.{minor}.{patch}"


def _from_mpi(text: str) -> list[Results]:
    """Return the collective tables of OSU and the Intel MPI Benchmarks, one for each number of ranks.

    For allgather and all-to-all, all of these benchmarks report the size of one rank's shard, not of the whole vector.
    Intel's benchmarks also do so for reduce-scatter with equal blocks.
    """
    found, starts = [], list(_MPI_TEST.finditer(text))
    for index, match in enumerate(starts):
        section = text[match.start() : starts[index + 1].start() if index + 1 < len(starts) else len(text)]
        test = match["test"] or match["imb"]
        collective = collective_named(test)
        column, rows = 1, []
        for line in section.split("\n"):
            if line.lstrip().startswith(("# Size", "#bytes")):
                words = re.split(r"\s{2,}|\s(?=#|t_)", line.lstrip("# ").strip().lower())
                column = next((words.index(name) for name in _TIMES if name in words), 1)
            words = line.split()
            if words and words[0].isdigit() and len(words) > column and _number(words[column]) is not None:
                rows.append(ResultRow(int(words[0]), float(words[column]), in_place=False))
        if collective is not None:
            library = next((name for name in ("NCCL", "RCCL") if name in (match["kind"] or "").upper()), "MPI")
            ranks = _PROCESSES.search(section)
            kept = tuple(row for row in rows if row.size_bytes > 0 and row.time_us > 0)
            tool, per_rank = "OSU" if match["kind"] else "IMB", collective in _PER_RANK or test.endswith("_block")
            count = None if ranks is None else int(ranks[1])
            found.append(Results(tool, collective, kept, count, library, per_rank=per_rank))
    return _joined(found)


def _number(text: object) -> float | None:
    try:
        number = float(str(text))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _from_json(text: str, name: str) -> list[Results]:
    """Return the results in the consecutive JSON documents with which `text` begins. Text after them is ignored."""
    require_small_json(text, name)
    decoder, place, documents = json.JSONDecoder(), 0, list[Any]()
    while (begin := re.compile(r"\s*(?=[{\[])").match(text, place)) is not None:
        try:
            document, place = decoder.raw_decode(text, begin.end())
        except (ValueError, RecursionError) as error:
            if documents and text[begin.end()] == "[":  # a log marker such as [done]
                break
            raise InvalidInput("not valid JSON: {}", f"{name}: {error}", _WAY_OUT) from None
        documents += document if isinstance(document, list) else [document]
    documents = [document for document in documents if isinstance(document, dict)]
    runs = [document for document in documents if isinstance(document.get("results"), list)]
    found = _from_rows((document for document in documents if document not in runs), name)
    for run in runs:
        rows = [row for row in run["results"] if isinstance(row, dict)]
        found += _from_run(run, rows, name) if "runner" in run else _from_nccl_json(run, rows, name)
    return found


def _from_run(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], name: str) -> list[Results]:
    environment = document.get("environment")
    facts: Mapping[str, Any] = environment if isinstance(environment, dict) else {}
    measured = [(_number(row.get("size_bytes")), _number(row.get("time_us_median")), row) for row in rows]
    kept = tuple(
        ResultRow(
            int(size), time_us, in_place=True, wrong=None if row.get("correct") is None else int(not row["correct"])
        )
        for size, time_us, row in measured
        if size and time_us and size > 0 and time_us > 0
    )
    named = collective_named(str(document.get("collective") or name))
    return [Results("chorale", named, kept, device=str(document["runner"]), link_mbps=_number(facts.get("link_mbps")))]


def _from_nccl_json(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], name: str) -> list[Results]:
    """Return the results that nccl-tests wrote with -J."""
    arguments = document.get("args")
    command = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    devices = document.get("devices")
    devices = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    ranks = {int(each["rank"]) for each in devices if _number(each.get("rank")) is not None}
    device = next((str(each[key]) for each in devices for key in ("device_name", "device_info") if key in each), None)
    cells = []
    for row in rows:
        for key, in_place in (("out_of_place", False), ("in_place", True)):
            part = row.get(key)
            if isinstance(part, dict) and _number(part.get("time")) is not None:
                wrong = _number(part.get("nwrong"))
                both = _number(part.get("alg_bw")) or 0.0, _number(part.get("bus_bw")) or 0.0
                cell = TableCell(float(part["time"]), None if wrong is None else int(wrong), both)
                cells.append((int(_number(row.get("size")) or 0), cell, in_place))
    last, ratio, version = rows[-1] if rows else {}, _bus_ratio(cells), document.get("nccl_version")
    collective = collective_named(command) or collective_named(name)
    collective = collective or _by_operation(str(last.get("redop", "none")), _number(last.get("root")), ratio)
    count, version = 1 + max(ranks) if len(ranks) > 1 else None, _version(None if version is None else str(version))
    return [Results("nccl-tests", collective, tuple(_measured(cells)), count, "NCCL", version, device, bus_ratio=ratio)]


def _from_rows(rows: Iterable[Mapping[str, Any]], name: str) -> list[Results]:
    """Return the results that rccl-tests wrote with -Z csv or -Z json: one row for each size and placement."""
    found = []
    for row in rows:
        plain = {str(key).strip().lower().lstrip("#"): value for key, value in row.items() if key is not None}
        size, time_us = _number(plain.get("size")), _number(plain.get("time"))
        if size is None or time_us is None or size <= 0 or time_us <= 0:
            continue
        wrong, ranks = _number(plain.get("wrong")), _number(plain.get("ranks", plain.get("gpus")))
        in_place = str(plain.get("inplace", "0")).lower() in ("1", "true")
        measured = ResultRow(int(size), time_us, in_place, None if wrong is None else int(wrong))
        collective = collective_named(str(plain.get("name", plain.get("collective", "")))) or collective_named(name)
        found.append(Results("rccl-tests", collective, (measured,), None if ranks is None else int(ranks), "RCCL"))
    return _joined(found)
