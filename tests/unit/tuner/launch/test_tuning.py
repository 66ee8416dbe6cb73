"""Whole launches with real schedules, the simulated runner, Optuna and MLflow, without a cluster."""

import json
import shutil
from collections import Counter
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from chorale.runners.api.base import FailureKind
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.simulation.simulate import NetworkModel
from chorale.tuner.cli.tune_launch import UNTRACKED_EXIT_CODE, show
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.tune import LaunchProgress, TuneReport, tune
from chorale.tuner.reports.tuning import tune_document, tune_table
from chorale.tuner.search.search import Search
from chorale.tuner.tracking.mlflow_store import PARENT_TAG, MlflowStore, load_mlflow
from chorale.tuner.tracking.registry import load_best
from chorale.tuner.tracking.tracker import LAUNCH_ID, TRIAL_ID
from chorale.tuner.trials.journal import JournalLost
from chorale.tuner.trials.records import Candidate, CompleteTrial, TrialRecord
from tests.campaigns import small_campaign, tracked_runs
from tests.fakes import FakeRunner, InlineWorkers, fail_with
from tests.unit.tuner.trials.test_store import recorded, replace_files

SILENT = Console(quiet=True)
NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens there


def simulated() -> SimulatedRunner:
    return SimulatedRunner(NetworkModel.of(link_gbps=1))


def run(home: Home, campaign: Campaign | None = None, resume: bool = False, runner: Any = None) -> TuneReport:
    wanted = campaign or small_campaign()
    workers = InlineWorkers(runner or simulated())
    progress = lambda budget, done: LaunchProgress(SILENT, budget, done)  # noqa: E731 (a callback)
    return tune(wanted, load_topology(wanted.topology), home, resume, lambda: workers, progress)


def store_of(home: Home) -> MlflowStore:
    return MlflowStore(home.mlflow_uri, home.artifacts)


def trial_runs(home: Home, report: TuneReport) -> dict[str, Any]:
    """Return MLflow's runs of a launch by trial id."""
    launch_id = report.launch.launch_id
    named = [run for run in tracked_runs(home.mlflow_uri) if run.data.tags[LAUNCH_ID] == launch_id]
    found = {run.data.tags[TRIAL_ID]: run for run in named}
    assert len(found) == len(named)
    return found


def metrics_at(home: Home, run_id: str, step: int) -> dict[str, float]:
    """Return the metrics of a run that MLflow draws at `step`."""
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    history = {name: client.get_metric_history(run_id, name) for name in client.get_run(run_id).data.metrics}
    return {name: point.value for name, points in history.items() for point in points if point.step == step}


def test_a_launch_is_tracked_registered_and_reported(home):
    report = run(home)
    document = tune_document(report)
    assert document["trials"] == {"complete": 6, "failed": 0, "pruned": 0}
    assert [row["size_bytes"] for row in document["best"]] == [4096, 65536]
    for row in document["best"]:
        assert row["parameters"]["method"] == "bfb"
        assert row["speedup_vs_baseline"] == pytest.approx(2.0)
        assert row["registered_version"] == "1"
        assert row["run_id"] == report.tracked.run_ids[row["trial_id"]]
    json.dumps(document, allow_nan=False)
    runs = trial_runs(home, report)
    assert set(runs) == {trial.trial_id for trial in report.trials}
    for trial in report.trials:
        logged = runs[trial.trial_id]
        assert logged.info.status == "FINISHED"
        assert logged.data.tags[PARENT_TAG] == document["parent_run_id"]
        assert logged.data.tags["chorale.schedule_id"] == trial.schedule_id
        assert logged.data.params["method"] == trial.candidate.method
        for size in trial.sizes:
            at_size = metrics_at(home, logged.info.run_id, size.size_bytes)
            assert at_size["time_us"] == pytest.approx(size.median_s * 1e6)
            assert at_size["speedup"] == pytest.approx(size.speedup)
            assert at_size["algbw_gb_per_s"] == pytest.approx(size.algbw_gb_per_s)
        folder = Path(logged.info.artifact_uri.removeprefix("file://"))
        assert {path.name for path in folder.iterdir()} == {"schedule.parquet", "program.xml", "measurements.json"}
    assert tune_table(report).row_count == 2
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    tags = client.get_run(report.tracked.parent_run_id).data.tags
    assert tags["mlflow.user"]
    assert tags["mlflow.source.name"]
    assert tags["mlflow.note.content"].startswith("Launch 1 of the campaign small: allreduce on `ring:4` at 2 sizes")
    history = client.get_metric_history(report.tracked.parent_run_id, "best_speedup")
    best = [
        max(trial.speedup for trial in report.trials[:count] if isinstance(trial, CompleteTrial))
        for count in range(1, 7)
    ]
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    assert [point.value for point in history] == pytest.approx(best)
    at_size = metrics_at(home, report.tracked.parent_run_id, 65536)
    assert at_size["best_speedup_by_size"] == pytest.approx(max(trial.sizes[1].speedup for trial in report.trials))
    topology = load_topology("ring:4")
    best = load_best(store_of(home), topology, "allreduce", 65536)
    [winner] = {row["trial_id"] for row in tune_document(report)["best"] if row["size_bytes"] == 65536}
    assert best.manifest["trial_id"] == winner
    assert best.program.verified.schedule.topology.id == topology.id
    assert best.size_class.exponent == 16
    lineage = best.manifest["lineage"]
    assert lineage["launch_id"] == report.launch.launch_id
    assert winner in lineage["trial_ids"]
    assert set(lineage["trial_ids"]) <= set(report.tracked.run_ids)
    assert lineage["certificate"] == json.loads(json.dumps(dict(best.program.verified.schedule.certificate)))
    assert best.manifest["topology"] == {"spec": "ring:4", "id": topology.id}
    nearest = load_best(store_of(home), topology, "allreduce", 2**30)
    assert nearest.size_class.exponent == 16
    with pytest.raises(CheckFailed, match="no schedule is registered for allgather on ring:4"):
        load_best(store_of(home), topology, "allgather", 65536)


def test_a_tampered_registry_is_noticed(home):
    report = run(home)

    def best() -> Any:
        return load_best(store_of(home), load_topology("ring:4"), "allreduce", 65536)

    for name in ("schedule.parquet", "program.xml", "manifest.json"):
        sound = {path: path.read_bytes() for path in (home.artifacts / "small" / "models").rglob(name)}
        assert sound
        for path, content in sound.items():
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(CheckFailed):
            best()
        for path, content in sound.items():
            path.write_bytes(content)
        assert best()
    ring = next(trial for trial in report.trials if trial.candidate.method == "ring")
    assert isinstance(ring, CompleteTrial)
    for path in (home.artifacts / "small" / "models").rglob("schedule.parquet"):
        shutil.copy(report.folder / "schedules" / f"{ring.schedule_id}.parquet", path)
    with pytest.raises(CheckFailed, match="the one that was measured"):
        best()


def test_resuming_repeats_nothing_and_a_second_launch_stays_apart(home):
    first = run(home, small_campaign(budget={"trials": 3}))
    second = run(home, resume=True)
    assert second.launch == first.launch
    assert second.trials[:3] == first.trials
    assert len({trial.candidate for trial in second.trials}) == 6
    assert second.tracked.parent_run_id == first.tracked.parent_run_id
    assert set(trial_runs(home, second)) == {trial.trial_id for trial in second.trials}
    with pytest.raises(InvalidInput, match="must keep its `sizes`"):
        run(home, small_campaign(sizes=["8KiB"]), resume=True)
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    names = sorted(model.name for model in client.search_registered_models())
    assert [name.rsplit(".", 1)[0] for name in names] == [
        f"chorale.allreduce.{size}.ring-4" for size in ("4KiB", "64KiB")
    ]
    client.rename_registered_model(names[0], "chorale.allreduce.0123456789abcdef.4KiB")  # as earlier releases named it
    other = run(home)
    assert (first.launch.number, other.launch.number) == (1, 2)
    assert first.tracked.experiment_id == other.tracked.experiment_id
    assert first.tracked.parent_run_id != other.tracked.parent_run_id
    assert set(other.versions.values()) == {"1"}
    models = sorted(model.name for model in client.search_registered_models())
    assert models == ["chorale.allreduce.0123456789abcdef.4KiB", names[1]]


def test_without_mlflow_the_campaign_goes_on_and_is_uploaded_later(home, caplog):
    report = run(home, small_campaign(tracking={"mlflow_uri": NOWHERE}))
    assert len(report.trials) == 6
    assert report.tracked.run_ids == {}
    assert report.tracked.problem is not None
    assert NOWHERE in report.tracked.problem
    assert NOWHERE in caplog.text
    assert report.versions == {}
    with pytest.raises(typer.Exit) as ended:
        show(report, as_json=True)
    assert ended.value.exit_code == UNTRACKED_EXIT_CODE == 4
    later = run(home, resume=True)
    show(later, as_json=True)
    assert later.trials == report.trials
    assert set(trial_runs(home, later)) == {trial.trial_id for trial in report.trials}
    assert set(later.versions.values()) == {"1"}


def test_failed_trials_are_tracked_with_their_kind_and_an_interrupted_launch_keeps_what_finished(home):
    report = run(home, runner=FakeRunner(fail_with(FailureKind.TIMEOUT)))
    assert (report.ranked_trials, report.versions) == ((), {})
    runs = trial_runs(home, report).values()
    facts = {(run.info.status, run.data.tags["chorale.failure_kind"]) for run in runs}
    assert facts == {("FAILED", "timeout")}
    calls = count()

    def interrupt(request: object) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt

    report = run(home, runner=FakeRunner(interrupt))
    assert report.interrupted
    assert 0 < len(report.trials) < 6
    assert report.versions == {}
    assert set(trial_runs(home, report)) == {trial.trial_id for trial in report.trials}
    assert len(run(home, resume=True, runner=FakeRunner()).trials) == 6


def test_where_nothing_beats_a_baseline_the_answer_is_the_baseline(home):
    campaign = small_campaign(search={"methods": ["ring"], "channels": [1, 2]}, baselines=["bfb", "ring"])
    report = run(home, campaign)
    document = tune_document(report)
    assert [(row["parameters"], row["baseline"], row["speedup_vs_baseline"]) for row in document["best"]] == [
        (None, "bfb", 1.0)
    ] * 2
    assert all(row["time_us"] == row["baseline_time_us"] for row in document["best"])
    [answer] = document["answer"]
    assert (answer["from_bytes"], answer["to_bytes"], answer["run"], answer["baseline"]) == (1, None, "baseline", "bfb")
    console = Console(width=200, record=True, file=StringIO())
    console.print(tune_table(report))
    assert console.export_text().count("version 1") == 2
    best = load_best(store_of(home), load_topology("ring:4"), "allreduce", 65536)
    assert best.manifest["parameters"] == Candidate("bfb").parameters
    assert best.program.verified.schedule.method == "bfb"
    assert best.version.run_id == report.tracked.parent_run_id


def test_predictions_say_where_to_begin(home):
    search = {"methods": ["ring", "biring", "bfb"], "chunks": [None, 1, 2]}
    report = run(home, small_campaign(search=search, topology="ring:8"))
    assert min(report.trials, key=lambda trial: trial.number).candidate.method == "bfb"


def test_a_deterministic_campaign_has_one_program_at_all_sizes_with_the_same_bits_at_all_ranks(home):
    search = {"methods": ["swing-latency", "ring", "recursive-doubling"], "channels": [1]}
    campaign = small_campaign(
        topology="complete:8", sizes=["64", "16MiB"], search=search, baselines=["bfb"], budget={"trials": 9}
    )
    free = tune_document(run(home, campaign))
    assert {row["parameters"] and row["parameters"]["method"] for row in free["best"]} != {"ring"}
    fixed = run(home, campaign.model_copy(update={"name": "fixed", "deterministic": True}))
    assert {ranked.trial.candidate.method for ranked in fixed.ranked_trials} <= {"ring", "recursive-doubling"}
    document = tune_document(fixed)
    [answer] = document["answer"]
    assert (answer["from_bytes"], answer["to_bytes"], answer["run"]) == (1, None, "program")
    assert document["deterministic"] is True
    assert free["deterministic"] is False
    search = {"methods": ["swing-latency"], "channels": [1]}  # each rank adds in another order
    campaign = small_campaign(topology="complete:8", search=search, deterministic=True)
    with pytest.raises(CheckFailed, match="same order of additions"):
        run(home, campaign)


def test_the_first_launch_ends_and_nothing_is_doubled(home, monkeypatch):
    """After its third trial, the whole launch is done again beside it."""
    campaign, folder = small_campaign(budget={"trials": 8}), home.campaigns / "small" / "1"
    told, numbers = LaunchProgress.trial, count(1)

    def rival(self: LaunchProgress, record: TrialRecord) -> None:
        told(self, record)
        if next(numbers) == 3:
            replace_files(folder)
            run(home, campaign, resume=True)

    monkeypatch.setattr(LaunchProgress, "trial", rival)
    with pytest.raises(JournalLost, match="was replaced by another file"):
        run(home, campaign)
    trials = recorded(folder)
    assert set(trials.values()) == {1}
    assert len(trials) == 8
    assert Counter(run.data.tags[TRIAL_ID] for run in tracked_runs(home.mlflow_uri)) == trials
    assert json.loads((folder / "trials.jsonl").read_text().splitlines()[-1])["state"] == "final"


def test_a_search_that_another_launch_took_over_is_not_blamed(home, monkeypatch):
    """The other process ends trials of the study, which Optuna then refuses to end again."""

    def ask(_: Search) -> None:
        replace_files(home.campaigns / "small" / "1")
        raise ValueError("Trial#7 has already finished")

    monkeypatch.setattr(Search, "ask", ask)
    with pytest.raises(JournalLost, match="was replaced by another file"):
        run(home)
