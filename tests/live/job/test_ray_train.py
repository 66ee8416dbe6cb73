"""Ray Train on four nodes of a real cluster with the backend chorale: workers end with the same weights."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from chorale.job.table.layout import table_bytes
from tests.command import python
from tests.integration.two_nodes import cluster_of
from tests.live.job.torch.tables import whole_table

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="RAY TRAIN IS NOT TESTED: torch is not installed")
pytestmark = [pytest.mark.slow, needs_torch]


def test_workers_on_four_nodes_add_gradients_by_programs(tmp_path: Path) -> None:
    table, reports = tmp_path / "table", tmp_path / "reports"
    table.write_bytes(table_bytes(whole_table()))
    python("-m", "tests.live.job.test_ray_train", table, reports, timeout_s=240, CHORALE_INTERFACE="lo")
    said = [json.loads((reports / f"{rank}.json").read_text()) for rank in range(4)]
    assert {one["backend"] for one in said} == {"chorale"}
    assert all(one["weights"] == said[0]["weights"] for one in said)
    assert len({one["loss"] for one in said}) == 4  # each worker has data of its own
    for one in said:
        calls = {entry["collective"]: entry["calls"] for entry in one["programs"]}
        assert calls["allreduce"] >= 3
        assert one["fallbacks"] == []


EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_train.py"


def main(table: str, reports: str) -> int:
    command = [sys.executable, EXAMPLE, "--table", table, "--reports", reports, "--steps", "3"]
    with cluster_of(4) as (cluster, _):
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        return subprocess.run(command, env=environment, timeout=180, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
