"""Waits until all nodes of a new Ray cluster have joined: `python -m chorale.runners.ray.wait_for_nodes`."""

import sys
import time
from typing import Any

from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import ChoraleError, Unavailable

LIMIT_S = 300.0
_POLL_S = 0.5


def wait_for_nodes(address: str, count: int, limit_s: float = LIMIT_S) -> None:
    """Wait until `count` nodes in the cluster at `address` are alive. Raises Unavailable after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    alive: list[Any] = []
    while time.monotonic() < deadline_s:
        try:
            with RayCluster(address):
                while time.monotonic() < deadline_s:
                    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
                    if len(alive) >= count:
                        return
                    time.sleep(_POLL_S)
        except Unavailable:
            time.sleep(_POLL_S)  # the head has not started yet
    rule = f"a Ray cluster must have {count} nodes within {limit_s:.0f} s"
    raise Unavailable(rule, f"{len(alive)} at {address}", "see the log of its nodes")


def main() -> None:
    """Wait for a cluster. The command-line arguments are its address and its number of nodes."""
    try:
        wait_for_nodes(sys.argv[1], int(sys.argv[2]))
    except ChoraleError as error:
        sys.exit(f"chorale: {error}")


if __name__ == "__main__":
    main()
