"""Actors on four nodes of a real Ray cluster run programs of a table through ray.util.collective."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.live.job.ray_actors import LENGTH, RANKS


@pytest.mark.slow
def test_actors_on_four_nodes_run_the_programs_of_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.live.job.ray_actors", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert len(set(said["node"])) == RANKS
    data = [np.arange(LENGTH, dtype=np.float32) + rank for rank in range(RANKS)]
    shard = LENGTH // RANKS
    for rank, results in enumerate(said["results"]):
        expected = {
            "sum": sum(data),
            "max": data[-1],
            "gathered": np.concatenate([part[:shard] for part in data]),
            "scattered": sum(data)[rank * shard : (rank + 1) * shard],
            "given": data[2],
            "reduced": sum(data) if rank == 2 else data[rank],
        }
        assert {name: np.array_equal(results[name], value) for name, value in expected.items()} == dict.fromkeys(
            expected, True
        )
    assert all(
        "CHORALE_STRICT=1, and the table does not cover" in text and "complex64" in text for text in said["refusal"]
    )
    for report in said["report"]:
        assert {entry["collective"]: entry["calls"] for entry in report["programs"]} == {
            "allreduce": 2, "allgather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1,
        }  # fmt: skip
        assert report["fallbacks"] == []
