"""Nodes that answer no more are known within their limit, and are left."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from chorale.runners.api.base import ResourceRequest
from chorale.runners.ray import fault_tolerance
from chorale.runners.ray.fault_tolerance import NODE_LABEL, WorkerNodes
from chorale.runners.ray.silent_nodes import SilentNodes

LIMIT_S = 30.0


class Network:
    """Raylets that answer until their address is in `silent`."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked = threading.Semaphore(0)

    def answers(self, address: str, timeout_s: float) -> bool:
        self.asked.release()
        return address not in self.silent

    def wait_for_questions(self, count: int) -> None:
        for _ in range(count):
            assert self.asked.acquire(timeout=LIMIT_S)


def wait_until_silent(nodes: SilentNodes, expected: set[str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while nodes.now != expected:
        assert time.monotonic() < deadline_s, nodes.now
        time.sleep(0.005)


def test_a_node_is_silent_after_its_limit_and_no_more_when_it_answers_again() -> None:
    network = Network()
    with closing(SilentNodes(network.answers, limit_s=0.05, ping_s=0.01)) as nodes:
        nodes.watch({"a": "10.0.0.1:1", "b": "10.0.0.2:1"})
        network.silent.add("10.0.0.2:1")
        wait_until_silent(nodes, {"b"})
        network.silent.clear()
        wait_until_silent(nodes, set())


def test_a_node_that_is_asked_again_is_not_silent_for_what_was_before() -> None:
    network = Network()
    network.silent.add("10.0.0.1:1")
    with closing(SilentNodes(network.answers, limit_s=0.3, ping_s=0.01)) as nodes:
        nodes.watch({"a": "10.0.0.1:1"})
        wait_until_silent(nodes, {"a"})
        nodes.watch({"b": "10.0.0.2:1"})
        assert nodes.now == frozenset()
        nodes.watch({"a": "10.0.0.1:1"})
        assert nodes.now == frozenset()
        wait_until_silent(nodes, {"a"})


# Executors take nothing more while the main thread still waits for what they do, or calls what is registered.
ENDING = """\
import atexit, time
from concurrent.futures import ThreadPoolExecutor
from chorale.runners.ray.silent_nodes import SilentNodes
SilentNodes(lambda address, limit_s: True, ping_s=0.01).watch({"a": "10.0.0.1:1"})
time.sleep(0.1)
{last}
"""


@pytest.mark.parametrize("last", ["atexit.register(time.sleep, 0.3)", "ThreadPoolExecutor().submit(time.sleep, 0.3)"])
def test_the_end_of_a_process_says_nothing(last: str) -> None:
    script = ENDING.replace("{last}", last)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nodes_that_nobody_asks_are_not_silent() -> None:
    nodes = SilentNodes(Network().answers, limit_s=0.0)
    assert nodes.now == frozenset()
    network = Network()
    with closing(SilentNodes(network.answers, limit_s=1e6, ping_s=0.01)) as patient:
        network.silent.add("10.0.0.1:1")
        patient.watch({"a": "10.0.0.1:1"})
        network.wait_for_questions(3)
        assert patient.now == frozenset()


def test_new_workers_keep_off_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    raylets: list[dict[str, Any]] = [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": 2.0}, "NodeManagerAddress": name, "NodeManagerPort": 1}
        for name in ("a", "b")
    ]
    monkeypatch.setattr(fault_tolerance.ray, "nodes", lambda: raylets)
    network = Network()
    with closing(SilentNodes(network.answers, limit_s=0.05, ping_s=0.01)) as silent:
        nodes = WorkerNodes(ResourceRequest(), silent)
        nodes.watch(["b"])
        network.silent.add("b:1")
        wait_until_silent(silent, {"b"})
        assert nodes.actor_options()["label_selector"] == {NODE_LABEL: "!in(b)"}
        assert nodes.has_alternative_to("b")
        assert not nodes.has_alternative_to("a")
