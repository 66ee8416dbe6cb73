"""The table of the demo says a program where it beats the job's library, and its figures say what was measured."""

from pathlib import Path

import pytest

from chorale.experiments.demos.job import Measured, Training, build_programs, make_table, part, size_rows, step_picture
from chorale.job.table.model import Fallback, GroupEntries
from chorale.synth.topology.spec import parse_topology

RING = parse_topology("ring:4")
MEASURED = Measured(
    "allgather",
    {
        "bfb": {1024: 100.0, 65536: 400.0},
        "library:local:gloo": {1024: 101.0, 65536: 900.0},
        "library:mpi:bruck": {1024: 50.0, 65536: 500.0},
    },
)


def test_the_table_has_programs_where_they_are_clearly_faster_than_the_library_of_the_job() -> None:
    built = build_programs(RING, "allgather")[:1]
    assert built[0].name == "bfb"
    entries = GroupEntries.of(make_table(RING, [(MEASURED, built)]), range(4))
    assert entries.find("allgather", None, "float32", 1024) is Fallback.LIBRARY
    assert entries.find("allgather", None, "float32", 8192) is Fallback.LIBRARY
    for size in (8193, 65536, 2**30):
        assert getattr(entries.find("allgather", None, "int8", size), "program", None) == built[0].entry.digest


def figures() -> dict[str, object]:
    times = [{"collective": "allgather", "size_bytes": 65536, "seconds": {"gloo": [3e-3], "chorale": [1e-3]}}]
    (row,) = size_rows(times, {"allgather": MEASURED}, 4)
    trainings = {
        "gloo": Training("gloo", [9.0, 2.0, 2.0], [[1.0], [2.0]]),
        "chorale": Training("chorale", [9.0, 1.0, 1.0], [[1.0], [2.5]], {"fallbacks": [], "programs": []}),
    }
    return part(trainings, [row])


def test_the_figures_are_those_measured() -> None:
    document = figures()
    (row,) = document["sizes"]  # type: ignore[misc]
    assert (row["gloo_us"], row["library_us"], row["chorale_us"]) == (pytest.approx(3000), 500, pytest.approx(1000))
    assert row["gloo_busbw_gb_per_s"] == pytest.approx(65536 * 0.75 / 3e-3 / 1e9)
    assert document["step_s"] == {"gloo": 2.0, "chorale": 1.0}
    assert (document["losses_equal"], document["largest_loss_difference"]) == (False, 0.5)
    assert document["communication_speedup"] == pytest.approx(3)
    assert document["slower_at"] == []


def test_the_picture_names_the_backends_and_their_seconds(tmp_path: Path) -> None:
    step_picture({**figures(), "training": "ddp", "network": "ring:4", "link_mbps": 10}, tmp_path / "steps.svg")
    assert "<svg" in (tmp_path / "steps.svg").read_text()
