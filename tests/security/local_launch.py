"""A local Ray cluster as commands start it, and what it exposes, printed as JSON: run as a process by test_cluster.py.

Arguments: none. HOME and TMPDIR say where it works.
"""

import json
import os
import sys
from pathlib import Path

from tests.security.open_ports import open_ports


def main() -> None:
    """Start the cluster, wait for an actor, print, and hold the cluster until stdin ends."""
    os.umask(0o022)  # what most systems give their users
    from chorale.runners.ray.cluster import RayCluster, ray  # noqa: PLC0415 - after the mask

    with RayCluster(cpus=2):
        ray.get(ray.remote(lambda: None).remote())
        node = ray._private.worker._global_node
        document = {
            "address": ray.get_runtime_context().gcs_address,
            "session": node.get_session_dir_path(),
            "ports": open_ports(),
            "token": str(Path.home() / ".ray" / "auth_token"),
        }
        print(json.dumps(document), flush=True)  # noqa: T201 - the answer
        sys.stdin.read()


if __name__ == "__main__":
    main()
