"""Actors and workers of Ray Train on four nodes of a real cluster run programs of a table."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chorale.job import report
from chorale.job.ray import register
from chorale.job.table.layout import table_bytes
from chorale.runners.ray.cluster import ray
from tests.command import python
from tests.integration.two_nodes import cluster_of
from tests.live.job.torch.tables import whole_table

pytestmark = pytest.mark.slow

RANKS = 4
LENGTH = 1003 * RANKS


def test_actors_on_four_nodes_run_the_programs_of_a_table(tmp_path: Path) -> None:
    said = python("-m", "tests.live.job.test_ray_jobs", tmp_path, timeout_s=150).document
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
    for each in said["report"]:
        assert {entry["collective"]: entry["calls"] for entry in each["programs"]} == {
            "allreduce": 2, "allgather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1,
        }  # fmt: skip
        assert each["fallbacks"] == []


class Member:
    def __init__(self, rank: int) -> None:
        from ray.util import collective  # noqa: PLC0415 - in the actor

        register()
        self._rank, self._collective = rank, collective
        collective.init_collective_group(RANKS, rank, "CHORALE", "ours")

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def results(self) -> dict[str, list[float]]:
        """Return what each collective gave to this actor; of one there is an entry, and of rows of a matrix."""
        ours, data = "ours", np.arange(LENGTH, dtype=np.float32) + self._rank
        summed, most = data.copy(), np.asfortranarray(data.reshape(-1, 2).copy())
        self._collective.allreduce(summed, ours)
        self._collective.allreduce(most, ours, self._types().ReduceOp.MAX)
        gathered = [np.zeros(LENGTH // RANKS, np.float32) for _ in range(RANKS)]
        self._collective.allgather(gathered, data[: LENGTH // RANKS].copy(), ours)
        scattered = np.zeros(LENGTH // RANKS, np.float32)
        self._collective.reducescatter(scattered, np.split(data, RANKS), ours)
        given, reduced = data.copy(), data.copy()
        self._collective.broadcast(given, 2, ours)
        self._collective.reduce(reduced, 2, ours)
        found = {"sum": summed, "max": most.reshape(-1), "gathered": np.concatenate(gathered), "scattered": scattered}
        return {name: value.tolist() for name, value in {**found, "given": given, "reduced": reduced}.items()}

    def refusal(self) -> str:
        """Return what strict mode says of a type that the engine does not have."""
        try:
            self._collective.allreduce(np.zeros(8, np.complex64), "ours")
        except Exception as error:  # whatever it is, the test compares the text
            return str(error)
        return ""

    def report(self) -> dict[str, Any]:
        return report()

    def _types(self) -> Any:
        return self._collective.types


def main(folder: Path) -> dict[str, Any]:
    table = folder / "table"
    table.write_bytes(table_bytes(whole_table()))
    environment = {"env_vars": {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_INTERFACE": "lo"}}
    register()
    with cluster_of(RANKS):
        nodes = [node["NodeID"] for node in ray.nodes()]
        members = [
            ray.remote(Member)
            .options(runtime_env=environment, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(rank)
            for rank, node in enumerate(nodes)
        ]
        each = lambda name: ray.get([getattr(member, name).remote() for member in members], timeout=90)  # noqa: E731
        names = ("node", "results", "refusal", "report")
        return {name: each(name) for name in names}


@pytest.mark.skipif(find_spec("torch") is None, reason="RAY TRAIN IS NOT TESTED: pip install torch")
def test_workers_on_four_nodes_add_gradients_by_programs(tmp_path: Path) -> None:
    table, reports = tmp_path / "table", tmp_path / "reports"
    table.write_bytes(table_bytes(whole_table()))
    python("-m", "tests.live.job.test_ray_jobs", table, reports, timeout_s=240, CHORALE_INTERFACE="lo")
    said = [json.loads((reports / f"{rank}.json").read_text()) for rank in range(4)]
    assert {one["backend"] for one in said} == {"chorale"}
    assert all(one["weights"] == said[0]["weights"] for one in said)
    assert len({one["loss"] for one in said}) == 4  # each worker has data of its own
    for one in said:
        calls = {entry["collective"]: entry["calls"] for entry in one["programs"]}
        assert calls["allreduce"] >= 3
        assert one["fallbacks"] == []


def train(table: str, reports: str) -> int:
    example = Path(__file__).parents[3] / "examples" / "ray_train.py"
    command = [sys.executable, example, "--table", table, "--reports", reports, "--steps", "3"]
    with cluster_of(4) as cluster:
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        return subprocess.run(command, env=environment, timeout=180, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(train(*sys.argv[1:]))
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
