"""A Ray cluster of two nodes on this machine, one of which is killed in the middle of a map. Run as a script.

Prints one JSON document. It needs a process of its own, because Ray connects a process to one cluster at a time.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chorale.runners.ray.cluster import NAMESPACE, ray
from chorale.runners.ray.executor import RayExecutor

TASKS = 24
HEALTH = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 3}


def square_somewhere(folder: str, task: int) -> tuple[int, str]:
    """Return the square and the node; leave a mark for every attempt."""
    node = str(ray.get_runtime_context().get_node_id())
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{task}-", delete=False):
        time.sleep(0.4)
    return task * task, node


@contextmanager
def cluster_of(nodes: int, **node: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a cluster of nodes of two CPUs each, or of what `node` says, and all nodes but the first.

    This process is connected to it.
    """
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - after our settings

    node = node or {"num_cpus": 2}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": HEALTH}
    )
    others = [cluster.add_node(**node) for _ in range(nodes - 1)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster, others
    finally:
        ray.shutdown()
        cluster.shutdown()


def squares(folder: Path, cluster: Any, second: Any) -> dict[str, object]:
    executor = RayExecutor(workers=4)
    killed_at: list[int] = []
    before: list[tuple[int, str]] = []

    def kill_the_second_node(done: int, total: int) -> None:
        if done == 8:
            cluster.remove_node(second, allow_graceful=False)
            killed_at.append(done)

    try:
        for _ in range(10):  # on a busy machine the second node takes part only after a while
            before += executor.map(square_somewhere, range(8), str(folder))
            if len({node for _, node in before}) == 2:
                break
        answers = executor.map(square_somewhere, range(TASKS), str(folder), kill_the_second_node)
    finally:
        executor.close()
        connected = ray.is_initialized()
    return {
        "nodes_before": len({node for _, node in before}),
        "squares": [square for square, _ in answers],
        "nodes_used": len({node for _, node in answers}),
        "killed_at": killed_at,
        "attempts": len(list(folder.iterdir())) - len(before),
        "left_connected": connected,
    }


if __name__ == "__main__":
    with cluster_of(2) as (cluster, [second]):
        print(json.dumps(squares(Path(sys.argv[1]), cluster, second)))  # noqa: T201
