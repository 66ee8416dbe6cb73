"""The gate before the alias: what passes, what is kept out, and the way back."""

from dataclasses import replace
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.synth.errors import CheckFailed
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.promotion import CHALLENGER, CHAMPION, REPEATS, judge, unseen_size
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.reports.tuning import refused_table, tune_document
from chorale.tuner.tracking.champions import PROMOTION, RATIO, REASON, ROLLED_BACK, best_programs, roll_back
from chorale.tuner.tracking.mlflow_store import ModelVersion
from chorale.tuner.tracking.registry import SPEEDUP, load_best
from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from chorale.tuner.trials.tuning_table import SizeClass
from tests.campaigns import complete, small_campaign
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


def test_the_first_of_its_class_has_to_be_right_at_a_size_without_trials(home: Home) -> None:
    runner = FakeRunner()
    report = run(home, campaign(["ring"]), runner=runner)
    assert {size_class: verdict.promoted for size_class, verdict in report.verdicts.items()} == {
        SMALL: True,
        LARGE: True,
    }
    tests = [request for request in runner.requests if CHALLENGER in request.programs]
    sizes = [request.sizes_bytes for request in tests]
    assert [SizeClass.of(size) for (size,) in sizes] == [SMALL, LARGE]
    assert not {size for (size,) in sizes} & set(SIZES)
    tags = champion(home).tags
    assert tags[PROMOTION] == "promoted"
    assert "correct at an unseen size" in tags[REASON]


def test_a_program_that_fails_where_nobody_tuned_is_registered_without_the_alias(home: Home) -> None:
    def wrong_elsewhere(request: RunRequest) -> RunFailure | None:
        tried = set(request.sizes_bytes) <= set(SIZES)
        return None if tried else RunFailure(FailureKind.WRONG_RESULT, "element 3 differs")

    report = run(home, campaign(["ring"]), runner=FakeRunner(wrong_elsewhere))
    assert set(report.versions.values()) == {"1"}
    assert report.verdicts[SMALL].reason == "fault test: element 3 differs"
    with pytest.raises(CheckFailed, match="no schedule is registered for"):
        champion(home)


def test_the_alias_moves_to_what_is_faster_side_by_side(home: Home) -> None:
    rings_first(home)
    runner = FakeRunner()
    report = run(home, campaign(["bfb"]), runner=runner)
    [small, large] = [request for request in runner.requests if CHAMPION in request.programs]
    assert (small.sizes_bytes, large.sizes_bytes) == ((SIZES[0],), (SIZES[1],))
    assert small.repeats == REPEATS
    verdict = report.verdicts[SMALL]
    assert verdict.promoted
    assert verdict.ratio is not None
    assert verdict.ratio.high < 1
    version = champion(home)
    assert version.version == "2"
    assert version.tags[RATIO].startswith(f"{verdict.ratio.median:.3g} (")
    assert "faster than version 1 side by side at 64KiB" in version.tags[REASON]


@pytest.mark.parametrize("factor", [10.0, pytest.param(1e3, marks=pytest.mark.slow)])
def test_a_better_record_alone_does_not_move_the_alias(home: Home, factor: float) -> None:
    rings_first(home)
    report = run(home, campaign(["bfb"]), runner=SlowerTogether(factor))
    assert not report.verdicts[SMALL].promoted
    assert set(report.versions.values()) == {"2"}
    assert champion(home).version == "1"
    kept_out = next(version for version in store_of(home).versions(champion(home).name) if version.version == "2")
    assert kept_out.tags[PROMOTION] == "kept out"
    assert "not clearly faster than version 1" in kept_out.tags[REASON]


def test_a_champion_that_no_longer_works_does_not_keep_the_alias(home: Home) -> None:
    rings_first(home)

    def champion_hangs(request: RunRequest) -> RunFailure | None:
        return RunFailure(FailureKind.TIMEOUT, "hangs") if CHAMPION in request.programs else None

    report = run(home, campaign(["bfb"]), runner=FakeRunner(champion_hangs))
    assert report.verdicts[SMALL].reason == "version 1 fails here: hangs"
    assert champion(home).version == "2"


def test_no_comparison_leaves_the_alias_where_it_is(home: Home) -> None:
    rings_first(home)

    def refuse(request: RunRequest) -> RunFailure | None:
        return RunFailure(FailureKind.REJECTED, "fell back") if CHAMPION in request.programs else None

    report = run(home, campaign(["bfb"]), runner=FakeRunner(refuse))
    assert report.verdicts[SMALL].reason == "could not be compared: fell back"
    assert champion(home).version == "1"


@pytest.mark.slow
def test_what_was_measured_outranks_what_was_simulated(home: Home) -> None:
    run(home, small_campaign(search={"methods": ["bfb"]}))
    rings_first(home)
    assert champion(home).version == "2"
    run(home, small_campaign(search={"methods": ["biring"]}))
    assert champion(home).version == "2"


@pytest.mark.slow
def test_a_champion_of_other_runners_is_compared_in_the_dialect_of_this_one(home: Home) -> None:
    rings_first(home)
    runner = FakeRunner()
    on_gpus = {"kind": "msccl", "msccl": {"runtime": "executor"}}
    on_gpus = small_campaign(search={"methods": ["bfb"]}, runner=on_gpus, sizes=list(SIZES))
    report = run(home, on_gpus, runner=runner)
    assert "faster than version 1 side by side" in report.verdicts[SMALL].reason
    compared = [request.programs for request in runner.requests if CHAMPION in request.programs]
    assert len(compared) == 2
    assert {program.target for programs in compared for program in programs.values()} == {"msccl-executor-xml"}


def test_the_alias_goes_back_and_campaigns_leave_it_there(home: Home) -> None:
    rings_first(home)
    run(home, campaign(["bfb"]), runner=FakeRunner())
    mlflow, name = store_of(home), champion(home).name
    gone, back = roll_back(mlflow, name, "champion")
    assert (gone.version, back.version, champion(home).version) == ("2", "1", "1")
    assert ROLLED_BACK in mlflow.versions(name)[0].tags
    report = run(home, campaign(["bfb"]), runner=FakeRunner())
    assert report.verdicts[SMALL].reason == "somebody went back from it"
    assert champion(home).version == "1"
    with pytest.raises(CheckFailed, match="is the first"):
        roll_back(mlflow, name, "champion")
    assert champion(home, SIZES[1]).version == "2"  # classes have champions of their own


def test_a_resumed_launch_does_not_measure_its_own_champion_again(home: Home) -> None:
    rings_first(home)
    runner = FakeRunner()
    report = run(home, campaign(["ring"]), resume=True, runner=runner)
    assert runner.requests == []
    assert report.verdicts[SMALL].reason == "holds the alias already"


def test_what_makes_the_whole_slower_is_refused_in_words_and_rows(home: Home) -> None:
    wanted = campaign(["bfb", "ring"], overlap={"products": 3}, baselines=["bfb"])
    report = run(home, wanted, runner=FakeRunner())
    rows = [
        (row["size_bytes"], row["parameters"]["method"], row["baseline"]) for row in tune_document(report)["refused"]
    ]
    assert rows == [(SIZES[0], "ring", "bfb"), (SIZES[1], "ring", "bfb")]
    table = refused_table(report)
    assert table is not None
    assert table.row_count == 2
    assert "Refused: slower end to end" in (report.folder / "report.html").read_text()
    only_rings = run(home, campaign(["ring"], overlap={"products": 3}, baselines=["bfb"]), runner=FakeRunner())
    assert only_rings.verdicts[SMALL].reason == "holds the alias already"  # the baseline does
    assert champion(home).tags[SPEEDUP] == "1"
    assert refused_table(run(home, campaign(["ring"], baselines=["bfb"]), runner=FakeRunner())) is None


def test_a_winner_that_is_slower_at_one_size_of_its_class_is_refused(home: Home) -> None:
    sizes = tuple(
        SizeResult(size, size, (time_s,), {"bfb": (4.0,)}) for size, time_s in ((2**16, 1.0), (2**16 + 4, 5.0))
    )
    [winner] = best_programs([RankedTrial(complete(Candidate("ring")), sizes)])
    wanted = campaign(["ring"], overlap={"products": 3}, baselines=["bfb"])
    nothing: Any = None
    found = judge(wanted, load_topology("ring:4"), nothing, nothing, home, [winner])
    assert found[SMALL].reason == "refused, slower end to end: 1.25 times bfb at 65540B"


def test_unseen_sizes() -> None:
    assert SizeClass.of(unseen_size(SizeClass(20), [2**20])) == SizeClass(20)
    first = unseen_size(SizeClass(10), [])
    assert unseen_size(SizeClass(10), [first]) == first + 4
    assert unseen_size(SizeClass(0), [1]) > 1
