"""Nodes of a Ray cluster as places."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chorale.runners.api.base import ResourceRequest
from chorale.runners.process_launch.processes import STDOUT, ProcessSpec
from chorale.runners.ray import hosts
from chorale.runners.ray.hosts import RayGpuCluster, RayHost, RayHosts, nodes_by_rank
from chorale.synth.errors import InvalidInput


def _node(address: str, *resources: str, node_id: str = "n") -> dict[str, Any]:
    return {"NodeManagerAddress": address, "NodeID": node_id, "Resources": dict.fromkeys(resources, 1.0)}


def test_ranks_are_nodes_in_the_order_of_their_addresses() -> None:
    nodes = [_node("10.0.0.10"), _node("10.0.0.9"), _node("10.0.0.2")]
    assert nodes_by_rank(nodes, 2) == [nodes[2], nodes[1]]
    assert nodes_by_rank(nodes, 4) is None


def test_a_resource_says_which_rank_a_node_serves() -> None:
    nodes = [_node("10.0.0.1", "chorale_rank_1"), _node("10.0.0.2"), _node("10.0.0.3", "CPU", "chorale_rank_0")]
    assert nodes_by_rank(nodes, 2) == [nodes[2], nodes[0]]
    assert nodes_by_rank(nodes, 3) is None


def test_one_node_may_serve_several_ranks() -> None:
    node = _node("10.0.0.1", "chorale_rank_0", "chorale_rank_1")
    assert nodes_by_rank([node], 2) == [node, node]


class NodeOnPaper:
    """In place of a RayHost: its name is the id of its node."""

    def __init__(self, node_id: str, address: str, held: ResourceRequest) -> None:
        self._node_id = node_id
        self.address = address

    def name(self) -> str:
        return self._node_id


@pytest.mark.parametrize(
    ("addresses", "lent"),
    [(("10.0.0.1", "10.0.0.2"), ["10.0.0.1", "10.0.0.2"]), (("10.0.0.1", "10.0.0.1"), ["n1", "n3"])],
)
def test_nodes_at_one_address_are_lent_by_their_names(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, str], lent: list[str]
) -> None:
    nodes = [_node(address, node_id=name) for address, name in zip(addresses, ("n1", "n3"), strict=True)]
    for node in nodes:
        node |= {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 4.0}}
    monkeypatch.setattr(hosts, "RayHost", NodeOnPaper)
    monkeypatch.setattr(hosts, "RayCluster", lambda: None)
    monkeypatch.setattr(hosts.ray, "nodes", lambda: nodes)
    lease = RayGpuCluster(ResourceRequest()).lease(8, 4)
    assert [host.address for host in lease.hosts] == lent


@pytest.fixture
def place() -> Iterator[RayHost]:
    from chorale.runners.ray.cluster import ray  # noqa: PLC0415 - importing it takes a second

    (node,) = ray.nodes()
    made = RayHost(node["NodeID"], node["NodeManagerAddress"])
    yield made
    made.close()


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnACluster:
    def test_a_process_runs_and_is_read_from_afar(self, place: RayHost) -> None:
        started = place.start(
            ProcessSpec(("/bin/sh", "-c", 'cat given; printf "$WORD"; exit 3'), {"WORD": "!"}, {"given": b"yes"})
        )
        _until(lambda: started.poll() is not None)
        assert started.poll() == 3
        assert started.read(STDOUT) == b"yes!"
        assert started.read("absent") == b""
        started.close()
        started.close()

    def test_a_killed_process_has_the_code_of_its_signal(self, place: RayHost) -> None:
        started = place.start(ProcessSpec(("sleep", "100")))
        assert started.poll() is None
        started.kill()
        assert started.poll() == -9

    def test_bad_jobs_raise_what_they_raise_here(self, place: RayHost) -> None:
        with pytest.raises(InvalidInput, match="plain name"):
            place.start(ProcessSpec(("true",), {}, {"a/b": b""}))

    def test_a_lost_node_counts_as_killed_and_takes_its_processes_along(self, place: RayHost) -> None:
        started = place.start(ProcessSpec(("/bin/sh", "-c", "echo $$; exec sleep 100")))
        _until(lambda: started.read(STDOUT))
        pid = int(started.read(STDOUT))
        place.close()
        _until(lambda: not os.path.exists(f"/proc/{pid}"))
        assert started.poll() == -9
        assert started.read(STDOUT) == b""
        started.close()

    def test_too_few_nodes_give_no_places(self) -> None:
        nodes = RayHosts(2)
        assert nodes.hosts is None
        nodes.close()


def test_without_a_cluster_there_are_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chorale.runners.ray.hosts.ray.is_initialized", lambda: False)
    assert RayHosts(1).hosts is None
