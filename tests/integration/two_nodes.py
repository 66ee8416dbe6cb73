"""A Ray cluster of several nodes on this machine, for processes that are connected to no other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chorale.runners.ray.cluster import NAMESPACE, ray


@contextmanager
def cluster_of(nodes: int, **node: int) -> Iterator[Any]:
    """Yield a cluster of nodes of two CPUs each, or of what `node` says, to which this process is connected."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - after our settings

    node = node or {"num_cpus": 2}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
