"""Objects of Optuna in `ch.tune`: samplers, pruners, storages and callbacks of others, also where they fail."""

from typing import Any

import optuna
import pytest
from optuna.pruners import BasePruner, ThresholdPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

import chorale as ch
from chorale.campaigns import TuningResult
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.simulation.simulate import NetworkModel
from chorale.tuner import Home
from chorale.tuner.search.search import GAINS, REASON, REPEAT_OF, SENSIBLE
from chorale.tuner.tracking.mlflow_store import load_mlflow
from chorale.tuner.trials.records import Candidate, CompleteTrial, PrunedTrial
from tests.fakes import FakeRunner, InlineWorkers

SEARCH = {"methods": ["bfb", "ring"], "chunks": [None, 1, 2], "channels": [1, 2]}


class Tuner:
    """`ch.tune` in this process, on a ring of four with twelve candidates."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runner: Any = SimulatedRunner(NetworkModel.of(link_gbps=1))
        monkeypatch.setenv("CHORALE_HOME", str(home.root))
        monkeypatch.setattr("chorale.campaigns.make_workers", lambda *_: lambda: InlineWorkers(self.runner))

    def __call__(self, trials: int = 6, **keys: Any) -> TuningResult:
        defaults = {"sizes": "4KiB,64KiB", "search": SEARCH, "repeats": 2, "parallel": 1}
        return ch.tune("ring:4", runner="simulated", trials=trials, **{**defaults, **keys})


@pytest.fixture
def tuned(home: Home, monkeypatch: pytest.MonkeyPatch) -> Tuner:
    return Tuner(home, monkeypatch)


def study_of(storage: Any) -> Study:
    [name] = optuna.study.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def test_a_sampler_object_chooses_in_a_storage_object_and_callbacks_see_every_trial(tuned):
    storage = InMemoryStorage()
    seen: list[tuple[Study, FrozenTrial]] = []
    callback = lambda study, trial: seen.append((study, trial))  # noqa: E731
    report = tuned(sampler=TPESampler(seed=0), storage=storage, callbacks=[callback])
    assert [trial.user_attrs["chorale.trial_id"] for _, trial in seen] == [trial.trial_id for trial in report.trials]
    assert all(trial.state == TrialState.COMPLETE and trial.value for _, trial in seen)
    assert len({trial.candidate for trial in report.trials}) == 6
    assert not (report.folder / "optuna.journal").exists()
    done = [trial for trial in study_of(storage).trials if trial.state == TrialState.COMPLETE]
    names = [trial.user_attrs["chorale.trial_id"] for trial in done if REPEAT_OF not in trial.user_attrs]
    assert names == [trial.trial_id for trial in report.trials]
    assert all(set(trial.user_attrs[GAINS]) == {"4096", "65536"} for trial in done)


class Stubborn(RandomSampler):
    """Wants some values again and again."""

    def __init__(self, **values: Any) -> None:
        super().__init__(seed=0)
        self.values = values

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if param_name in self.values:
            return self.values[param_name]
        return super().sample_independent(study, trial, param_name, param_distribution)


def test_a_sampler_object_is_asked_after_the_first_of_each_method(tuned):
    report = tuned(3, sampler=Stubborn(method="ring", channels=2, chunks=2))
    assert report.trials[2].candidate == Candidate("ring", chunks=2, channels=2)


def test_a_resumed_launch_goes_on_with_objects_and_without(tuned, home):
    storage = InMemoryStorage()
    first = tuned(4, sampler=TPESampler(seed=0), storage=storage)
    second = tuned(8, sampler=TPESampler(seed=0), storage=storage, resume=True)
    third = tuned(10, resume=True)
    assert first.launch == second.launch == third.launch
    assert [len(report.trials) for report in (first, second, third)] == [4, 8, 10]
    assert len({trial.candidate for trial in third.trials}) == 10
    assert third.tracked.problem is None
    run = load_mlflow().MlflowClient(home.mlflow_uri).get_run(first.tracked.parent_run_id)
    assert run.data.tags["chorale.sampler"] == "TPESampler"


def test_what_is_neither_a_name_nor_an_object_is_refused(tuned):
    for keys in ({"sampler": TPESampler}, {"pruner": 3}, {"storage": object()}, {"callbacks": ["report"]}):
        with pytest.raises(InvalidInput, match="must be"):
            tuned(**keys)


def test_the_result_has_the_answer_the_table_the_study_and_every_trial(tuned, tmp_path):
    result = tuned(4, storage=InMemoryStorage())
    assert list(result.best) == [4096, 65536]
    assert all(row["time_us"] > 0 and row["baseline_time_us"] > 0 for row in result.best.values())
    assert len(result.study.trials) == len(result.trials) == 4
    frame = result.to_frame()
    complete = frame[frame["state"] == "complete"]
    assert sorted(set(frame["trial"])) == [trial.number for trial in result.trials]
    assert set(complete["size_bytes"]) == {4096, 65536}
    assert (complete["speedup"] > 0).all()
    assert result.table.ranks == 4
    assert ch.load_table(str(result.save_table(tmp_path / "job.table"))).programs.keys() == result.table.programs.keys()
    assert "ring:4" in repr(result)
    assert "64KiB" in result._repr_html_()
    assert result.plot().save(tmp_path / "times.svg")


def test_callbacks_and_pruners_that_fail_are_blamed(tuned):
    def broken(study: Study, trial: FrozenTrial) -> None:
        raise KeyError("oops")

    with pytest.raises(CheckFailed, match="a callback raised") as caught:
        tuned(callbacks=[broken])
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(tuned(resume=True).trials) == 6

    class Broken(BasePruner):
        def prune(self, study: Study, trial: FrozenTrial) -> bool:
            raise RuntimeError("oops")

    with pytest.raises(CheckFailed, match="the pruner failed: "):
        tuned(pruner=Broken())


def test_a_pruner_decides_after_each_size(tuned):
    """Candidates slower than the baseline at the first size are not measured at the second."""
    tuned.runner = FakeRunner()
    storage = InMemoryStorage()
    report = tuned(12, pruner=ThresholdPruner(lower=1.2), storage=storage)
    pruned = [trial for trial in report.trials if isinstance(trial, PrunedTrial)]
    complete = [trial for trial in report.trials if isinstance(trial, CompleteTrial)]
    assert len(pruned) + len(complete) == 12
    assert all(trial.sizes[0].speedup >= 1.2 for trial in complete)
    assert all(trial.sizes[0].speedup < 1.2 and len(trial.sizes) == 1 for trial in pruned if trial.sizes)
    assert len({trial.program_id for trial in pruned}) == len([trial for trial in pruned if trial.sizes]) < len(pruned)
    assert pruned[0].reason.startswith("the pruner ended it after 4KiB")
    trials = study_of(storage).trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert {len(trial.intermediate_values) for trial in trials if trial.state == TrialState.COMPLETE} <= {0, 2}
    assert not any(trial.constraints for trial in trials)


def test_points_over_the_limits_of_a_target_break_a_constraint(tuned):
    storage = InMemoryStorage()
    search = {"methods": ["bfb"], "channels": [1, 2], "chunks": [1, 8192]}
    tuned(2, sampler=Stubborn(chunks=8192), storage=storage, search=search)
    broken = [trial for trial in study_of(storage).trials if trial.constraints]
    assert broken
    assert all(trial.params["chunks"] == 8192 and trial.state == TrialState.PRUNED for trial in broken)
    assert all(trial.constraints == {SENSIBLE: 1.0} for trial in broken)
    assert all("chunks of whole elements" in trial.user_attrs[REASON] for trial in broken)
