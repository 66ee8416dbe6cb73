"""Launches that live in a cluster, as the command starts, watches and ends them."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.runners.ray.cluster import ray
from chorale.runners.ray.detached import DetachedActor, DetachedActors
from chorale.tuner.files.home import Home
from chorale.tuner.launch.detached import LaunchState, detached_name
from chorale.tuner.trials.store import Store
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.integration.launch_files import tracked_trials

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


def wait_for_trials(trials: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while resident().call("status", 0).done < trials:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def pid_of(one: DetachedActor) -> int:
    return int(ray.get(one._actor.__ray_call__.remote(lambda _self: os.getpid())))


@pytest.mark.slow
def test_a_launch_goes_on_after_its_own_death(capsys: pytest.CaptureFixture[str], home: Home, tmp_path: Path) -> None:
    path = campaign_file(tmp_path, budget={"trials": 12})
    assert "chorale tune --follow small" in chorale(capsys, "tune", path, "--detach").stderr
    wait_for_trials(2)
    os.kill(pid_of(resident()), signal.SIGKILL)
    followed = chorale(capsys, "tune", "--follow", "small", "--json")
    assert followed.code == 0, followed.stderr
    assert followed.document["trials"] == {"complete": 12, "failed": 0, "pruned": 0}
    assert followed.document["launch"] == 1
    store = Store(home.campaigns / "small" / "1")
    store.close()
    assert len({trial.candidate for trial in store.trials}) == len(store.trials) == 12
    assert tracked_trials(home, "small") == {trial.trial_id: "FINISHED" for trial in store.trials}


@pytest.mark.slow
def test_a_launch_is_stopped_and_resumed(capsys: pytest.CaptureFixture[str], home: Home, tmp_path: Path) -> None:
    path = campaign_file(tmp_path, budget={"trials": 12}, repeats=1000)
    assert chorale(capsys, "tune", path, "--detach").code == 0
    wait_for_trials(1)
    second = chorale(capsys, "tune", path, "--detach")
    stopped = chorale(capsys, "tune", "--stop", "small")
    assert (second.code, stopped.code) == (1, 130)
    assert "chorale tune --stop small" in second.stderr
    assert "go on with --resume" in stopped.stderr
    assert chorale(capsys, "tune", path, "--detach", "--resume").code == 0
    assert chorale(capsys, "tune", "--follow", "small").code == 0
    assert [folder.name for folder in (home.campaigns / "small").iterdir()] == ["1"]


def test_what_ends_a_launch_is_told_to_who_follows_it(
    capsys: pytest.CaptureFixture[str], home: Home, tmp_path: Path
) -> None:
    needs = {"resources": {"fabric": 1}, "patience_s": 0.5}
    path = campaign_file(tmp_path, runner={"kind": "simulated", "needs": needs})
    assert chorale(capsys, "tune", path, "--detach").code == 0
    followed = chorale(capsys, "tune", "--follow", "small")
    assert followed.code == 3
    assert "a node with 1 CPU, 1 fabric to measure" in followed.stderr
    assert resident().call("status", 0).state == LaunchState.FAILED


def test_who_is_not_there_cannot_be_followed(
    capsys: pytest.CaptureFixture[str], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DetachedActors() as residents:
        address = residents.address
    (home.campaigns / "small" / "1").mkdir(parents=True)
    for option in ("--follow", "--stop"):
        elsewhere = chorale(capsys, "tune", option, "nobody", "--address", address)
        assert elsewhere.code == 1
        assert "the campaign nobody has no detached launch in this cluster" in elsewhere.stderr
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        misspelt = chorale(capsys, "tune", option, "smal")  # no cluster is named, so none is asked
        assert misspelt.code == 2
        assert "unknown campaign 'smal'; did you mean 'small'?" in misspelt.stderr
        assert chorale(capsys, "tune", option, "small").code == 1
