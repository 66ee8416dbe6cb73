"""What status files of jobs say of two programs."""

import json
import random
from pathlib import Path

import pytest

from chorale.job.report import JobReport
from chorale.tuner.watch.canary import CallTimes, Snapshot, read_jobs, slowdowns

_OLD, _NEW = ("old", "allreduce", 1024), ("new", "allreduce", 1024)


def _times(count: int, mean_s: float, seed: int) -> CallTimes:
    draw = random.Random(seed)
    times = [mean_s * draw.lognormvariate(0, 0.1) for _ in range(count)]
    return CallTimes(count, sum(times), sum(each**2 for each in times))


def _course(former_s: float, present_s: float, calls: int, seed: int = 0) -> tuple[Snapshot, Snapshot, Snapshot]:
    """Return what jobs say at the change, at the publication and later."""
    changed = {_OLD: _times(1000, 0.5, seed)}  # on another fabric, which does not count
    published = {_OLD: changed[_OLD] + _times(calls, former_s, seed + 1)}
    return changed, published, published | {_NEW: _times(calls, present_s, seed + 2)}


def test_a_slower_program_is_told() -> None:
    (row,) = slowdowns(*_course(0.010, 0.012, 50))
    assert (row.collective, row.size_bytes) == ("allreduce", 1024)
    assert row.ratio == pytest.approx(1.2, abs=0.06)


@pytest.mark.parametrize("present_s", [0.005, 0.010, 0.0102])
def test_a_program_that_is_not_slower_is_not(present_s: float) -> None:
    assert all(slowdowns(*_course(0.010, present_s, 50, seed)) == [] for seed in range(200))


def test_few_calls_prove_nothing() -> None:
    assert slowdowns(*_course(0.010, 0.1, 9)) == []


def test_status_files_are_added_up_and_others_passed_over(tmp_path: Path) -> None:
    report = JobReport()
    for seconds in (0.5, 1.0):
        report.count_program("digest", "allreduce", 64, seconds)
    status, damaged, other = (tmp_path / name for name in ("status", "damaged", "other"))
    status.write_text(json.dumps({"sizes": report.sizes()}))
    damaged.write_text('{"sizes": [{"digest"')
    other.write_text("[1]")
    paths = [status, status, damaged, other, tmp_path / "none"]
    assert read_jobs(paths) == {("digest", "allreduce", 64): CallTimes(4, 3.0, 2.5)}


def test_a_job_that_begins_anew_is_counted_from_its_begin() -> None:
    assert CallTimes(3, 0.3, 0.03).since(CallTimes(100, 9.0, 1.0)) == CallTimes(3, 0.3, 0.03)
