"""MPICH without ssh: its own mpiexec and proxies, started at places; test programs and library are stand-ins."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, ResourceRequest, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.msccl.commands import JobOptions
from chorale.runners.msccl.runner import MscclRunner
from chorale.runners.process_launch.processes import LeasedHosts, LocalHost, MpichHost, ProcessSpec
from chorale.runners.ray.hosts import nodes_with_gpus
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allreduce
from tests.conformance.runner_kit import failed, measured
from tests.stand_ins.nccl_tests import PROGRAM_BYTES_PER_US, PROGRAM_US

MPICH = Path(sys.executable).parent / "mpiexec"
RING = replace(ring_allreduce(range(4)), target="msccl-executor-xml")
REQUEST = RunRequest(parse_topology("ring:4"), {"ring": RING}, (2**20, 3 * 2**19), repeats=1, timeout_s=60.0)

ANY = ResourceRequest(cpus=0)

needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason="MPICH is not installed: pip install mpich")


class NodeOfSlurm:
    """A host whose processes are told the name of its node, as those of a job of Slurm are."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self._name = name

    def start(self, spec: ProcessSpec) -> Any:
        environment = {**spec.environment, "SLURMD_NODENAME": self._name}
        return LocalHost(self.address).start(replace(spec, environment=environment))


class TwoNodes:
    """A cluster of two hosts on this machine."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int | None]] = []
        self.releases = 0

    def lease(self, ranks: int, gpus_per_node: int | None) -> LeasedHosts:
        self.requests.append((ranks, gpus_per_node))
        return LeasedHosts([NodeOfSlurm("127.0.0.1", "n1"), NodeOfSlurm("127.0.0.2", "n3")], 2)

    def release(self) -> None:
        self.releases += 1


class Recorder:
    """A host that remembers what was started there."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.started: list[Any] = []

    def start(self, job: ProcessSpec) -> Any:
        self.started.append(job.argv)
        return LocalHost().start(ProcessSpec(("/bin/sleep", "60")))


def test_what_mpiexec_asks_for_starts_on_the_node_of_its_number() -> None:
    nodes = [Recorder(), Recorder()]
    script = "for id in 0 1; do echo \"HYDRA_LAUNCH: proxy --control-port 'a b:1' --proxy-id $id \"; done; sleep 60"
    started = MpichHost(nodes).start(ProcessSpec(("/bin/sh", "-c", script)))
    while not nodes[1].started:
        assert started.poll() is None
    started.poll()
    assert [node.started for node in nodes] == [
        [("proxy", "--control-port", "a b:1", "--proxy-id", str(number))] for number in (0, 1)
    ]
    started.close()
    assert started.poll() is not None


@needs_mpich
def test_the_real_mpiexec_starts_ranks_through_places(
    cluster: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster("executor")
    (folder / "mpiexec").unlink()
    monkeypatch.setenv("PATH", f"{folder}:{MPICH.parent}:/usr/bin:/bin")
    assert shutil.which("mpiexec") == str(MPICH)
    nodes = TwoNodes()
    runner = MscclRunner(JobOptions((1,), launcher="mpich"), tmp_path, cluster=nodes)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")  # of mpiexec, which is not that of all ranks
    outcome = measured(runner.submit(REQUEST))
    assert outcome.environment["nodes"] == "n1,n3"
    results = outcome.results["ring"]
    expected = [PROGRAM_US + one.size_bytes / PROGRAM_BYTES_PER_US for one in results]
    assert [one.median_s * 1e6 for one in results] == pytest.approx(expected, abs=0.01)
    assert nodes.requests == [(4, None)]
    assert nodes.releases == 1


def test_nodes_are_given_back_after_a_failure_too(cluster: Callable[..., Path], tmp_path: Path) -> None:
    cluster("executor", "crash")
    nodes = TwoNodes()
    runner = MscclRunner(JobOptions((1,), launcher="mpich"), tmp_path, cluster=nodes)
    failed(runner.submit(replace(REQUEST, sizes_bytes=(2**20, 2**21))), FailureKind.CRASH)
    assert nodes.releases == 1
    failed(MscclRunner(JobOptions((1,), launcher="mpich"), cluster=nodes).submit(REQUEST), FailureKind.UNAVAILABLE)


@needs_mpich
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_an_actor_that_holds_gpus_starts_the_ranks(
    cluster: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster("executor")
    (folder / "mpiexec").unlink()
    monkeypatch.setenv("PATH", f"{folder}:{MPICH.parent}:/usr/bin:/bin")
    runner = create_runner("msccl", {"launcher": "ray", "shared_folder": str(tmp_path)})
    for request in (REQUEST, replace(REQUEST, library=("nccl",))):  # the GPUs are free again for the second
        outcome = measured(runner.submit(request))
        assert outcome.environment["gpus_per_node"] == 4
        assert len(outcome.results) == 1 + len(request.library)
    ring = replace(ring_allreduce(range(8)), target="msccl-executor-xml")
    many = replace(REQUEST, topology=parse_topology("ring:8"), programs={"ring": ring})
    assert "got 1 nodes with 4 GPUs" in failed(runner.submit(many), FailureKind.UNAVAILABLE).message


def _node(address: str, gpus: float) -> dict[str, Any]:
    return {"NodeID": address, "NodeManagerAddress": address, "Resources": {"CPU": 8.0, "GPU": gpus} if gpus else {}}


def test_nodes_of_a_ray_cluster_are_chosen_by_their_gpus() -> None:
    alive = [_node("10.0.0.10", 8.0), _node("10.0.0.2", 8.0), _node("10.0.0.1", 0), _node("10.0.0.3", 4.0)]
    nodes, per_node = nodes_with_gpus(alive, 16, None, ANY)
    assert ([node["NodeID"] for node in nodes], per_node) == (["10.0.0.2", "10.0.0.10"], 8)
    nodes, per_node = nodes_with_gpus(alive, 12, 4, ANY)
    assert ([node["NodeID"] for node in nodes], per_node) == (["10.0.0.2", "10.0.0.3", "10.0.0.10"], 4)
    assert nodes_with_gpus(alive, 4, None, ANY) == ([alive[1]], 4)


def test_ranks_of_nodes_order_them_before_their_addresses() -> None:
    """Nodes of one machine have one address; and a job's nodes are ranks in the order of the job."""
    alive = [_node("10.0.0.1", 8.0), _node("10.0.0.2", 8.0), _node("10.0.0.3", 8.0)]
    alive[2]["Resources"]["chorale_rank_0"] = alive[0]["Resources"]["chorale_rank_1"] = 1.0
    assert nodes_with_gpus(alive, 24, None, ANY)[0] == [alive[2], alive[0], alive[1]]


def test_nodes_of_a_ray_cluster_are_chosen_by_their_labels_and_resources() -> None:
    alive = [_node("10.0.0.1", 8.0), {**_node("10.0.0.2", 8.0), "Labels": {"rail": "a"}}]
    alive.append({**alive[1], "NodeID": "with fabric", "Resources": {"GPU": 8.0, "fabric": 1.0}})
    assert nodes_with_gpus(alive, 8, None, ResourceRequest(0, labels={"rail": "a"}))[0] == [alive[1]]
    assert nodes_with_gpus(alive, 8, None, ResourceRequest(0, resources={"fabric": 1}))[0] == [alive[2]]
    with pytest.raises(Unavailable, match="no GPUs"):
        nodes_with_gpus(alive, 8, None, ResourceRequest(0, labels={"rail": "b"}))


@pytest.mark.parametrize(
    ("alive", "ranks", "found"), [([], 4, "no GPUs"), ([_node("10.0.0.1", 4.0)], 8, "1 nodes with 4")]
)
def test_a_ray_cluster_with_too_few_gpus_is_unavailable(alive: list[dict[str, Any]], ranks: int, found: str) -> None:
    with pytest.raises(Unavailable, match=found):
        nodes_with_gpus(alive, ranks, None, ANY)


def test_ray_chooses_the_hosts() -> None:
    with pytest.raises(InvalidInput, match="the launcher ray chooses the nodes itself; got a,b"):
        create_runner("msccl", {"launcher": "ray", "hosts": "a,b"})
