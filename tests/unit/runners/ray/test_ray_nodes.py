"""Which nodes workers are sent to, with a cluster that is only a list."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chorale.runners.api.base import ResourceRequest
from chorale.runners.ray import fault_tolerance
from chorale.runners.ray.fault_tolerance import MAX_CONSECUTIVE_FAILURES, NODE_LABEL, WorkerNodes


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the nodes that Ray is made to report; tests change them in place."""
    nodes = [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": 2.0, "fabric": 1.0}, "Labels": {}} for name in ("a", "b")
    ]
    nodes.append({"NodeID": "c", "Alive": True, "Resources": {"CPU": 2.0}})
    monkeypatch.setattr(fault_tolerance.ray, "nodes", lambda: nodes)
    return nodes


def test_workers_go_anywhere_as_long_as_nothing_fails(cluster: list[dict[str, Any]]) -> None:
    nodes = WorkerNodes(ResourceRequest(resources={"fabric": 1}))
    assert nodes.suitable() == ["a", "b"]
    assert nodes.actor_options() == {"num_cpus": 1.0, "num_gpus": 0.0, "resources": {"fabric": 1}}


def test_a_retry_goes_elsewhere_where_there_is_an_elsewhere(cluster: list[dict[str, Any]]) -> None:
    nodes = WorkerNodes(ResourceRequest(resources={"fabric": 1}, labels={}))
    assert nodes.has_alternative_to("a")
    assert nodes.actor_options("a")["label_selector"] == {NODE_LABEL: "!in(a)"}
    cluster[1]["Alive"] = False
    assert not nodes.has_alternative_to("a")
    assert "label_selector" not in nodes.actor_options("a")


def test_a_node_that_fails_in_a_row_is_left_alone(
    cluster: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = WorkerNodes(ResourceRequest())
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        nodes.record_failure("b")
    nodes.record_success("b")
    nodes.record_failure("b")
    assert "label_selector" not in nodes.actor_options()
    with caplog.at_level(logging.WARNING, "chorale.ray"):
        for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
            nodes.record_failure("b")
    assert nodes.actor_options()["label_selector"] == {NODE_LABEL: "!in(b)"}
    assert nodes.actor_options("a")["label_selector"] == {NODE_LABEL: "!in(a,b)"}
    assert "node b failed 3 times in a row" in caplog.text


def test_flaky_nodes_are_better_than_none(cluster: list[dict[str, Any]]) -> None:
    nodes = WorkerNodes(ResourceRequest(labels={"rack": "7"}))
    assert nodes.suitable() == []
    assert nodes.actor_options()["label_selector"] == {"rack": "7"}
    nodes = WorkerNodes(ResourceRequest())
    for name in ("a", "b", "c"):
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            nodes.record_failure(name)
    assert "label_selector" not in nodes.actor_options()
