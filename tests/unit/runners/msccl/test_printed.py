"""The tables of test programs: real output, every generation, and everything that happens to output on its way."""

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.runners.msccl.results import TableCell, parse_output, parse_row
from chorale.runners.recorded.table import RecordedConfiguration, mi250_table
from tests.properties import random_cases

DATA = Path(__file__).parents[3] / "data" / "rccl-tests"
REAL = sorted(DATA.glob("*.txt"))


def _configurations(path: Path) -> dict[bool, RecordedConfiguration]:
    """Return the recorded configurations, by placement, whose times a log printed."""
    table = mi250_table()
    collective = "allgather" if "allgather" in path.name else "allreduce"
    if path.name.startswith("rccl"):
        return {one.in_place: one for one in table.libraries("mi250_8+8", collective)}
    schedule, _, buffer = path.stem.partition("-buff")
    made = table.configurations("mi250_8+8", collective)
    return {one.in_place: one for one in made if (one.origin.schedule, one.buffer_bytes) == (schedule, int(buffer))}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_output_holds_what_was_recorded_from_it(path: Path) -> None:
    printed = parse_output(path.read_text())
    assert (printed.ranks, printed.device, printed.version) == (16, "AMD Instinct MI250X/MI250", "2.18.3+hip6.0")
    recorded = _configurations(path)
    assert [row.size_bytes for row in printed.rows] == list(mi250_table().sizes_bytes(recorded[True]))
    for row in printed.rows:
        for in_place, cell in ((False, row.out_of_place), (True, row.in_place)):
            assert cell.wrong == 0
            assert cell.time_us == pytest.approx(mi250_table().times_s(recorded[in_place], row.size_bytes)[0] * 1e6)


LOG_LINES = st.sampled_from(
    [
        "gpu07:4711:4790 [3] NCCL INFO Channel 00/1 : 3[3] -> 4[4] via P2P/IPC\n",
        "gpu-07.cluster:1:2 [0] NCCL INFO MSCCL: typeMask 3 fnIndex 12 Setup Kernel finished\n",
        "gpu07:4711:4790 [3] graph/xml.cc:141 NCCL WARN XML Parse : expected >, got '?'\n",
        "[2025-10-03 11:22:33] gpu07:4711:4790 [3] graph/topo.cc:776 NCCL WARN MSCCL: wrong number of GPUs\n",
        "gpu07:4711:4711 NCCL INFO Bootstrap : Using eth0:192.168.0.7<0>\n",
    ]
)


@random_cases(200)
@given(st.sampled_from(REAL), st.lists(st.tuples(st.floats(0, 1), LOG_LINES), max_size=8))
def test_log_lines_of_other_processes_may_cut_in_anywhere(path: Path, cuts: list[tuple[float, str]]) -> None:
    text = path.read_text()
    torn = text
    # A line that ends a row must not begin with the letter, digit or dot that a name could begin with.
    places = {round(place * len(text)): line for place, line in cuts}
    for place in sorted(places, reverse=True):
        if not re.search(r"[A-Za-z.-]$", torn[:place]):
            torn = torn[:place] + places[place] + torn[place:]
    before, after = parse_output(text), parse_output(torn)
    assert (after.rows, after.ranks) == (before.rows, before.ranks)


@random_cases(200)
@given(st.sampled_from(REAL), st.floats(0, 1))
def test_output_that_breaks_off_has_only_rows_that_were_printed_to_their_end(path: Path, part: float) -> None:
    text = path.read_text()
    cut = text[: round(part * len(text))]
    printed = parse_output(cut)
    assert printed.rows == parse_output(text).rows[: len(printed.rows)]
    assert len(printed.rows) >= cut.count("float") - 1


@given(st.text(max_size=400))
def test_any_text_is_read_without_an_error_and_nothing_is_read_into_it(text: str) -> None:
    printed = parse_output(text)
    assert len(printed.rows) <= len(text.splitlines())


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout> ", "[prterun-gpu07-4711@1,0]<stdout>: ", "0: "])
def test_prefixes_of_launchers_and_tagged_lines_of_other_ranks_are_taken_away(prefix: str) -> None:
    lines = REAL[0].read_text().splitlines(keepends=True)
    assert parse_output("".join(prefix + line for line in lines)) == parse_output("".join(lines))
    mixed = "".join(f"[1,0]<stdout>:{line}[1,3]<stderr>:Warning: no permission to lock 64 kB\n" for line in lines)
    assert parse_output(mixed).rows == parse_output("".join(lines)).rows


def test_a_row_may_come_in_pieces_and_a_version_may_be_a_number() -> None:
    assert parse_output("# nccl-tests version 2.19.6 nccl-headers=22304 nccl-library=22304\n").version == "22304"
    text = "# head\n    1024    256     float     sum      -1\nother words\n    11.5    0.09    0.17      0    12.5"
    text += "\n    0.08    0.15      0\n"
    (row,) = parse_output(text).rows
    assert (row.size_bytes, row.out_of_place, row.in_place) == (1024, TableCell(11.5, 0), TableCell(12.5, 0))


CLASSIC = (
    "  4194304       1048576     float     sum      -1    161.9   25.91   48.58      0    118.4   35.42   66.42      0"
)
NEW = "31457280  491520     float    none      -1   688.00   45.72   42.87       0   460.10   68.37   64.10  1.3e+06"
WIDE = "134217728  33554432     float     sum      -1   176.33  761.18    0.00       0     0.10   1e+06    0.00       0"
DATED = CLASSIC + "  2025-10-03 11:22:33"
ITERATED = (
    "     1048576        262144  bfloat16     sum      -1  "
    + "  98.41 10.66 19.98 0 90.1 99.2 98.0 0.5"
    + "  61.2 17.1 32.0 2 1 2 3 4"
)
UNCHECKED = (
    "  1048576        262144     float     sum      -1    98.41   10.66   19.98    N/A    61.27   17.11   32.09    N/A"
)
OLD = "  33554432       8388608   float     sum   1464.2   22.92   45.65  0e+00   1458.1   23.01   45.84  3e-07"
STARRED = "  33554432       8388608   float     sum   1464.2   22.92   45.65  0e+00   1458.1   23.01   45.84  3e-01*"


@pytest.mark.parametrize(
    ("line", "out_of_place", "in_place"),
    [
        (CLASSIC, TableCell(161.9, 0), TableCell(118.4, 0)),
        (NEW, TableCell(688.0, 0), TableCell(460.1, 1_300_000)),
        (WIDE, TableCell(176.33, 0), TableCell(0.1, 0)),
        (DATED, TableCell(161.9, 0), TableCell(118.4, 0)),
        (ITERATED, TableCell(98.41, 0), TableCell(61.2, 2)),
        (UNCHECKED, TableCell(98.41, None), TableCell(61.27, None)),
        (OLD, TableCell(1464.2, 0), TableCell(1458.1, None)),
        (STARRED, TableCell(1464.2, 0), TableCell(1458.1, 1)),
    ],
)
def test_rows_of_every_generation(line: str, out_of_place: TableCell, in_place: TableCell) -> None:
    row = parse_row(line)
    assert row is not None
    assert (row.out_of_place, row.in_place) == (out_of_place, in_place)
    assert row.root == (None if line in (OLD, STARRED) else -1)


@pytest.mark.parametrize(
    "line",
    ["", "#" + CLASSIC, CLASSIC.replace("float", "FLOAT"), CLASSIC + " 7", "1 2 3 4 5 6 7 8 9 10 11 12 13"]
    + [CLASSIC.replace("161.9", wrong) for wrong in ("fast", "161..9", ".")],
)
def test_other_lines_are_no_rows(line: str) -> None:
    assert parse_row(line) is None
