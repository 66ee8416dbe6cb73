"""Starts processes on the nodes of a Ray cluster, through one actor per node, which can reserve the node's GPUs."""

from __future__ import annotations

import ipaddress
import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chorale.runners.api.base import ResourceRequest
from chorale.runners.process_launch.processes import LocalHost, LocalProcess, ProcessSpec
from chorale.runners.process_launch.slurm import node_name
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import Unavailable

RANK_RESOURCE = "chorale_rank_"
"""Prefix of resource names: rank 3 runs on the node that was started with the resource `chorale_rank_3`."""

_ANSWER_LIMIT_S = 60.0


class RayHosts:
    """Provides a `Host` for each rank, on nodes of the cluster at RAY_ADDRESS or of this process's current cluster.

    Without `needs`, each rank has its own node: the one with the rank's resource (see `RANK_RESOURCE`). If no node has
    such a resource, rank r gets the r-th node in the order of the nodes' addresses.

    With `needs`, `nodes_with_gpus` chooses the nodes, and the hosts reserve a GPU per rank and the custom resources in
    `needs` until `close`. If there is no cluster, a local one is started. Raises Unavailable if there are not enough
    nodes with GPUs.

    hosts:       one host per rank; without `needs`, None if there is no cluster, or if it lacks a node for a rank
    own_address: address at which the nodes reach this process
    """

    def __init__(self, ranks: int, gpus_per_node: int | None = None, needs: ResourceRequest | None = None) -> None:
        self.hosts: list[RayHost] | None = None
        self._cluster: RayCluster | None = None
        self.own_address = ""
        if needs is None and not os.environ.get("RAY_ADDRESS") and not ray.is_initialized():
            return
        self._cluster = RayCluster()
        self.own_address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        try:
            nodes = (
                nodes_by_rank(alive, ranks) if needs is None else nodes_with_gpus(alive, ranks, gpus_per_node, needs)
            )
        except Unavailable:
            self.close()
            raise
        if nodes is not None:
            held = ResourceRequest() if needs is None else replace(needs, gpus=ranks // len(nodes))
            self.hosts = [RayHost(node["NodeID"], node["NodeManagerAddress"], held) for node in nodes]

    def close(self) -> None:
        """End the actors and all processes that they have started."""
        for host in self.hosts or ():
            host.close()
        if self._cluster is not None:
            self._cluster.close()


def nodes_by_rank(alive: list[Mapping[str, Any]], ranks: int) -> list[Mapping[str, Any]] | None:
    """Return a node for each rank, chosen from `alive` (entries of `ray.nodes()`), or None if there are too few."""
    assigned = {rank: node for node in alive for rank in _ranks_of(node)}
    if assigned:
        return [assigned[rank] for rank in range(ranks)] if set(range(ranks)) <= set(assigned) else None
    ordered = sorted(alive, key=_order_of)
    return ordered[:ranks] if len(ordered) >= ranks else None


def _ranks_of(node: Mapping[str, Any]) -> list[int]:
    """Return the ranks that a node's custom resources (see `RANK_RESOURCE`) assign to it."""
    numbers = (name.removeprefix(RANK_RESOURCE) for name in node["Resources"] if name.startswith(RANK_RESOURCE))
    return [int(number) for number in numbers if number.isdigit()]


def _order_of(node: Mapping[str, Any]) -> tuple[float, bytes, str]:
    """Return a node's sort key: its rank, if it has a rank's resource, then its address."""
    address = ipaddress.ip_address(node["NodeManagerAddress"]).packed
    return min(_ranks_of(node), default=math.inf), address, node["NodeID"]


class RayHost:
    """Implements `Host` with an actor on the node `node_id` that reserves the node's GPUs and custom resources.

    held: GPUs and custom resources to reserve; CPUs and labels in it are ignored
    """

    def __init__(self, node_id: str, address: str, held: ResourceRequest) -> None:
        self.address = address
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        remote: Any = ray.remote(HostProcesses)
        amounts = {"num_cpus": 0, "num_gpus": held.gpus, "resources": dict(held.resources)}
        self._actor = remote.options(**amounts, max_restarts=0, scheduling_strategy=pinned).remote(address)

    def start(self, spec: ProcessSpec) -> RayProcessHandle:
        return RayProcessHandle(self._actor, _result_of(self._actor.start.remote(spec)))

    def name(self) -> str:
        """Return the node's name: Slurm's name within a Slurm job, else its host name."""
        return str(_result_of(self._actor.node_name.remote()))

    def close(self) -> None:
        ray.kill(self._actor)


class RayProcessHandle:
    """Implements `ProcessHandle`. If the node is lost, the process counts as killed."""

    def __init__(self, actor: Any, number: int) -> None:
        self._actor, self._number = actor, number

    def poll(self) -> int | None:
        code: int | None = self._ask("poll", -signal.SIGKILL)
        return code

    def read(self, name: str) -> bytes:
        return bytes(self._ask("read", b"", name))

    def kill(self) -> None:
        self._ask("kill", None)

    def close(self) -> None:
        self._ask("close", None)

    def _ask(self, method: str, if_gone: Any, *arguments: Any) -> Any:
        try:
            return _result_of(self._actor.do.remote(self._number, method, *arguments))
        except Unavailable:
            return if_gone


class HostProcesses:
    """Starts processes on a node, inside an actor. The processes end with the actor."""

    def __init__(self, address: str) -> None:
        self._host = LocalHost(address)
        self._started: list[LocalProcess] = []

    def start(self, spec: ProcessSpec) -> int:
        self._started.append(self._host.start(spec))
        return len(self._started) - 1

    def node_name(self) -> str:
        return node_name()

    def do(self, number: int, method: str, *arguments: Any) -> Any:
        return getattr(self._started[number], method)(*arguments)


def _result_of(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=_ANSWER_LIMIT_S)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        rule = "a node of the cluster does not answer: {}"
        raise Unavailable(rule, type(error).__name__, "see `ray status`") from error


def nodes_with_gpus(
    alive: Sequence[Mapping[str, Any]], ranks: int, gpus_per_node: int | None, resource_request: ResourceRequest
) -> list[Mapping[str, Any]]:
    """Choose nodes for `ranks` ranks, the same number on each, from `alive` (entries of `ray.nodes()`).

    gpus_per_node:    ranks per node; None for as many as the node with the most GPUs can take
    resource_request: resources that a node must have in addition to GPUs

    Nodes with a rank's resource (see `RANK_RESOURCE`) come first, in rank order, then the others in the order of their
    addresses. Raises Unavailable if there are not enough suitable nodes.
    """
    suitable = [node for node in alive if resource_request.fits(node["Resources"], node.get("Labels") or {})]
    most = max((int(node["Resources"].get("GPU", 0)) for node in suitable), default=0)
    per_node = gpus_per_node or min(ranks, most)
    fitting = [node for node in suitable if int(node["Resources"].get("GPU", 0)) >= max(1, per_node)]
    if per_node == 0 or ranks % per_node or len(fitting) * per_node < ranks:
        rule = f"the Ray cluster must have GPUs for {ranks} ranks, as many on every node"
        value = f"{len(fitting)} nodes with {per_node} GPUs" if per_node else "no GPUs"
        raise Unavailable(rule, value, "start Ray on the GPU nodes, or set gpus_per_node")
    return sorted(fitting, key=_order_of)[: ranks // per_node]
