"""The gate before the alias: what passes, what is kept out, the way back, and answers of the library itself."""

from dataclasses import replace
from typing import Any

import pytest

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    RunFailure,
    RunRequest,
    SizeMeasurement,
    library_result,
)
from chorale.synth.errors import CheckFailed
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.tune import CHALLENGER, CHAMPION, REPEATS, TuneReport, unseen_size
from chorale.tuner.reports.tuning import tune_document
from chorale.tuner.tracking.mlflow_store import ModelVersion
from chorale.tuner.tracking.registry import PROMOTION, RATIO, REASON, ROLLED_BACK, load_best, roll_back
from chorale.tuner.trials.records import SizeClass
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.fakes import FakeRunner
from tests.unit.tuner.launch.test_tuning import run, store_of

SMALL, LARGE = SizeClass(16), SizeClass(20)
SIZES = (2**16, 2**20)  # at both bfb is faster than a ring, by the formula of the fake


class SlowerTogether(FakeRunner):
    """Times by formula, those of the challenger times `factor` while it runs beside a champion."""

    def __init__(self, factor: float, **options: Any) -> None:
        super().__init__(**options)
        self._factor = factor

    def submit(self, request: RunRequest) -> Outcome:
        outcome = super().submit(request)
        if isinstance(outcome, RunFailure) or CHAMPION not in request.programs:
            return outcome
        sizes = outcome.results[CHALLENGER]
        slower = tuple(replace(one, times_s=tuple(self._factor * time for time in one.times_s)) for one in sizes)
        return Measurement(outcome.runner, {**outcome.results, CHALLENGER: slower}, outcome.environment)


def campaign(methods: list[str], **changes: Any) -> Campaign:
    return small_campaign(search={"methods": methods}, runner={"kind": "local"}, sizes=list(SIZES), **changes)


def rings_first(home: Home) -> TuneReport:
    return run(home, campaign(["ring"]), runner=FakeRunner())


def champion(home: Home, size_bytes: int = SIZES[0]) -> ModelVersion:
    return load_best(store_of(home), load_topology("ring:4"), "allreduce", size_bytes).version


def test_the_first_of_its_class_has_to_be_right_at_a_size_without_trials(home):
    runner = FakeRunner()
    report = run(home, campaign(["ring"]), runner=runner)
    promoted = {size_class: verdict.promoted for size_class, verdict in report.verdicts.items()}
    assert promoted == {SMALL: True, LARGE: True}
    tests = [request for request in runner.requests if CHALLENGER in request.programs]
    sizes = [request.sizes_bytes for request in tests]
    assert [SizeClass.of(size) for (size,) in sizes] == [SMALL, LARGE]
    assert not {size for (size,) in sizes} & set(SIZES)
    tags = champion(home).tags
    assert tags[PROMOTION] == "promoted"
    assert "correct at an unseen size" in tags[REASON]
    assert SizeClass.of(unseen_size(SizeClass(20), [2**20])) == SizeClass(20)
    first = unseen_size(SizeClass(10), [])
    assert unseen_size(SizeClass(10), [first]) == first + 4
    assert unseen_size(SizeClass(0), [1]) > 1


def test_a_program_that_fails_where_nobody_tuned_is_registered_without_the_alias(home):
    def wrong_elsewhere(request: RunRequest) -> RunFailure | None:
        tried = set(request.sizes_bytes) <= set(SIZES)
        return None if tried else RunFailure(FailureKind.WRONG_RESULT, "element 3 differs")

    report = run(home, campaign(["ring"]), runner=FakeRunner(wrong_elsewhere))
    assert set(report.versions.values()) == {"1"}
    assert report.verdicts[SMALL].reason == "fault test: element 3 differs"
    with pytest.raises(CheckFailed, match="no schedule is registered for"):
        champion(home)


def test_the_alias_moves_to_what_is_faster_side_by_side_and_not_to_a_better_record_alone(home):
    rings_first(home)
    report = run(home, campaign(["bfb"]), runner=SlowerTogether(10.0))
    assert not report.verdicts[SMALL].promoted
    assert set(report.versions.values()) == {"2"}
    assert champion(home).version == "1"
    kept_out = next(version for version in store_of(home).versions(champion(home).name) if version.version == "2")
    assert kept_out.tags[PROMOTION] == "kept out"
    assert "not clearly faster than version 1" in kept_out.tags[REASON]
    runner = FakeRunner()
    report = run(home, campaign(["bfb"]), runner=runner)
    [small, large] = [request for request in runner.requests if CHAMPION in request.programs]
    assert (small.sizes_bytes, large.sizes_bytes) == ((SIZES[0],), (SIZES[1],))
    assert small.repeats == REPEATS
    verdict, version = report.verdicts[SMALL], champion(home)
    assert verdict.promoted
    assert verdict.ratio.high < 1
    assert version.version == "2"
    assert version.tags[RATIO].startswith(f"{verdict.ratio.median:.3g} (")
    assert "faster than version 1 side by side at 64KiB" in version.tags[REASON]


@pytest.mark.parametrize(
    ("kind", "reason", "version"),
    [
        (FailureKind.TIMEOUT, "version 1 fails here: why", "2"),
        (FailureKind.REJECTED, "could not be compared: why", "1"),
    ],
)
def test_a_champion_that_no_longer_works_loses_the_alias_unless_there_is_no_comparison(home, kind, reason, version):
    rings_first(home)

    def fails(request):
        return RunFailure(kind, "why") if CHAMPION in request.programs else None

    report = run(home, campaign(["bfb"]), runner=FakeRunner(fails))
    assert report.verdicts[SMALL].reason == reason
    assert champion(home).version == version


@pytest.mark.slow
def test_what_was_measured_outranks_what_was_simulated(home):
    run(home, small_campaign(search={"methods": ["bfb"]}))
    rings_first(home)
    assert champion(home).version == "2"
    run(home, small_campaign(search={"methods": ["biring"]}))
    assert champion(home).version == "2"


@pytest.mark.slow
def test_a_champion_of_other_runners_is_compared_in_the_dialect_of_this_one(home):
    rings_first(home)
    runner = FakeRunner()
    on_gpus = {"kind": "msccl", "msccl": {"runtime": "executor"}}
    on_gpus = small_campaign(search={"methods": ["bfb"]}, runner=on_gpus, sizes=list(SIZES))
    report = run(home, on_gpus, runner=runner)
    assert "faster than version 1 side by side" in report.verdicts[SMALL].reason
    compared = [request.programs for request in runner.requests if CHAMPION in request.programs]
    assert len(compared) == 2
    assert {program.target for programs in compared for program in programs.values()} == {"msccl-executor-xml"}


def test_the_alias_goes_back_and_campaigns_leave_it_there(home):
    rings_first(home)
    run(home, campaign(["bfb"]), runner=FakeRunner())
    mlflow, name = store_of(home), champion(home).name
    gone, back = roll_back(mlflow, name, "champion")
    assert (gone.version, back.version, champion(home).version) == ("2", "1", "1")
    assert ROLLED_BACK in mlflow.versions(name)[0].tags
    report = run(home, campaign(["bfb"]), runner=FakeRunner())
    assert report.verdicts[SMALL].reason == "it was rolled back"
    assert champion(home).version == "1"
    with pytest.raises(CheckFailed, match="is the first"):
        roll_back(mlflow, name, "champion")
    assert champion(home, SIZES[1]).version == "2"  # classes have champions of their own


def test_a_resumed_launch_does_not_measure_its_own_champion_again(home):
    rings_first(home)
    runner = FakeRunner()
    report = run(home, campaign(["ring"]), resume=True, runner=runner)
    assert runner.requests == []
    assert report.verdicts[SMALL].reason == "already has the alias"


FAST_S, SLOW_S = 1e-6, 1.0
WHERE = ("best", "--topology", "ring:4", "--collective", "allreduce", "--size")


class WithLibrary(FakeRunner):
    """Programs by formula; an algorithm of its own, `tree`, that takes a fixed time up to 4 KiB and is slow above."""

    def __init__(self, small_s: float) -> None:
        super().__init__()
        self._small_s = small_s

    def submit(self, request: RunRequest) -> Outcome:
        outcome = super().submit(replace(request, library=()))
        if isinstance(outcome, RunFailure):
            return outcome
        own = tuple(
            SizeMeasurement(size, size, (self._small_s if size <= 4096 else SLOW_S,) * request.repeats, correct=True)
            for size in request.sizes_bytes
        )
        results = {**outcome.results, **{library_result(name): own for name in request.library}}
        return Measurement(outcome.runner, results, outcome.environment)


def library_campaign(**changes: object) -> Campaign:
    whole = {"search": {"methods": ["ring"]}, "runner": {"kind": "local"}, "baselines": ["library:tree"], **changes}
    return small_campaign(**whole)


def test_best_answers_with_the_library_where_it_is_faster(home, capsys):
    report = run(home, library_campaign(), runner=WithLibrary(FAST_S))
    small, large = tune_document(report)["best"]
    assert (small["parameters"], small["baseline"], small["registered_version"]) == (None, "library:tree", "1")
    assert large["parameters"]["method"] == "ring"
    found = chorale(capsys, *WHERE, "4KiB", "--json").document
    assert (found["run"], found["library"], found["exact"]) == ("library", "tree", True)
    assert (found["schedule"], found["program"], found["parameters"]) == (None, None, None)
    assert found["measured"]["time_us"] == pytest.approx(FAST_S * 1e6)
    assert found["run_id"] == report.tracked.parent_run_id
    assert "use the library's own tree: 1 us, nothing was faster" in chorale(capsys, *WHERE, "4KiB").stdout
    other = chorale(capsys, *WHERE, "64KiB", "--json").document
    assert (other["run"], other["library"], other["parameters"]["method"]) == ("program", None, "ring")
    with pytest.raises(CheckFailed, match="the library's own tree"):
        _ = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096).program
    again = run(home, library_campaign(), runner=WithLibrary(FAST_S))
    assert set(again.versions.values()) == {"1"}


def test_programs_and_the_library_take_the_alias_from_each_other(home):
    run(home, library_campaign(), runner=WithLibrary(SLOW_S))
    assert champion(home, 4096).version == "1"
    overtaken = run(home, library_campaign(), runner=WithLibrary(FAST_S))
    assert set(overtaken.versions.values()) == {"1", "2"}  # the program stays at 64 KiB
    best = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096)
    assert (best.version.version, best.library) == ("2", "tree")
    run(home, library_campaign(search={"methods": ["bfb"]}), runner=WithLibrary(SLOW_S))
    best = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096)
    assert (best.version.version, best.library) == ("3", None)
