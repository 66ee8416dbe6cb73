"""A detached launch whose own node is killed, then the whole cluster. Run as a script.

`python -m tests.integration.launch_node FOLDER [SECONDS]` prints one JSON document: where the launch lived, and how
what was saved, tracked and chosen compares with a run without deaths. For SECONDS after the death of the node the
folder of the launch stays locked, as on a file server that has not missed its client yet. It needs a process of its
own, see `two_nodes`.
"""

import fcntl
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from chorale.runners.ray.cluster import ray
from chorale.runners.ray.detached import DetachedActor, DetachedActors
from chorale.tuner.cli.tune_launch import start
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState, detached_name
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.search.space import search_space
from tests.integration.soak import answer, reference, same_measurements, saved, soak_campaign, tracked
from tests.integration.two_nodes import cluster_of

LAUNCH = f"ray::{DetachedLaunch.__name__}"
TRIALS = 150
POLL_S = 0.1
LIMIT_S = 300.0


def launch_from(node_id: str, campaign: Campaign, home: Home) -> None:
    """Launch as a job does whose driver is on the node `node_id`: there the launch begins its life."""
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    document = campaign.model_dump(by_alias=True, mode="json")

    def drive() -> None:
        os.environ["CHORALE_HOME"] = str(home.root)
        start(Campaign.model_validate(document), resume=False, address=None)

    ray.get(ray.remote(num_cpus=0)(drive).options(scheduling_strategy=there).remote(), timeout=LIMIT_S)


def kill_node(node: Any) -> int:
    """Kill everything on a node at once; return how many launches it had."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    launches = 0
    for victim in [*raylet.children(recursive=True), raylet]:
        with suppress(psutil.NoSuchProcess):
            launches += LAUNCH in " ".join(victim.cmdline())
            victim.kill()
    return launches


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the launch in `folder`, whose process has just been killed."""
    with (folder / "trials.jsonl").open("r+b") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        yield


def find(campaign: Campaign) -> DetachedActor:
    with DetachedActors() as residents:  # which finds the connection of this process
        found = residents.find(detached_name(campaign.name))
    assert found is not None
    return found


def node_of(resident: DetachedActor) -> str:
    return str(ray.get(resident._actor.__ray_call__.remote(lambda _self: ray.get_runtime_context().get_node_id())))


def wait_until(resident: DetachedActor, holds: Callable[[Any], bool]) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds(status := resident.call("status", 10**9)):
        assert status.error is None, status.error
        assert time.monotonic() < deadline_s, status
        time.sleep(POLL_S)
    return status


def first_life(campaign: Campaign, home: Home, points: int, lag_s: float) -> dict[str, Any]:
    """Launch from the second of three nodes, kill that one, then everything."""
    with cluster_of(3) as (cluster, [second, third]):
        launch_from(second.node_id, campaign, home)
        resident = find(campaign)
        began_on = node_of(resident)
        wait_until(resident, lambda status: status.done >= points // 4)
        killed = kill_node(second)
        with locked(home.campaigns / campaign.name / "1"):
            cluster.remove_node(second, allow_graceful=False)
            time.sleep(lag_s)
        wait_until(resident, lambda status: status.done >= points // 2)
        went_on = node_of(resident)
        kill_node(third)
        kill_node(cluster.head_node)
        return {
            "began_on_second": began_on == second.node_id,
            "launches_killed": killed,
            "moved": went_on != began_on,
        }


def second_life(campaign: Campaign) -> TuneReport:
    """Go on in another cluster, as `chorale tune --detach --resume` does."""
    with cluster_of(2):
        start(campaign, resume=True, address=None)
        resident = find(campaign)
        wait_until(resident, lambda status: status.state != LaunchState.RUNNING)
        report: TuneReport = resident.call("report")
        resident.remove()
        return report


def main(folder: Path, lag_s: float) -> dict[str, Any]:
    home, calm_home = Home(folder / "home"), Home(folder / "calm")
    for place in (home, calm_home):
        place.create(place.root)
    os.environ["CHORALE_HOME"] = str(home.root)
    campaign = soak_campaign(TRIALS, home.mlflow_uri)
    points = len(search_space(campaign, load_topology(campaign.topology)).points)
    journal = home.campaigns / campaign.name / "1" / "trials.jsonl"
    places = first_life(campaign, home, points, lag_s)
    before = journal.read_bytes()
    report = second_life(campaign)
    records, expected = saved(report.folder), reference(campaign, calm_home)
    runs = tracked(home.mlflow_uri, home)
    return {
        **places,
        "points": points,
        "launch": report.launch.number,
        "saved_before_resume": before.count(b"\n") - 1,
        "kept": journal.read_bytes().startswith(before[: before.rindex(b"\n") + 1]),
        "saved": len(records),
        "saved_once": len({record.trial_id for record in records}) == len(records),
        "states": dict(Counter(record.state for record in records)),
        "tracked_once": set(runs.values()) == {1} and set(runs) == {record.trial_id for record in records},
        "tracking_problem": report.tracked.problem,
        "same_measurements": same_measurements(records, list(expected.trials)),
        "same_answer": answer(report) == answer(expected),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), float((*sys.argv, "0")[2]))))  # noqa: T201
