"""Each fault of the guide's table, while a job trains on an emulated fabric, with all parts as processes."""

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chorale.experiments.demos.ranks import run_ranks
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.live.support import fabric_of
from tests.live.watch import cables
from tests.live.watch.test_watch_on_fabric import WatchProcess
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("train.py")
CABLE, LOST_RANK, FLAP_S = (0, 1), 3, 4.0
SIZE_BYTES = 1 << 20
LIMIT_S = 300.0


@dataclass
class Scene:
    """A fabric that is up, whose watch and whose jobs share a folder. failures: of jobs"""

    topology: Topology
    fabric: EmulatedFabric
    folder: Path
    failures: list[CheckFailed] = field(default_factory=list)

    def watching(self) -> WatchProcess:
        table, sizes = str(self.folder / "table"), [SIZE_BYTES // 4, SIZE_BYTES]
        config = {"name": "scene", "topology": self.topology.spec, "fabric": self.fabric.name}
        return WatchProcess({**config, "table": table, "sizes": sizes}, self.folder)

    def steps(self) -> list[dict[str, Any]]:
        """Return what the jobs have logged; an incomplete last line does not count."""
        log = self.folder / "steps.jsonl"
        return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []

    @contextmanager
    def training(self, members: Sequence[int] | None = None) -> Iterator[None]:
        """Run a job that ends with the block; one of `members` goes on from the checkpoint of the job before."""
        stop, log = self.folder / "stop", self.folder / "steps.jsonl"
        stop.unlink(missing_ok=True)
        options = {"log": str(log), "stop": str(stop), "size": SIZE_BYTES, "timeout_s": 20}
        options |= {} if members is None else {"checkpoint": str(self.folder / "model.pt")}
        variables = {"CHORALE_TABLE": str(self.folder / "table"), "CHORALE_RELOAD": "0.2"}

        def train() -> None:
            try:
                run_ranks(self.topology, self.fabric, SCRIPT, [json.dumps(options)], 2 * LIMIT_S, variables, members)
            except CheckFailed as error:
                self.failures.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            self.more_steps()
            yield
        finally:
            stop.touch()
            thread.join()

    def more_steps(self, table: str | None = None) -> None:
        """Wait until the job has made some steps from now on, by `table` if one is given."""
        done = len(self.steps())
        until(lambda: sum(table in (None, step["table"]) for step in self.steps()[done:]) > 5, LIMIT_S)

    def check(self, events: Sequence[dict[str, Any]], fault_s: float, table: str) -> None:
        """Links are seen to fail before the table is there and used; no step is lost, and no sum is wrong."""
        steps = self.steps()
        later = [event for event in events if event["time_s"] > fault_s]
        detected_s = next(event["time_s"] for event in later if event["event"] == "state")
        published_s = next(event["time_s"] for event in later if event["event"] == "publish")
        first_s = next(step["end_s"] for step in steps if step["end_s"] > fault_s and step["table"] == table)
        assert detected_s < published_s <= first_s
        assert [step["step"] for step in steps] == list(range(len(steps)))
        assert not any(step["wrong"] for step in steps)


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with fabric_of(f"scene-{os.getpid()}", "chorale watch", request.param) as fabric:
        yield Scene(parse_topology(request.param), fabric, tmp_path)


@pytest.mark.parametrize("scene", ["torus:3x3"], indirect=True)
def test_a_cable_is_cut(scene: Scene) -> None:
    with scene.watching() as watch:
        watch.published()
        with scene.training():
            fault_s = time.time()
            cables.cut(scene.fabric, CABLE)
            table = watch.published(fault_s)["table"]
            scene.more_steps(table)
        scene.check(watch.events, fault_s, table)
    assert scene.failures == []


@pytest.mark.parametrize("scene", ["hypercube:3"], indirect=True)
def test_a_cable_comes_and_goes(scene: Scene) -> None:
    with scene.watching() as watch:
        healthy = watch.published()["table"]
        with scene.training():
            fault_s = time.time()
            for _ in range(4):
                cables.cut(scene.fabric, CABLE)
                time.sleep(FLAP_S)
                cables.mend(scene.fabric, scene.topology, CABLE)
                time.sleep(FLAP_S)
            ended_s, table = time.time(), watch.published(fault_s)["table"]
            watch.wait_for(lambda event: event.get("table") == healthy and event["time_s"] > ended_s)
            scene.more_steps(healthy)
        scene.check(watch.events, fault_s, table)
    assert scene.failures == []


@pytest.mark.parametrize("scene", ["hypercube:3"], indirect=True)
def test_a_rank_is_lost_and_comes_back(scene: Scene) -> None:
    everyone = range(scene.topology.compute_count)
    others = [rank for rank in everyone if rank != LOST_RANK]
    lost = sorted({(min(link[:2]), max(link[:2])) for link in scene.topology.links if LOST_RANK in link[:2]})

    def published_for(ranks: Sequence[int], after_s: float) -> str:
        wanted = {"event": "publish", "ranks": list(ranks)}
        return str(watch.wait_for(lambda event: event["time_s"] > after_s and wanted.items() <= event.items())["table"])

    with scene.watching() as watch:
        watch.published()
        with scene.training(everyone):
            lost_s = time.time()
            for cable in lost:
                cables.cut(scene.fabric, cable)
            smaller = published_for(others, lost_s)
            until(lambda: len(scene.failures) == 1, LIMIT_S)
        with scene.training(others):
            scene.more_steps(smaller)
            back_s = time.time()
            cables.mend(scene.fabric, scene.topology, *lost)
            whole = published_for(everyone, back_s)
        with scene.training(everyone):
            scene.more_steps(whole)
        scene.check(watch.events, lost_s, smaller)
    assert len(scene.failures) == 1
