"""Where the library's own algorithm is the fastest, the registry says so, until a program beats it there."""

from dataclasses import replace

import pytest

from chorale.runners.api.base import Measurement, Outcome, RunFailure, RunRequest, SizeMeasurement, library_result
from chorale.synth.errors import CheckFailed
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.tuning import tune_document
from chorale.tuner.tracking.mlflow_store import ModelVersion
from chorale.tuner.tracking.registry import load_best
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.fakes import FakeRunner
from tests.unit.tuner.launch.test_tuning import run, store_of

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


def campaign(**changes: object) -> Campaign:
    whole = {"search": {"methods": ["ring"]}, "runner": {"kind": "local"}, "baselines": ["library:tree"], **changes}
    return small_campaign(**whole)


def champion(home: Home, size_bytes: int) -> ModelVersion:
    return load_best(store_of(home), load_topology("ring:4"), "allreduce", size_bytes).version


def test_best_answers_with_the_library_where_it_is_faster(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(home, campaign(), runner=WithLibrary(FAST_S))
    small, large = tune_document(report)["best"]
    assert (small["parameters"], small["baseline"], small["registered_version"]) == (None, "library:tree", "1")
    assert large["parameters"]["method"] == "ring"
    found = chorale(capsys, *WHERE, "4KiB", "--json").document
    assert (found["run"], found["library"], found["exact"]) == ("library", "tree", True)
    assert (found["schedule"], found["program"], found["parameters"]) == (None, None, None)
    assert found["measured"]["time_us"] == pytest.approx(FAST_S * 1e6)
    assert found["run_id"] == report.tracked.parent_run_id
    assert "use the library's own tree: 1 us, nothing beat it" in chorale(capsys, *WHERE, "4KiB").stdout
    other = chorale(capsys, *WHERE, "64KiB", "--json").document
    assert (other["run"], other["library"], other["parameters"]["method"]) == ("program", None, "ring")
    with pytest.raises(CheckFailed, match="the library's own tree"):
        _ = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096).program
    again = run(home, campaign(), runner=WithLibrary(FAST_S))
    assert set(again.versions.values()) == {"1"}


def test_programs_and_the_library_take_the_alias_from_each_other(home: Home) -> None:
    run(home, campaign(), runner=WithLibrary(SLOW_S))
    assert champion(home, 4096).version == "1"
    overtaken = run(home, campaign(), runner=WithLibrary(FAST_S))
    assert set(overtaken.versions.values()) == {"1", "2"}  # the program stays at 64 KiB
    best = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096)
    assert (best.version.version, best.library) == ("2", "tree")
    run(home, campaign(search={"methods": ["bfb"]}), runner=WithLibrary(SLOW_S))
    best = load_best(store_of(home), load_topology("ring:4"), "allreduce", 4096)
    assert (best.version.version, best.library) == ("3", None)
