"""Fabrics under watch through the service: what a watch wrote, and what operators may ask of it."""

import json
import time
from pathlib import Path

import pytest

from tests.browser.fabric_states import cube_state
from tests.unit.tuner.service.conftest import FakeTaskBackend, start_service
from tests.unit.tuner.service.test_api import TOKENS, access_of


def write_state(home: Path, document: object) -> Path:
    folder = home / "watch" / "cube"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps(document))
    return folder


def test_a_watched_fabric_is_listed_shown_held_and_released(service, tmp_path):
    assert service.client.get("/v1/fabrics").json() == {"fabrics": []}
    state = cube_state(time.time(), is_cut=True)
    write_state(tmp_path, state)
    (row,) = service.client.get("/v1/fabrics").json()["fabrics"]
    assert (row["name"], row["is_running"], row["table"]) == ("cube", True, "7f3a" * 16)
    assert row["links"] == {"dead": 2, "healthy": 22}
    fabric = service.client.get("/v1/fabrics/cube").json()
    assert fabric["links"] == state["links"]
    folder = tmp_path / "watch" / "cube"
    assert service.post("/v1/fabrics/cube/hold").status_code == 202
    assert (folder / "hold").exists()
    assert service.post("/v1/fabrics/cube/release").status_code == 202
    assert service.post("/v1/fabrics/cube/release").status_code == 202
    assert not (folder / "hold").exists()
    assert service.post("/v1/fabrics/cube/roll-back").status_code == 202
    assert (folder / "roll-back").exists()
    assert (folder / "hold").exists()


def test_a_watch_that_does_not_run_is_not_rolled_back(service, tmp_path):
    folder = write_state(tmp_path, cube_state(time.time() - 60, is_cut=False))
    assert not service.client.get("/v1/fabrics/cube").json()["is_running"]
    assert service.post("/v1/fabrics/cube/roll-back").status_code == 409
    assert not (folder / "roll-back").exists()


@pytest.mark.parametrize("name", ["none", "cube%2F.."])
def test_only_watched_fabrics_have_a_page(service, tmp_path, name):
    write_state(tmp_path, cube_state(time.time(), is_cut=True))
    assert service.client.get(f"/v1/fabrics/{name}").status_code in (404, 422)


@pytest.mark.parametrize("document", [[], {}, {"format": "other/9", "links": [], "time_s": 0}, {"links": 3}])
def test_a_damaged_state_is_said_to_be(service, tmp_path, document):
    write_state(tmp_path, document)
    assert service.client.get("/v1/fabrics/cube").status_code == 409
    assert service.client.get("/v1/fabrics").json() == {"fabrics": []}


def test_planners_look_and_operators_hold(tmp_path):
    write_state(tmp_path, cube_state(time.time(), is_cut=True))
    with start_service(tmp_path, FakeTaskBackend(), access_of()) as client:
        headers = {"Authorization": f"Bearer {TOKENS['alice'][0]}"}
        assert client.get("/v1/fabrics", headers=headers).status_code == 200
        assert client.post("/v1/fabrics/cube/hold", json={}, headers=headers).status_code == 403
