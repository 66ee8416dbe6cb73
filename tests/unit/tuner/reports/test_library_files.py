"""Files by which libraries choose among their own algorithms, read back by the rules of those who read them."""

import pytest
from hypothesis import given, strategies as st

from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table
from chorale.job.table.verification import table_program
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.library_files import nccl_call_configs, nccl_table_csv


def own(baseline: str, first: int, last: int | None, collective: str = "allreduce", dtype: str = ANY_DTYPE) -> JobEntry:
    """Return an entry where the library was the best."""
    return JobEntry(collective, dtype, None, None, first, last, None, provenance={"baseline": baseline})


def table_of(*entries: JobEntry, ranks: int = 8) -> Table:
    """Return a table without programs."""
    return Table({"spec": "any"}, ranks, entries, {})


def ring_table(first: int = 1024, last: int | None = 2**20, runner: str | None = "nccl", protocol: str = "LL") -> Table:
    """Return the table of a ring of four with two channels, for one range of sizes, as `runner` measured it."""
    source = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "ring", Options(), 1)
    built = build(BuildRequest(source, LoweringOptions("msccl-xml", channels=2)))
    assert isinstance(built, BuildResult)
    parameters = {"method": "ring", "channels": 2, "instances": 1, "protocol": protocol}
    program = table_program(built.program_text.encode(), "msccl-xml", "ring", parameters)
    measured = None if runner is None else {"runner": runner, "sizes": []}
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, first, last, program.digest, measured)
    return Table({"spec": "ring:4"}, 4, (entry,), {program.digest: program})


def rccl_choice(text: str, collective: str, size_bytes: int, ranks: int) -> tuple[str, str, int] | None:
    """Return what RCCL's built-in tuner takes, by the rules of its src/plugin/tuner/csv_tuner.cc.

    Lines of 255 characters at most; those that begin with # or are empty are left out, and so are lines with fewer
    than 8 fields, an empty field, or names that are not known; sizes are unsigned and inclusive at both ends; -1 for
    nodes, ranks, operations and registration matches all; the first line that matches decides.
    """
    for line in text.splitlines():
        assert len(line) < 256
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        assert 8 <= len(fields) <= 12
        assert all(fields)
        assert fields[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert fields[3] in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert fields[4] in ("ll", "ll128", "simple")
        assert 0 <= int(fields[1]) <= int(fields[2]) < 2**64
        assert fields[6] == "-1"
        assert fields[8:] == ["-1", "-1"]
        if fields[0] == collective and int(fields[1]) <= size_bytes <= int(fields[2]) and int(fields[7]) in (-1, ranks):
            return fields[3], fields[4], int(fields[5])
    return None


@st.composite
def ranges(draw: st.DrawFn, names: tuple[str, ...]) -> list[tuple[int, int | None, str]]:
    """Ranges that do not overlap, with gaps, the last perhaps without an end."""
    bounds = sorted(draw(st.sets(st.integers(0, 2**40), min_size=2, max_size=8)))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    found: list[tuple[int, int | None, str]] = [(a, b - 1, draw(st.sampled_from(names))) for a, b in pairs]
    if draw(st.booleans()):
        found[-1] = (found[-1][0], None, found[-1][2])
    return found


def sizes_of(found: list[tuple[int, int | None, str]]) -> list[int]:
    edges = [edge for first, last, _ in found for edge in (first, first - 1, last or 2**41, (last or 2**41) + 1)]
    return [size for size in edges if size >= 0]


def wanted(found: list[tuple[int, int | None, str]], size: int) -> str | None:
    return next((name for first, last, name in found if first <= size and (last is None or size <= last)), None)


def table_for(found: list[tuple[int, int | None, str]], collective: str = "allreduce") -> Table:
    return table_of(*(own(f"library:{name}", first, last, collective) for first, last, name in found))


@given(ranges(("tree", "ring", "nvls")))
def test_rccl_and_nccl_choose_what_the_table_says(found):
    for own_channels in (0, -1):
        text = nccl_table_csv(table_for(found), own_channels=own_channels)
        for size in sizes_of(found):
            name = wanted(found, size)
            chosen = None if name is None else (name, "simple", own_channels)
            assert rccl_choice(text, "allreduce", size, 8) == chosen
            assert rccl_choice(text, "allreduce", size, 4) is None
            assert rccl_choice(text, "allgather", size, 8) is None


def test_rows_are_of_algorithms_that_nccl_has_for_the_collective():
    entries = [
        own(f"library:nccl:{name}", 1024 * at, 1024 * at + 1023, collective)
        for collective in ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
        for at, name in enumerate(("ring", "tree", "double-binary-tree", "nvls", "pat"))
    ]
    rows = [line.split(",") for line in nccl_table_csv(table_of(*entries)).splitlines()[1:]]
    assert {(row[0], row[3]) for row in rows} == {
        *(("allreduce", name) for name in ("ring", "tree", "nvls")),
        *((collective, name) for collective in ("allgather", "reducescatter") for name in ("ring", "nvls", "pat")),
        *(("broadcast", "ring"), ("reduce", "ring")),
    }


def test_channels_and_protocol_are_nccls_where_it_did_not_measure():
    """A program of a method that the library has counts as its algorithm."""
    assert rccl_choice(nccl_table_csv(ring_table()), "allreduce", 2048, 4) == ("ring", "ll", 2)
    measured = nccl_call_configs(ring_table(protocol="Simple"))
    assert measured[0]["config"] == {"algSelection": "RING_SIMPLE", "maxCTAs": 2}
    for runner in (None, "simulated", "msccl"):
        table = ring_table(runner=runner, protocol="Simple")
        for own_channels in (0, -1):
            text = nccl_table_csv(table, own_channels=own_channels)
            assert rccl_choice(text, "allreduce", 2048, 4) == ("ring", "simple", own_channels)
        assert [each["config"] for each in nccl_call_configs(table)] == [{"algSelection": "RING"}]
        assert nccl_call_configs(ring_table(runner=runner))[0]["config"] == {"algSelection": "RING_LL+^RING_LL128"}


def test_types_must_be_chosen_between_and_something_must_be_said():
    two = table_of(own("library:ring", 0, 9, dtype="float32"), own("library:tree", 0, 9, dtype="float64"))
    with pytest.raises(InvalidInput, match="--dtype"):
        nccl_table_csv(two)
    assert rccl_choice(nccl_table_csv(two, "float64"), "allreduce", 3, 8) == ("tree", "simple", 0)
    for table in (table_of(own("bfb", 0, 9)), table_of(own("library:nonsense", 0, 9)), table_of()):
        with pytest.raises(CheckFailed, match="no entry"):
            nccl_table_csv(table)
