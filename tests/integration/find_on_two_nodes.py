"""`chorale find` on a Ray cluster of two nodes, one of which is killed in the middle. Run as a script.

Prints one JSON document; see `two_nodes`.
"""

import contextlib
import io
import json
import logging
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chorale.runners.ray.cluster import ray
from chorale.runners.ray.executor import RayExecutor
from chorale.synth.executor.base import Progress, SerialExecutor
from chorale.synth.finder.find import FinderQuery, find_all
from chorale.tuner.cli.main import main as chorale
from tests.integration.two_nodes import two_nodes

SEARCH = ("find", "-n", "256", "-d", "4", "--search", "96", "--json")
SIZES = range(5, 401)


class LostTasks(logging.Handler):
    """Adds up the tasks of workers that died, from the pool's warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"died with (\d+) task", record.getMessage())
        self.count += int(found[1]) if found else 0


def busy_nodes() -> int:
    """Return on how many nodes actors hold CPUs."""
    nodes = ray._private.state.available_resources_per_node()
    return sum(resources.get("CPU", 0) < 2 for resources in nodes.values())


def command(*options: str) -> list[dict[str, Any]]:
    """Return the frontier that the command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        chorale([*SEARCH, *options])
    frontier: list[dict[str, Any]] = json.loads(out.getvalue())["frontier"]
    return frontier


def search(folder: Path, cluster: Any, second: Any) -> dict[str, object]:
    """Kill the second node as soon as the search has written its record for the first time."""
    record, nodes = folder / "bases.json", [0]

    def kill() -> None:
        while not record.exists():
            time.sleep(0.02)
        nodes[0] = busy_nodes()
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    answer = command("--executor", "ray", "--workers", "4", "--search-record", str(record))
    killer.join()
    return {"answer": answer, "serial": command(), "nodes_at_the_kill": nodes[0]}


def scores(cluster: Any, second: Any) -> dict[str, object]:
    """Kill the second node in the middle of the frontiers."""
    queries, nodes = [FinderQuery(count, 4) for count in SIZES], [0]

    def kill(done: int, _total: int) -> None:
        if done == 24:
            nodes[0] = busy_nodes()
            cluster.remove_node(second, allow_graceful=False)

    def enter(stage: str) -> Progress | None:
        return kill if stage == "frontiers" else None

    executor = RayExecutor(workers=4)
    try:
        answer = find_all(queries, executor, enter)
    finally:
        executor.close()
    serial = find_all(queries, SerialExecutor())
    return {"answer": plain(answer), "serial": plain(serial), "nodes_at_the_kill": nodes[0]}


def plain(frontiers: dict[FinderQuery, Any]) -> list[list[object]]:
    return [[query.nodes, list(map(str, frontier))] for query, frontier in frontiers.items()]


def main(folder: Path) -> dict[str, object]:
    lost = LostTasks()
    logging.getLogger("chorale.ray").addHandler(lost)  # the command makes the handlers of "chorale" anew
    with two_nodes() as (cluster, second):
        found: dict[str, dict[str, object]] = {"search": search(folder, cluster, second)}
        found["search"]["lost_tasks"] = lost.count
        lost.count = 0
        another = cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        found["scores"] = scores(cluster, another)
        found["scores"]["lost_tasks"] = lost.count
    return dict(found)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201
