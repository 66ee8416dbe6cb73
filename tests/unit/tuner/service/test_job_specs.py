"""Specifications of jobs: what is refused at once, how networks are kept."""

from pathlib import Path
from typing import Any

import pytest

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.service.jobs.job_specs import BoundSpec, JobLimits, NetworkPlanner, SynthesisSpec
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.plan import JobPlanner
from chorale.tuner.service.jobs.tasks import JobTask, run_task
from tests.unit.tuner.service.conftest import Service

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
