"""The example of Ray Train on a cluster of four nodes. Run as a script: TABLE REPORTS."""

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.two_nodes import cluster_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_train.py"


def main(table: str, reports: str) -> int:
    command = [sys.executable, EXAMPLE, "--table", table, "--reports", reports, "--steps", "3"]
    with cluster_of(4) as (cluster, _):
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        return subprocess.run(command, env=environment, timeout=180, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
