"""Nodes with GPUs of a Ray cluster: on each an actor that holds them and starts processes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chorale.runners.msccl.cluster import LeasedHosts
from chorale.runners.needs import ResourceRequest
from chorale.runners.ray_cluster import RayCluster, ray
from chorale.runners.ray_places import RayHost
from chorale.synth.errors import Unavailable


class RayGpuCluster:
    """Implements `GpuCluster` on the cluster that RAY_ADDRESS names, or on this machine alone.

    needs: what each node must have besides GPUs; its resources are held like the GPUs
    """

    def __init__(self, resource_request: ResourceRequest) -> None:
        self._needs = resource_request
        self._cluster: RayCluster | None = None
        self._hosts: list[RayHost] = []

    def lease(self, ranks: int, gpus_per_node: int | None) -> LeasedHosts:
        """Start an actor on each of the first nodes with enough GPUs, in the order of their addresses."""
        self._cluster = self._cluster or RayCluster()
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        nodes, per_node = nodes_with_gpus(alive, ranks, gpus_per_node, self._needs)
        held = replace(self._needs, gpus=per_node)
        self._hosts = [RayHost(node["NodeID"], node["NodeManagerAddress"], held) for node in nodes]
        return LeasedHosts(self._hosts, per_node)

    def release(self) -> None:
        """End the actors, and with them what they started."""
        for place in self._hosts:
            place.close()
        self._hosts = []
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def nodes_with_gpus(
    alive: Sequence[Mapping[str, Any]], ranks: int, gpus_per_node: int | None, resource_request: ResourceRequest
) -> tuple[list[Mapping[str, Any]], int]:
    """Return which of `ray.nodes()` serve `ranks` ranks, and how many each: as asked, or as many as nodes have.

    Raises Unavailable if there are not enough of them that have what is in `needs` too.
    """
    suitable = [node for node in alive if resource_request.fits(node["Resources"], node.get("Labels") or {})]
    most = max((int(node["Resources"].get("GPU", 0)) for node in suitable), default=0)
    per_node = gpus_per_node or min(ranks, most)
    fitting = [node for node in suitable if int(node["Resources"].get("GPU", 0)) >= max(1, per_node)]
    if per_node == 0 or ranks % per_node or len(fitting) * per_node < ranks:
        rule = f"the Ray cluster must have GPUs for {ranks} ranks, as many on every node"
        found = f"{len(fitting)} nodes with {per_node} GPUs" if per_node else "no GPUs"
        raise Unavailable(rule, found, "start Ray on the GPU nodes, or set gpus_per_node")
    ordered = sorted(
        fitting, key=lambda node: (ipaddress.ip_address(node["NodeManagerAddress"]).packed, node["NodeID"])
    )
    return ordered[: ranks // per_node], per_node
