"""Campaigns through the service: launched, watched while they write, stopped, resumed, kept apart by owner."""

from pathlib import Path

import pytest

from chorale.runners.api.base import FailureKind
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import Candidate, FailedTrial, PrunedTrial
from chorale.tuner.trials.store import Store
from tests.campaigns import complete, small_campaign
from tests.unit.tuner.service.conftest import FakeLaunches, FakeTaskBackend, Service, start_service
from tests.unit.tuner.service.test_api import ALICE, BOB, ROOT, access_of

DOCUMENT = small_campaign().model_dump(by_alias=True, mode="json")


@pytest.fixture
def launches() -> FakeLaunches:
    return FakeLaunches()


@pytest.fixture
def service(tmp_path: Path, launches: FakeLaunches):
    with start_service(tmp_path, FakeTaskBackend(), launches=launches) as client:
        yield Service(client, FakeTaskBackend())


def written(home: Path, number: int = 1) -> Store:
    """Return the store of a launch that goes on writing."""
    folder = home / "campaigns" / "small" / str(number)
    folder.mkdir(parents=True)
    return Store(folder, Launch("launch", number, {}, DOCUMENT, 5.0))


def test_a_launch_is_checked_resolved_and_begun_once(service, launches):
    for changes, part in (
        ({"topology": "ring:100000"}, "nodes, about"),
        ({"unknown": 1}, "unknown"),
        ({"search": {"methods": ["magic"]}}, "magic"),
        ({"tracking": {"mlflow_uri": "http://elsewhere.example"}}, "leave both out"),
    ):
        answer = service.post("/v1/campaigns", campaign={**DOCUMENT, **changes})
        assert (answer.status_code, part in str(answer.json()["error"])) == (422, True), answer.json()
    assert not launches.started
    answer = service.post("/v1/campaigns", campaign=DOCUMENT)
    assert (answer.status_code, answer.json()) == (202, {"name": "small", "state": "running"})
    ((campaign, is_resumed),) = launches.started
    assert campaign["sizes"] == [4096, 65536]
    assert campaign["tracking"]["mlflow_uri"]
    assert not is_resumed
    assert service.post("/v1/campaigns", campaign=DOCUMENT).status_code == 429


def test_trials_are_seen_as_they_are_written(service, tmp_path):
    service.post("/v1/campaigns", campaign=DOCUMENT)
    assert service.client.get("/v1/campaigns/small").status_code == 404
    store = written(tmp_path)
    store.add(complete(Candidate("bfb"), 1.0))
    first = service.client.get("/v1/campaigns/small").json()
    assert [trial["label"] for trial in first["trials"]] == ["bfb"]
    assert first["state"] == "running"
    assert [row["speedup"] for row in first["best"]] == [2.0, 2.0]
    failed = FailedTrial("f" * 64, 2, Candidate("ring"), 0.0, 1.0, FailureKind.CRASH, "a rank died")
    pruned = PrunedTrial("a" * 64, 3, Candidate("ring", chunks=2), 0.0, 0.0, "no use")
    for record in (failed, pruned, complete(Candidate("bfb", chunks=2), 0.5, 4)):
        store.add(record)
    with (tmp_path / "campaigns/small/1/trials.jsonl").open("ab") as journal:
        journal.write(b'{"half a line')  # the writer is in the middle of it
    later = service.client.get("/v1/campaigns/small", params={"after": 1}).json()
    assert [trial["number"] for trial in later["trials"]] == [2, 3, 4]
    assert [trial["reason"] for trial in later["trials"]] == ["crash: a rank died", "no use", None]
    assert {row["label"] for row in later["best"]} == {"bfb chunks=2"}
    assert later["counts"] == {"complete": 2, "failed": 1, "pruned": 1}
    (row,) = service.client.get("/v1/campaigns").json()["campaigns"]
    assert (row["name"], row["trials"], row["budget"], row["topology"]) == ("small", 4, 6, "ring:4")
    store.close()


def test_files_of_complete_trials_are_given_out(service, tmp_path):
    service.post("/v1/campaigns", campaign=DOCUMENT)
    store = written(tmp_path)
    trial = complete(Candidate("bfb"))
    store.keep(trial.schedule_id, b"schedule", trial.program_id, "program")
    store.add(trial)
    for kind in ("schedule", "program"):
        assert service.client.get(f"/v1/campaigns/small/trials/{trial.trial_id}/{kind}").content == kind.encode()
    assert service.client.get(f"/v1/campaigns/small/trials/{'0' * 64}/program").status_code == 404
    assert service.client.get(f"/v1/campaigns/small/trials/{trial.trial_id}/journal").status_code == 422
    store.close()


def test_a_campaign_is_stopped_and_resumed_and_a_damaged_journal_is_named(service, launches, tmp_path):
    assert service.post("/v1/campaigns/small/stop").status_code == 404
    service.post("/v1/campaigns", campaign=DOCUMENT)
    written(tmp_path).close()
    assert service.post("/v1/campaigns/small/stop").json()["state"] == "ended"
    assert service.post("/v1/campaigns/small/resume").json()["state"] == "running"
    assert launches.started[-1][1]  # the newest launch goes on
    with (tmp_path / "campaigns/small/1/trials.jsonl").open("ab") as journal:
        journal.write(b"{}\n")
    assert service.client.get("/v1/campaigns/small").status_code == 409


def test_campaigns_learn_nothing_from_those_of_others(tmp_path, launches):
    with start_service(tmp_path, FakeTaskBackend(), access_of(), launches=launches) as client:
        service = Service(client, FakeTaskBackend())
        assert service.post("/v1/campaigns", ALICE, campaign=DOCUMENT).status_code == 202
        written(tmp_path).close()
        other = {**DOCUMENT, "name": "other"}
        assert service.post("/v1/campaigns", BOB, campaign={**other, "prior": ["small"]}).status_code == 404
        assert service.post("/v1/campaigns", BOB, campaign=other).status_code == 202
        assert service.post("/v1/campaigns", ROOT, campaign={**DOCUMENT, "name": "third"}).status_code == 202
        assert [campaign["prior"] for campaign, _ in launches.started] == [["record"]] * 2 + ["auto"]
