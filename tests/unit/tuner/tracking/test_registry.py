"""Which versions are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import LIBRARY_ALGORITHM, PROGRAM_ID, RUNNER, is_same


def tags(runner: str = "local") -> dict[str, str]:
    return {RUNNER: runner, PROGRAM_ID: "p"}


def test_the_same_program_from_another_kind_of_runner_is_another_version() -> None:
    assert is_same(tags(), tags())
    assert not is_same(tags(runner="simulated"), tags())
    assert not is_same({}, tags())


def test_algorithms_of_the_library_are_versions_by_name() -> None:
    assert is_same({RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"}, {RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"})
    assert not is_same({RUNNER: "oneccl", LIBRARY_ALGORITHM: "ring"}, {RUNNER: "oneccl", LIBRARY_ALGORITHM: "direct"})
    assert not is_same({RUNNER: "local"}, {RUNNER: "local", LIBRARY_ALGORITHM: "ring"})


def test_the_version_behind_an_alias_is_found_and_nothing_where_there_is_none(home: Home, tmp_path: Path) -> None:
    store = MlflowStore(home.mlflow_uri, tmp_path / "artifacts")
    assert store.aliased("model", "champion") is None
    run = store.start_run(store.experiment("small"), "run", {}, 1)
    first = store.register("model", {"of": "model"}, {"number": "1"}, run, {"file": b"1"})
    assert store.aliased("model", "champion") is None
    second = store.register("model", {"of": "nobody"}, {"number": "2"}, run, {"file": b"2"})
    store.set_alias(first, "champion")
    assert store.aliased("model", "champion") == first
    store.set_alias(second, "champion")
    assert store.aliased("model", "champion") == second
    assert store.model_tags("model") == {"of": "model"}


def test_what_cannot_be_asked_is_not_taken_for_nothing(home: Home, tmp_path: Path) -> None:
    store = MlflowStore(home.mlflow_uri, tmp_path / "artifacts")
    (home.root / "mlflow.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(Unavailable):
        store.aliased("model", "champion")


def test_a_server_with_logins_forbids_questions_about_models_that_it_does_not_have(tmp_path: Path) -> None:
    class ForbiddenError(Exception):
        error_code = "PERMISSION_DENIED"

    def ask() -> str:
        raise ForbiddenError

    mlflow = MlflowStore(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts")
    assert mlflow._of_model("chorale.new", ask) is None
    mlflow._client.create_registered_model("chorale.of-others")
    with pytest.raises(ForbiddenError):
        mlflow._of_model("chorale.of-others", ask)
