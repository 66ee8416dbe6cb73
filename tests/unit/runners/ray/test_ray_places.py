"""Nodes of a Ray cluster as places; what happens if its head or its raylet is gone."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chorale.runners.api.base import ResourceRequest
from chorale.runners.process_launch.processes import STDOUT, ProcessSpec
from chorale.runners.ray import watch
from chorale.runners.ray.hosts import RayHost, RayHosts, nodes_by_rank, nodes_with_gpus
from chorale.runners.ray.watch import ClusterLost, ClusterWatch, handle_loss
from chorale.synth.errors import InvalidInput, Unavailable
from tests.waiting import until


def _node(address: str, *resources: str) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "NodeID": "n", "Resources": dict.fromkeys(resources, 1.0)}


def test_ranks_are_nodes_in_the_order_of_their_resources_or_addresses() -> None:
    nodes = [_node("10.0.0.10"), _node("10.0.0.9"), _node("10.0.0.2")]
    assert nodes_by_rank(nodes, 2) == [nodes[2], nodes[1]]
    assert nodes_by_rank(nodes, 4) is None
    nodes = [_node("10.0.0.1", "chorale_rank_1"), _node("10.0.0.2"), _node("10.0.0.3", "CPU", "chorale_rank_0")]
    assert nodes_by_rank(nodes, 2) == [nodes[2], nodes[0]]
    assert nodes_by_rank(nodes, 3) is None
    node = _node("10.0.0.1", "chorale_rank_0", "chorale_rank_1")
    assert nodes_by_rank([node], 2) == [node, node]


@pytest.fixture
def place() -> Iterator[RayHost]:
    from chorale.runners.ray.cluster import ray  # noqa: PLC0415 - importing it takes a second

    (node,) = ray.nodes()
    made = RayHost(node["NodeID"], node["NodeManagerAddress"], ResourceRequest())
    yield made
    made.close()


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnACluster:
    def test_a_process_runs_and_is_read_from_afar(self, place: RayHost) -> None:
        started = place.start(
            ProcessSpec(("/bin/sh", "-c", 'cat given; printf "$WORD"; exit 3'), {"WORD": "!"}, {"given": b"yes"})
        )
        until(lambda: started.poll() is not None)
        assert started.poll() == 3
        assert started.read(STDOUT) == b"yes!"
        assert started.read("absent") == b""
        started.close()
        started.close()

    def test_a_killed_process_has_the_code_of_its_signal_and_bad_jobs_raise(self, place: RayHost) -> None:
        started = place.start(ProcessSpec(("sleep", "100")))
        assert started.poll() is None
        started.kill()
        assert started.poll() == -9
        with pytest.raises(InvalidInput, match="a/b is not a plain file name"):
            place.start(ProcessSpec(("true",), {}, {"a/b": b""}))

    def test_a_lost_node_counts_as_killed_and_takes_its_processes_along(self, place: RayHost) -> None:
        started = place.start(ProcessSpec(("/bin/sh", "-c", "echo $$; exec sleep 100")))
        until(lambda: started.read(STDOUT))
        pid = int(started.read(STDOUT))
        place.close()
        until(lambda: not os.path.exists(f"/proc/{pid}"))
        assert started.poll() == -9
        assert started.read(STDOUT) == b""
        started.close()

    def test_too_few_nodes_give_no_places_nor_does_no_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes = RayHosts(2)
        assert nodes.hosts is None
        nodes.close()
        monkeypatch.setattr("chorale.runners.ray.hosts.ray.is_initialized", lambda: False)
        assert RayHosts(1).hosts is None


ANY = ResourceRequest(cpus=0)


def _gpu_node(address: str, gpus: float) -> dict[str, Any]:
    return {"NodeID": address, "NodeManagerAddress": address, "Resources": {"CPU": 8.0, "GPU": gpus} if gpus else {}}


def test_nodes_of_a_ray_cluster_are_chosen_by_gpus_labels_and_resources_and_ordered_by_ranks() -> None:
    gpus = {"10.0.0.10": 8.0, "10.0.0.2": 8.0, "10.0.0.1": 0, "10.0.0.3": 4.0}
    alive = [_gpu_node(address, count) for address, count in gpus.items()]
    assert nodes_with_gpus(alive, 16, None, ANY) == [alive[1], alive[0]]
    assert nodes_with_gpus(alive, 12, 4, ANY) == [alive[1], alive[3], alive[0]]
    assert nodes_with_gpus(alive, 4, None, ANY) == [alive[1]]
    # Nodes of one machine have one address; and a job's nodes are ranks in the order of the job.
    alive = [_gpu_node("10.0.0.1", 8.0), _gpu_node("10.0.0.2", 8.0), _gpu_node("10.0.0.3", 8.0)]
    alive[2]["Resources"]["chorale_rank_0"] = alive[0]["Resources"]["chorale_rank_1"] = 1.0
    assert nodes_with_gpus(alive, 24, None, ANY) == [alive[2], alive[0], alive[1]]
    alive = [_gpu_node("10.0.0.1", 8.0), {**_gpu_node("10.0.0.2", 8.0), "Labels": {"rail": "a"}}]
    alive.append({**alive[1], "NodeID": "with fabric", "Resources": {"GPU": 8.0, "fabric": 1.0}})
    assert nodes_with_gpus(alive, 8, None, ResourceRequest(0, labels={"rail": "a"})) == [alive[1]]
    assert nodes_with_gpus(alive, 8, None, ResourceRequest(0, resources={"fabric": 1})) == [alive[2]]
    with pytest.raises(Unavailable, match="no GPUs"):
        nodes_with_gpus(alive, 8, None, ResourceRequest(0, labels={"rail": "b"}))


@pytest.mark.parametrize(
    ("alive", "ranks", "found"), [([], 4, "no GPUs"), ([_gpu_node("10.0.0.1", 4.0)], 8, "1 nodes with 4")]
)
def test_a_ray_cluster_with_too_few_gpus_is_unavailable(alive: list[dict[str, Any]], ranks: int, found: str) -> None:
    with pytest.raises(Unavailable, match=found):
        nodes_with_gpus(alive, ranks, None, ANY)


ROOT = Path(__file__).parents[4]
LIMIT_S = 30.0
WORKER = """
from chorale.runners.ray.watch import end_with_raylet
import time
end_with_raylet()
print("ready", flush=True)
time.sleep(600)
"""
RAYLET = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def silent_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterLost]]:
    """Let no head answer, with short limits; yield what the handler is told."""
    monkeypatch.setattr(watch, "head_answers", lambda address, timeout_s: False)
    for name in ("SILENCE_LIMIT_S", "PING_S", "LOOK_S", "NOTICE_S"):
        monkeypatch.setattr(watch, name, 0.02)
    told: list[ClusterLost] = []
    handle_loss(told.append)
    yield told
    watch._handlers.clear()


def test_who_asks_and_the_handler_are_told_that_the_head_is_silent(silent_head: list[ClusterLost]) -> None:
    cluster = ClusterWatch("10.0.0.1:6379")
    until(lambda: silent_head)  # whoever waits for Ray does not ask
    assert "10.0.0.1:6379 has not answered" in str(silent_head[0])
    with pytest.raises(ClusterLost):
        until(cluster.check)


def test_a_watch_that_was_closed_tells_nobody(silent_head: list[ClusterLost]) -> None:
    cluster = ClusterWatch("10.0.0.1:6379")
    cluster.close()
    for thread in threading.enumerate():
        if thread.name == "chorale-ray-watch":
            thread.join(LIMIT_S)
    assert silent_head == []


def test_a_worker_ends_with_its_raylet() -> None:
    command = [sys.executable, "-c", RAYLET, WORKER]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as raylet:
        assert raylet.stdout is not None
        assert raylet.stdout.readline() == "ready\n"
        [worker] = psutil.Process(raylet.pid).children()
        raylet.send_signal(signal.SIGKILL)
        raylet.wait()
        worker.wait(LIMIT_S)
