"""Fabrics under watch through the service: what a watch wrote, and what operators may ask of it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tuner.service.conftest import FakeTaskBackend, start_service
from tests.unit.tuner.service.test_api import TOKENS, access_of

LINK = {"link": "0>1", "state": "slow", "since_s": 5.0, "declared_bits_per_s": 1e8, "in_force_bits_per_s": 2e7}
INTERVAL = {"median": 2e7, "low": 1.9e7, "high": 2.1e7}


def state(time_s: float, **changes: Any) -> dict[str, Any]:
    """Return what a watch of two ranks writes."""
    link = {**LINK, "rate_bits_per_s": INTERVAL, "latency_s": None, "probes": 7, "lost": 1}
    document = {
        "format": "chorale-watch/1",
        "name": "pair",
        "topology": "complete:2",
        "time_s": time_s,
        "state": "link 0>1 at 20%",
        "is_held": False,
        "links": [link],
        "events": [],
        "table": {"digest": "d" * 64, "time_s": 5.0, "why": "link 0>1 at 20%", "spec": "complete:2", "costs": {}},
    }
    return {**document, **changes}


def write_state(home: Path, document: object) -> Path:
    folder = home / "watch" / "pair"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps(document))
    return folder


def test_a_watched_fabric_is_listed_shown_held_and_released(service, tmp_path):
    assert service.client.get("/v1/fabrics").json() == {"fabrics": []}
    write_state(tmp_path, state(time.time()))
    (row,) = service.client.get("/v1/fabrics").json()["fabrics"]
    assert (row["name"], row["is_running"], row["links"], row["table"]) == ("pair", True, {"slow": 1}, "d" * 64)
    fabric = service.client.get("/v1/fabrics/pair").json()
    assert fabric["links"] == [{**LINK, "rate_bits_per_s": INTERVAL, "latency_s": None, "probes": 7, "lost": 1}]
    folder = tmp_path / "watch" / "pair"
    assert service.post("/v1/fabrics/pair/hold").status_code == 202
    assert (folder / "hold").exists()
    assert service.post("/v1/fabrics/pair/release").status_code == 202
    assert service.post("/v1/fabrics/pair/release").status_code == 202
    assert not (folder / "hold").exists()
    assert service.post("/v1/fabrics/pair/roll-back").status_code == 202
    assert (folder / "roll-back").exists()
    assert (folder / "hold").exists()


def test_a_watch_that_does_not_run_is_not_rolled_back(service, tmp_path):
    folder = write_state(tmp_path, state(time.time() - 60))
    assert not service.client.get("/v1/fabrics/pair").json()["is_running"]
    assert service.post("/v1/fabrics/pair/roll-back").status_code == 409
    assert not (folder / "roll-back").exists()


@pytest.mark.parametrize("name", ["none", "pair%2F.."])
def test_only_watched_fabrics_have_a_page(service, tmp_path, name):
    write_state(tmp_path, state(time.time()))
    assert service.client.get(f"/v1/fabrics/{name}").status_code in (404, 422)


@pytest.mark.parametrize("document", [[], {}, {"format": "other/9", "links": [], "time_s": 0}, {"links": 3}])
def test_a_damaged_state_is_said_to_be(service, tmp_path, document):
    write_state(tmp_path, document)
    assert service.client.get("/v1/fabrics/pair").status_code == 409
    assert service.client.get("/v1/fabrics").json() == {"fabrics": []}


def test_planners_look_and_operators_hold(tmp_path):
    write_state(tmp_path, state(time.time()))
    with start_service(tmp_path, FakeTaskBackend(), access_of()) as client:
        headers = {"Authorization": f"Bearer {TOKENS['alice'][0]}"}
        assert client.get("/v1/fabrics", headers=headers).status_code == 200
        assert client.post("/v1/fabrics/pair/hold", json={}, headers=headers).status_code == 403
