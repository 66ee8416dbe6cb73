"""Specifications of jobs: what is refused at once, what is stored, what an earlier version stored."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.service.jobs.job_specs import BoundSpec, JobLimits, NetworkPlanner, SynthesisSpec
from chorale.tuner.service.jobs.job_store import Job, JobStore
from chorale.tuner.service.jobs.plan import JobPlanner
from chorale.tuner.service.jobs.tasks import JobTask, run_task
from tests.unit.tuner.service.conftest import Service, start_service
from tests.unit.tuner.service.fakes import FakeTaskBackend

EARLIER_KEY = "3f898216bee29b49458039082f4a370b9cb5c75b79d1ace15ac12afd7a625caf"
EARLIER: dict[str, Any] = {
    "id": "0" * 32,
    "owner": "local",
    "kind": "synthesis",
    "request": {
        "priority": 5,
        "topology": "ring:4",
        "method": "bfb",
        "collective": "allreduce",
        "root": 0,
        "k": None,
        "chunks": None,
        "objective": "height",
        "seed": 0,
        "size_bytes": None,
    },
    "key": EARLIER_KEY,
    "priority": 5,
    "memory_bytes": 356516672,
    "created_s": 1000.0,
    "state": "queued",
    "started_s": None,
    "finished_s": None,
    "progress": None,
    "error": None,
    "cached": "no",
}
"""A job as the first version of the service stored it, with the key of its result."""
FAILURE = {"kind": "refused", "rule": "a rule", "value": "a value", "way_out": "a way out"}
CANCELLED = {**EARLIER, "id": "1" * 32, "state": "cancelled", "progress": [1, 2], "finished_s": 1002.0}
FAILED = {**EARLIER, "id": "2" * 32, "state": "failed", "error": FAILURE, "finished_s": 1002.0}
FAILED["request"] = {**EARLIER["request"], "k": 3, "method": "a method that is gone"}


def write_jobs(folder: Path, *documents: dict[str, Any]) -> None:
    """Write rows as the first version of the service wrote them."""
    JobStore(folder).close()
    with sqlite3.connect(folder / "service.db") as database:
        for number, document in enumerate(documents, 1):
            row = (document["id"], number, document["owner"], document["state"], json.dumps(document))
            database.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", row)
    database.close()


def test_jobs_of_an_earlier_version_are_read_and_go_on(tmp_path: Path):
    write_jobs(tmp_path, CANCELLED, FAILED, EARLIER)
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        job = Service(client, backend).finished({"id": EARLIER["id"]})
        jobs = client.get("/v1/jobs").json()["jobs"]
    assert (job["state"], job["result"]) == ("done", EARLIER_KEY)
    assert [job["state"] for job in jobs] == ["done", "failed", "cancelled"]
    assert [job["request"] for job in jobs] == [EARLIER["request"], FAILED["request"], CANCELLED["request"]]
    assert jobs[1]["error"] == FAILURE


@pytest.mark.parametrize("document", [EARLIER, CANCELLED, FAILED])
def test_a_job_is_stored_as_the_earlier_version_stored_it(tmp_path: Path, document: dict[str, Any]):
    store = JobStore(tmp_path)
    store.save_job(Job.model_validate_json(json.dumps(document)))
    store.close()
    database = sqlite3.connect(tmp_path / "service.db")
    ((text,),) = database.execute("SELECT document FROM jobs")
    database.close()
    assert json.loads(text) == document | {"progress": None}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("syntheses", {"topology": "ring:4", "method": "bfb", "collective": "allreduce"}, EARLIER_KEY),
        ("finds", {"nodes": 16, "degree": 4}, "8c6329da93416e832eab8ccae2a29bad686943262767dbf4992b3e72120239d1"),
    ],
)
def test_results_of_an_earlier_version_are_given_out(tmp_path: Path, path: str, body: dict[str, Any], key: str):
    store = JobStore(tmp_path)
    store.save_result(key, "any", {"stored": True}, {})
    store.close()
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        answer = client.post(f"/v1/{path}", json=body)
    assert (answer.status_code, answer.json()["cached"], answer.json()["result"]) == (200, "yes", key)


def test_bounds_of_a_version_that_knew_no_switches_that_add_are_computed_anew(tmp_path: Path):
    store = JobStore(tmp_path)
    key = "4cd6b83aaa026b1989baee13d819992d68e7163107d33fefc93cb55badd9f0c8"
    store.save_result(key, "any", {"stored": True}, {})
    store.close()
    with start_service(tmp_path, FakeTaskBackend()) as client:
        answer = client.post("/v1/bounds", json={"topology": "a100:2"})
    assert (answer.status_code, answer.json()["cached"]) == (202, "no")


RING = {"topology": "ring:4", "method": "bfb"}


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("syntheses", {**RING, "k": 3}, ("bfb has the options chunks", "k: 3", "leave out `k`")),
        ("syntheses", {**RING, "seed": 1}, ("bfb has the options chunks", "seed: 1")),
        ("syntheses", {**RING, "objective": "trees"}, ("objective: trees",)),
        ("syntheses", {"topology": "hypercube:3", "method": "bfb", "k": 2}, ("leave out `k`",)),
        ("syntheses", {"topology": "a100:2", "method": "forest", "chunks": 2}, ("leave out `chunks`",)),
        ("syntheses", {**RING, "chunks": 2**15 + 1}, ("chunks per shard must be 1 to 32768", "32769")),
        ("syntheses", {**RING, "chunks": 0}, ("body.chunks", "greater than or equal to 1")),
        ("syntheses", {**RING, "kind": "bound"}, ("body.kind",)),
        ("syntheses", {**RING, "topology": "ring:1"}, ("ring",)),
        ("bounds", {"topology": "a100:2", "k": 0}, ("body.k",)),
        ("bounds", {"topology": "a100:2", "method": "bfb"}, ("body.method", "Extra inputs")),
        ("finds", {"nodes": 4, "degree": 4}, ("degree must be below",)),
        ("programs", {"result": "0" * 64, "target": "magic"}, ("unknown target", "magic")),
        ("programs", {"result": "0" * 64, "target": "msccl-xml", "channels": 0}, ("body.channels",)),
    ],
)
def test_wrong_options_are_refused_at_once(service: Service, path: str, body: dict[str, Any], parts: tuple[str, ...]):
    answer = service.client.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert set(error) == {"rule", "value", "way_out"}
    assert [part for part in parts if part not in f"{error['rule']} {error['value']} {error['way_out']}"] == []
    assert service.client.get("/v1/jobs").json()["jobs"] == []


def test_a_network_is_built_once_and_goes_to_the_worker(tmp_path: Path):
    store = JobStore(tmp_path)
    planner = JobPlanner(NetworkPlanner(JobLimits()), store)
    specs = [SynthesisSpec(topology="ring:4", method=method) for method in ("bfb", "ring")]
    networks = []
    for spec in specs:
        planner.plan(spec)
        networks.append(planner.networks.cached(spec.topology))
    first, second = networks
    store.close()
    assert first is not None
    assert first is second


def test_a_worker_builds_a_network_that_is_not_kept():
    spec = BoundSpec(topology="ring:4")
    with_network = run_task(JobTask(spec, parse_topology("ring:4")), lambda _done, _total: None)
    assert run_task(JobTask(spec), lambda _done, _total: None) == with_network


def test_large_networks_are_not_kept():
    networks = NetworkPlanner(JobLimits(), cached_links=20)
    networks.plan("ring:4")
    networks.plan("complete:4")
    assert networks.cached("ring:4") is not None
    networks.plan("ring:6")
    assert networks.cached("complete:4") is None or networks.cached("ring:4") is None
    networks.plan("complete:8")
    assert networks.cached("complete:8") is None
