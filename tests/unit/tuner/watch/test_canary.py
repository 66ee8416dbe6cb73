"""Comparisons of tables, what status files of jobs say of them, and tables for what is left of a fabric."""

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from chorale.job.report import JobReport
from chorale.job.table.layout import Table, parse_table
from chorale.job.table.verification import checked_table
from chorale.runners.api.base import Measurement, RunRequest, SizeMeasurement
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.canary import (
    CANDIDATE,
    PRESENT,
    CallTimes,
    Canary,
    Publication,
    Publisher,
    Snapshot,
    read_jobs,
    slowdowns,
)
from chorale.tuner.watch.replanning import Planner, PlanRequest, table_entry

_SIZE = 1 << 16
_SIZES = (1024, 1 << 20)
_CUT_CUBE = "without(hypercube:3;link=0>1;link=1>0)"


def _planner(*methods: str) -> Planner:
    return Planner(PlanRequest(("allreduce",), _SIZES, methods, NetworkModel.of(100, 0, 0, "1/10")))


def _measure(ratios: Iterator[float]) -> Callable[[RunRequest], Measurement]:
    def measure(request: RunRequest) -> Measurement:
        times = {PRESENT: 1.0, CANDIDATE: next(ratios)}
        size = request.sizes_bytes[0]
        return Measurement("fake", {name: (SizeMeasurement(size, size, (times[name],), True),) for name in times})

    return measure


def _tables() -> list[Table]:
    return [_planner("bfb").plan(spec).table for spec in ("complete:4", "without(complete:4;link=0-1)")]


def test_six_ratios_above_one_are_slower_and_the_first_that_is_not_ends_it():
    for ratios, measured, is_slower in (
        ([0.9], 1, False),
        ([1.2, 1.1, 0.99], 3, False),
        ([1.2, 1.1, 1.3, 1.2, 1.2, 1.001], 6, True),
        ([1.2, 1.1, 1.3, 1.2, 1.2, 1.0], 6, False),
    ):
        canary = Canary(parse_topology("complete:4"), _measure(iter(ratios)), (_SIZE,), 6, 10.0, lambda: 0.0)
        (row,) = canary.compare(*_tables(), ("allreduce",)).rows
        assert (row.ratio.samples, row.is_slower) == (measured, is_slower)


def _publications() -> tuple[Publication, Publication]:
    """Return publications of a whole and of a cut network."""
    plans = [_planner("bfb").plan(spec) for spec in ("complete:4", "without(complete:4;link=0>1)")]
    first, second = (
        Publication(replace(plan, seconds=0.0), 1000.0, {"why": "a test", "spec": plan.spec, "costs": plan.costs})
        for plan in plans
    )
    return first, second


def test_a_publisher_goes_on_where_one_was_killed_and_needs_its_folder(tmp_path):
    """Killed before the file was replaced, and after it: the file decides what is published."""
    (tmp_path / "record").mkdir()
    first, second = _publications()
    Publisher(tmp_path / "table", tmp_path / "record").publish(first, None)
    for is_replaced in (False, True):
        dying = Publisher(tmp_path / "table", tmp_path / "record")
        dying.resume()
        assert dying.present == first
        dying._write(second)
        if is_replaced:
            (tmp_path / "table").write_bytes(second.plan.data)
        again = Publisher(tmp_path / "table", tmp_path / "record")
        again.resume()
        assert (again.present, again.former) == ((second, first) if is_replaced else (first, None))
    with pytest.raises(InvalidInput):
        Publisher(tmp_path / "none" / "table", tmp_path).publish(_publications()[0], None)


_OLD, _NEW = ("old", "allreduce", 1024), ("new", "allreduce", 1024)


def _call_times(count: int, mean_s: float, seed: int) -> CallTimes:
    draw = random.Random(seed)
    times = [mean_s * draw.lognormvariate(0, 0.1) for _ in range(count)]
    return CallTimes(count, sum(times), sum(each**2 for each in times))


def _course(former_s: float, present_s: float, calls: int, seed: int = 0) -> tuple[Snapshot, Snapshot, Snapshot]:
    """Return what jobs say at the change, at the publication and later."""
    changed = {_OLD: _call_times(1000, 0.5, seed)}  # on another fabric, which does not count
    published = {_OLD: changed[_OLD] + _call_times(calls, former_s, seed + 1)}
    return changed, published, published | {_NEW: _call_times(calls, present_s, seed + 2)}


def test_a_slower_program_is_told_after_enough_calls():
    (row,) = slowdowns(*_course(0.010, 0.012, 50))
    assert (row.collective, row.size_bytes) == ("allreduce", 1024)
    assert row.ratio == pytest.approx(1.2, abs=0.06)
    assert slowdowns(*_course(0.010, 0.1, 9)) == []
    assert CallTimes(3, 0.3, 0.03).since(CallTimes(100, 9.0, 1.0)) == CallTimes(3, 0.3, 0.03)


@pytest.mark.parametrize("present_s", [0.005, 0.010, 0.0102])
def test_a_program_that_is_not_slower_is_not(present_s):
    assert all(slowdowns(*_course(0.010, present_s, 50, seed)) == [] for seed in range(200))


def test_status_files_are_added_up_and_others_passed_over(tmp_path):
    report = JobReport()
    for seconds in (0.5, 1.0):
        report.count_program("digest", "allreduce", 64, seconds)
    status, damaged, other = (tmp_path / name for name in ("status", "damaged", "other"))
    status.write_text(json.dumps({"sizes": report.sizes()}))
    damaged.write_text('{"sizes": [{"digest"')
    other.write_text("[1]")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "deep").write_text("[" * 10**5)
    (tmp_path / "endless").write_text('{"sizes": [{"digest": "", "collective": "", "size_bytes": Infinity}]}')
    paths = [status, status, damaged, other, *(tmp_path / name for name in ("none", "pipe", "zero", "deep", "endless"))]
    assert read_jobs(paths) == {("digest", "allreduce", 64): CallTimes(4, 3.0, 2.5)}


def test_a_plan_is_a_sound_table_with_proven_costs_of_methods_that_suit():
    plan = _planner("forest").plan(_CUT_CUBE)
    table, violations = checked_table(plan.data)
    assert table is not None
    assert violations == []
    assert parse_table(plan.data)[1] == plan.digest
    costs = plan.costs["allreduce"]
    assert (Fraction(costs["achieved"]), Fraction(costs["gap"])) == (Fraction(7, 8), Fraction(3, 8))
    planner = _planner("bfb")
    plan = planner.plan(_CUT_CUBE)
    assert planner.has(_CUT_CUBE)
    assert planner.plan(_CUT_CUBE) is plan
    assert _planner("bfb").plan(_CUT_CUBE).data == plan.data
    assert _planner("hamiltonian-ring", "bfb").plan("hypercube:3").table.programs
    with pytest.raises(InvalidInput):
        _planner("hamiltonian-ring").plan("hypercube:3")
    with pytest.raises(InvalidInput, match="no path"):
        _planner("bfb").plan("without(ring:4;link=0-1;link=2-3)")


def test_programs_of_the_present_table_stay_where_they_are_faster():
    present = _planner("bfb").plan("hypercube:3").table
    planner = _planner("forest")
    plan = planner.plan(_CUT_CUBE)
    mixed = planner.with_present(plan, present, [("allreduce", _SIZES[0])])
    small, large = (table_entry(mixed.table, "allreduce", size) for size in _SIZES)
    assert small.digest in present.programs
    assert large.digest in plan.table.programs
    _, violations = checked_table(mixed.data)
    assert violations == []
    entry = next(each for each in mixed.table.entries if each.program == small.digest)
    assert Fraction(entry.certificate["achieved"]) > Fraction(7, 12)  # over detours, on what is left
