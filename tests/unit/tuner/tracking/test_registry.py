"""Which versions are the same, which wins a size class, and champions of similar networks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.tracking.champions import best_programs
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.tracking.registry import (
    MANIFEST_FILE,
    PROGRAM_ID,
    RUNNER,
    SIZE_CLASS,
    degree,
    family,
    is_same,
    similar_champions,
)
from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from tests.campaigns import complete, small_campaign


def tags(runner: str = "local") -> dict[str, str]:
    return {RUNNER: runner, PROGRAM_ID: "p"}


def test_the_same_program_from_another_kind_of_runner_is_another_version() -> None:
    assert is_same(tags(), tags())
    assert not is_same(tags(runner="simulated"), tags())
    assert not is_same({}, tags())


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


SIZES = (1024, 1536, 4096)


def standing(channels: int, times: tuple[float, ...], **baselines: float) -> RankedTrial:
    beside = {name.replace("_", ":"): (time,) for name, time in (baselines or {"ring": 8.0}).items()}
    sizes = tuple(SizeResult(size, size, (time,), beside) for size, time in zip(SIZES, times, strict=True))
    return RankedTrial(complete(Candidate("bfb", channels=channels), number=channels), sizes)


def test_sizes_of_one_class_are_won_together() -> None:
    small, large = best_programs([standing(1, (1.0, 4.0, 8.0)), standing(2, (3.0, 2.0, 2.0))])
    assert (small.size_class.exponent, large.size_class.exponent) == (10, 12)
    assert small.stored is not None
    assert small.stored.candidate.channels == 1  # sqrt(8 * 2) against sqrt(8/3 * 4)
    assert small.speedup == pytest.approx(4.0)
    assert small.time_us == pytest.approx(2e6)
    assert large.trial.candidate.channels == 2
    assert best_programs([]) == []


def test_what_no_program_clearly_beats_answers_itself() -> None:
    small, large = best_programs([standing(1, (7.9, 7.9, 4.0), ring=9.0, library_own=8.0)])
    assert (small.baseline, small.library, small.stored) == ("library:own", "own", None)
    assert small.time_us == pytest.approx(8e6)
    assert small.speedup == 1
    assert (large.baseline, large.library) == (None, None)
    [tie, _] = best_programs([standing(1, (8.0, 8.0, 1.0), ring=8.0)])
    assert (tie.baseline, tie.library, tie.stored) == ("ring", None, None)


WINNER = Candidate("bfb", chunks=2)


@dataclass
class FakeRegistry:
    """Models of (spec, exponent of the size class, manifest)."""

    models_by_name: dict[str, tuple[str, int, dict[str, Any]]]

    def models(self, tags: dict[str, str]) -> dict[str, dict[str, str]]:
        assert tags == {"chorale.collective": "allreduce"}
        return {
            name: {"chorale.topology": spec, SIZE_CLASS: str(exponent)}
            for name, (spec, exponent, _) in self.models_by_name.items()
        }

    def aliased(self, name: str, alias: str) -> ModelVersion | None:
        return None if name == "nobody" else ModelVersion(name, "1", {}, "run")

    def download(self, version: ModelVersion) -> dict[str, bytes]:
        return {MANIFEST_FILE: json.dumps(self.models_by_name[version.name][2]).encode()}


def model(spec: str, exponent: int, candidate: Candidate = WINNER) -> tuple[str, int, dict[str, Any]]:
    return spec, exponent, {"topology": {"spec": spec}, "parameters": candidate.parameters}


def found(**models: tuple[str, int, dict[str, Any]]) -> list[Candidate]:
    registry: Any = FakeRegistry(models)
    return similar_champions(registry, small_campaign(), load_topology("ring:4"))  # at 2^12 and 2^16 bytes


def test_the_same_family_and_degree_at_near_sizes_are_similar() -> None:
    near, exact = Candidate("ring"), Candidate("bfb")
    assert found(a=model("ring:8", 17, near), b=model("ring:16", 12, exact)) == [exact, near]
    assert found(a=model("ring:8", 12), b=model("ring:16", 16)) == [WINNER]


@pytest.mark.parametrize(
    "other",
    [model("hypercube:2", 12), model("ring:8", 14), model("biring:4,8", 12), ("ring:8", 12, {"no": "manifest"})],
)
def test_other_networks_sizes_and_what_cannot_be_read_are_not(other: tuple[str, int, dict[str, Any]]) -> None:
    assert found(a=other) == []


def test_models_without_a_champion_say_nothing() -> None:
    assert found(nobody=model("ring:8", 12)) == []


def test_families_and_degrees() -> None:
    assert [family(spec) for spec in ("torus:4x4", "line(ring:4)", "diamond")] == ["torus", "line", "diamond"]
    assert family("without(scaled(torus:4x4;link=0-1;factor=1/2);node=3)") == "torus"
    assert [degree(load_topology(spec)) for spec in ("ring:5", "torus:3x3", "hypercube:4")] == [2, 4, 4]
