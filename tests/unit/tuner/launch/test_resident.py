"""Launches that live in a cluster, as the command starts, watches and ends them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.runners.ray.detached import DetachedActor, DetachedActors
from chorale.tuner.launch.detached import LaunchState, detached_name
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]

PATIENCE_S = 100.0


@pytest.fixture(autouse=True)
def _no_launch_stays() -> Iterator[None]:
    yield
    with DetachedActors() as residents:
        left = residents.find(detached_name("small"))
        if left is not None:
            left.remove()


def campaign_file(folder: Path, **changes: Any) -> Path:
    path = folder / "small.yaml"
    document = small_campaign(**changes).model_dump(by_alias=True, mode="json")
    path.write_text(yaml.safe_dump(document))
    return path


def resident() -> DetachedActor:
    found = DetachedActors().find(detached_name("small"))
    assert found is not None
    return found


@pytest.mark.slow
def test_a_launch_is_stopped_and_resumed(capsys, home, tmp_path):
    path = campaign_file(tmp_path, budget={"trials": 12}, repeats=1000)
    assert chorale(capsys, "tune", path, "--detach").code == 0
    until(lambda: resident().call("status", 0).done >= 1, PATIENCE_S)
    second = chorale(capsys, "tune", path, "--detach")
    stopped = chorale(capsys, "tune", "--stop", "small")
    assert (second.code, stopped.code) == (1, 130)
    assert "chorale tune --stop small" in second.stderr
    assert "continue with --resume" in stopped.stderr
    assert chorale(capsys, "tune", path, "--detach", "--resume").code == 0
    assert chorale(capsys, "tune", "--follow", "small").code == 0
    assert [folder.name for folder in (home.campaigns / "small").iterdir()] == ["1"]


def test_what_ends_a_launch_is_told_to_who_follows_it(capsys, home, tmp_path):
    needs = {"resources": {"fabric": 1}, "patience_s": 0.5}
    path = campaign_file(tmp_path, runner={"kind": "simulated", "needs": needs})
    assert chorale(capsys, "tune", path, "--detach").code == 0
    assert "a node with 1 CPU, 1 fabric to measure" in chorale(capsys, "tune", "--follow", "small", code=3).stderr
    assert resident().call("status", 0).state == LaunchState.FAILED


def test_who_is_not_there_cannot_be_followed(capsys, home, monkeypatch):
    with DetachedActors() as residents:
        address = residents.address
    (home.campaigns / "small" / "1").mkdir(parents=True)
    for option in ("--follow", "--stop"):
        elsewhere = chorale(capsys, "tune", option, "nobody", "--address", address, code=1)
        assert "the campaign nobody has no detached launch in this cluster" in elsewhere.stderr
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        misspelt = chorale(capsys, "tune", option, "smal")  # no cluster is named, so none is asked
        assert misspelt.code == 2
        assert "unknown campaign 'smal'; did you mean 'small'?" in misspelt.stderr
        assert chorale(capsys, "tune", option, "small").code == 1
