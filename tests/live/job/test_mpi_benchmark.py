"""The benchmark of the preloaded library: an MPI program as it is, with MPI's own collectives and with a table's."""

import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.job.mpi.benchmark import main
from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.fabric.fabric import bring_up, take_down
from chorale.synth.topology.spec import parse_topology
from tests.live.job.mpi_jobs import write_table
from tests.live.job.torch.tables import program_for
from tests.live.support import LINK_MBPS, needs_mpi, require_fabrics

pytestmark = [needs_mpi, pytest.mark.timeout(400)]
NAME = f"mpi-benchmark-{os.getpid()}"
LOOPBACK = ("--where", "loopback", "--repeats", "2", "--json")


def cube_table(path: Path) -> Path:
    """Write a table for hypercube:3: few steps for small sizes, least load of links for others."""
    small = program_for("allreduce", spec="hypercube:3", method="recursive-doubling")
    large = program_for("allreduce", spec="hypercube:3", method="bfb")
    entries = (
        JobEntry("allreduce", ANY_DTYPE, None, None, 0, 16383, small.digest),
        JobEntry("allreduce", ANY_DTYPE, None, None, 16384, None, large.digest),
    )
    programs = {program.digest: program for program in (small, large)}
    path.write_bytes(table_bytes(Table({"spec": "hypercube:3"}, 8, entries, programs)))
    return path


def check_rows(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], sizes: Sequence[int], calls: int) -> None:
    assert main(arguments) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert [row["size_bytes"] for row in document["sizes"]] == list(sizes)
    for row in document["sizes"]:
        assert row["speedup"] == pytest.approx(row["mpi_us"] / row["chorale_us"])
    assert sum(program["calls"] for program in document["report"]["programs"]) == calls
    assert document["report"]["fallbacks"] == []


@pytest.mark.parametrize(
    "collective",
    [
        "allreduce",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("allgather", "reduce_scatter", "alltoall")),
    ],
)
def test_both_run_by_turns_and_are_right(collective: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", (collective,))
    arguments = (str(table), *LOOPBACK, "--sizes", "4KiB,4097", "--collective", collective)
    check_rows(capsys, arguments, (4096, 4112), calls=8)  # two sizes, two calls before two repeats


@pytest.mark.parametrize("collective", ["alltoall", "allgather", "reduce_scatter"])
def test_shards_of_different_sizes_have_times(
    collective: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = write_table(tmp_path / "table", (collective,))
    arguments = [str(table), *LOOPBACK[:-1], "--sizes", "4KiB", "--uneven", "--collective", collective]
    assert main(arguments) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "      4096 " in said
    assert ("4 exchanges of shard sizes, " in said) == (collective == "alltoall")


def test_a_table_that_serves_no_call_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", ("allreduce",), min_bytes=1 << 20)
    assert main((str(table), *LOOPBACK, "--sizes", "4KiB")) == 1
    assert "no program of the table ran" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.alone
def test_on_an_emulated_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    require_fabrics(NAME, "THE BENCHMARK OF THE PRELOADED LIBRARY")
    table = cube_table(tmp_path / "table")
    fabric = bring_up(parse_topology("hypercube:3"), Fraction(LINK_MBPS), NAME)
    try:
        arguments = (str(table), "--fabric", NAME, "--sizes", "4KiB:4MiB:x32", "--repeats", "2", "--json")
        check_rows(capsys, arguments, (4096, 131072, 4194304), calls=12)
    finally:
        take_down(fabric)
