"""On which nodes workers run: flaky ones are avoided."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from chorale.runners.api.base import ResourceRequest
from chorale.runners.ray.cluster import ray
from chorale.runners.ray.silent_nodes import SilentNodes

NODE_LABEL = "ray.io/node-id"
MAX_CONSECUTIVE_FAILURES = 3  # in a row, before a node is left alone

_log = logging.getLogger("chorale.ray")


class WorkerNodes:
    """Chooses where workers that need `resource_request` may run.

    A node on which `MAX_CONSECUTIVE_FAILURES` calls failed in a row, or that answers no more, is in quarantine: no new
    worker starts there as long as another node suits.
    """

    def __init__(self, resource_request: ResourceRequest, silent: SilentNodes | None = None) -> None:
        self.resource_request = resource_request
        self.silent = silent or SilentNodes()
        self._failures: Counter[str] = Counter()

    def watch(self, used: Iterable[str]) -> None:
        """Ask the nodes `used`, where workers run, whether they still answer."""
        ids = set(used)
        alive = [node for node in _alive() if node["NodeID"] in ids]
        ports = {node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in alive}
        self.silent.watch(ports)

    def suitable(self) -> list[str]:
        """Return the ids of the nodes that are alive and have what is needed, be it free or taken."""
        return [
            node["NodeID"]
            for node in _alive()
            if self.resource_request.fits(node["Resources"], node.get("Labels") or {})
        ]

    def has_alternative_to(self, node: str) -> bool:
        """Whether a node other than `node` suits."""
        return any(other != node and not self._is_flaky(other) for other in self.suitable())

    def actor_options(self, away_from: str = "") -> dict[str, Any]:
        """Return Ray's options for a new worker that runs on no flaky node, nor on `away_from`, if it can be helped.

        Workers that hold nothing are spread over the nodes, which Ray would otherwise fill one after the other.
        """
        needs = self.resource_request
        avoided = {node for node in self.suitable() if self._is_flaky(node) or node == away_from}
        selector = dict(needs.labels)
        if avoided and any(node not in avoided for node in self.suitable()):
            selector[NODE_LABEL] = f"!in({','.join(sorted(avoided))})"
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "resources": dict(needs.resources)}
        if selector:
            return {**options, "label_selector": selector}
        return options if any(needs.amounts.values()) else {**options, "scheduling_strategy": "SPREAD"}

    def record_failure(self, node: str) -> None:
        """Note that a call failed on `node` through no fault of its own."""
        self._failures[node] += 1
        if self._failures[node] == MAX_CONSECUTIVE_FAILURES and self.has_alternative_to(node):
            _log.warning(
                "node %s failed %d times in a row; other nodes do its work", node[:12], MAX_CONSECUTIVE_FAILURES
            )

    def record_success(self, node: str) -> None:
        """Note that a call succeeded on `node`."""
        self._failures.pop(node, None)

    def _is_flaky(self, node: str) -> bool:
        return self._failures[node] >= MAX_CONSECUTIVE_FAILURES or node in self.silent.now


class NodesOfPools(WorkerNodes):
    """Shared by pools, so that each node is asked once whether it still answers."""

    def __init__(self, resource_request: ResourceRequest) -> None:
        super().__init__(resource_request)
        self._used: set[str] = set()

    def watch(self, used: Iterable[str]) -> None:
        """Ask these nodes, too."""
        self._used.update(used)
        super().watch(self._used)


def _alive() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]
