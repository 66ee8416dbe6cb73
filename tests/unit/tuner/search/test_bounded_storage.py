"""A storage that does not answer is waited for so long and no longer; one that does answers as without the thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import InMemoryStorage

from chorale.synth.errors import Unavailable
from chorale.tuner.search.bounded_storage import bounded_storage
from chorale.tuner.search.failures import search_failure
from chorale.tuner.search.storage import open_storage


class Stopped(InMemoryStorage):
    """Answers until `stop` is set, then when `go_on` is."""

    def __init__(self) -> None:
        super().__init__()
        self.stop, self.go_on = threading.Event(), threading.Event()

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        if self.stop.is_set():
            assert self.go_on.wait(30)
        super().set_trial_user_attr(trial_id, key, value)


def test_a_stopped_storage_is_a_failure_of_the_storage_within_its_limit() -> None:
    stopped = Stopped()
    storage = bounded_storage(lambda: stopped, limit_s=0.2)
    study = optuna.create_study(storage=storage)
    trial = study.ask()
    trial.set_user_attr("before", 1)
    stopped.stop.set()
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s") as raised:
        trial.set_user_attr("after", 1)
    for _ in range(5):  # what waits once is not asked again
        with pytest.raises(TimeoutError):
            study.ask()
    assert time.monotonic() - began_s < 2.0
    assert isinstance(search_failure(raised.value), Unavailable)
    stopped.go_on.set()


def test_opening_has_the_same_limit() -> None:
    with pytest.raises(TimeoutError):
        bounded_storage(lambda: time.sleep(5) or InMemoryStorage(), limit_s=0.1)  # type: ignore[func-returns-value]


def test_errors_come_through(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path / "journal")
    optuna.create_study(study_name="one", storage=storage)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        optuna.create_study(study_name="one", storage=storage)
    with pytest.raises(Unavailable, match="the Optuna storage must be reachable"):
        open_storage(f"sqlite:///{tmp_path / 'none' / 'study.db'}", tmp_path / "journal")


def test_a_study_in_a_database_is_what_it_is_without_the_thread(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'study.db'}"
    storage, sampler = open_storage(address, tmp_path / "journal"), optuna.samplers.TPESampler(seed=1)
    study = optuna.create_study(study_name="one", storage=storage, sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=12)
    values = [trial.value for trial in optuna.load_study(study_name="one", storage=address).trials]
    reference = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    reference.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=12)
    assert values == [trial.value for trial in reference.trials]
