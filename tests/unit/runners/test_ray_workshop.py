"""The Ray workshop: every order has one answer, whatever happens to its actor."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runners import ray_cluster, ray_workshop
from runners.api import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from runners.needs import Needs
from runners.preparation import Prepared, Recipe, Refusal, RefusalKind
from runners.ray_cluster import ray
from runners.ray_workshop import RayWorkshop
from runners.registry import create_runner
from runners.workshop import Finished
from synth.collective import ALLREDUCE
from synth.errors import Unavailable
from synth.lowering.options import LoweringOptions
from synth.method import Options
from synth.topology.spec import parse_topology
from tests.fakes import FakeRunner

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

TOPOLOGY = parse_topology("ring:4")
OPTIONS = LoweringOptions("oneccl-xml")
PATIENCE_S = 60.0


class MortalRunner(FakeRunner):
    """Kills its process on the first request."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._mark = Path(folder) / "died"

    def submit(self, request: RunRequest) -> Outcome:
        if not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(request)


class MisbehavingRunner(FakeRunner):
    """Does what the seed of the request stands for."""

    def submit(self, request: RunRequest) -> Outcome:
        misbehaviour, _ = MISBEHAVIOURS[request.seed]
        if misbehaviour == "raise":
            raise ZeroDivisionError("made to fail")
        if misbehaviour == "missing":
            raise Unavailable("hardware must be there", "none", "buy some")
        if misbehaviour == "hang":
            time.sleep(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(request)


MISBEHAVIOURS = (
    ("raise", FailureKind.CRASH),
    ("missing", FailureKind.UNAVAILABLE),
    ("hang", FailureKind.TIMEOUT),
    ("die always", FailureKind.CRASH),
)


def answers(workshop: RayWorkshop, number: int) -> dict[str, Finished]:
    found: dict[str, Finished] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < number and time.monotonic() < deadline_s:
        for finished in workshop.wait(0.5):
            assert finished.key not in found
            found[finished.key] = finished
    return found


def prepared(workshop: RayWorkshop) -> Prepared:
    workshop.prepare("first", Recipe(TOPOLOGY, ALLREDUCE, "ring", Options(), OPTIONS))
    answer = answers(workshop, 1)["first"].answer
    assert isinstance(answer, Prepared)
    return answer


def request(program: Prepared, timeout_s: float = 60.0, seed: int = 0) -> RunRequest:
    return RunRequest(TOPOLOGY, {"candidate": program.program}, (4096,), repeats=2, timeout_s=timeout_s, seed=seed)


def test_preparations_and_measurements_come_back(tmp_path: Path) -> None:
    workshop = RayWorkshop(partial(create_runner, "simulated", {"link_mbps": 100}), 2)
    try:
        for method in ("bfb", "ring", "none such"):
            workshop.prepare(method, Recipe(TOPOLOGY, ALLREDUCE, method, Options(), OPTIONS))
        found = answers(workshop, 3)
        refusal = found["none such"].answer
        assert isinstance(refusal, Refusal)
        assert refusal.kind == RefusalKind.INVALID
        for method in ("bfb", "ring"):
            answer = found[method].answer
            assert isinstance(answer, Prepared)
            workshop.measure(method, request(answer))
        times = {}
        for method, finished in answers(workshop, 2).items():
            assert isinstance(finished.answer, Measurement)
            times[method] = finished.answer.results["candidate"][0].median_s
        assert times["ring"] == pytest.approx(2 * times["bfb"])
    finally:
        workshop.close()
        workshop.close()


def test_a_killed_measurement_is_done_again(tmp_path: Path) -> None:
    workshop = RayWorkshop(partial(MortalRunner, str(tmp_path)), 1)
    try:
        program = prepared(workshop)
        for key in ("a", "b"):
            workshop.measure(key, request(program))
        found = answers(workshop, 2)
        assert (tmp_path / "died").exists()
        assert all(isinstance(found[key].answer, Measurement) for key in ("a", "b"))
    finally:
        workshop.close()


def test_what_goes_wrong_becomes_a_failure_and_the_next_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_workshop, "MEASURE_GRACE_S", 1.0)
    workshop = RayWorkshop(MisbehavingRunner, 1)
    try:
        program = prepared(workshop)
        for case, (misbehaviour, kind) in enumerate(MISBEHAVIOURS):
            timeout_s = 0.5 if misbehaviour == "hang" else 30.0
            workshop.measure(misbehaviour, request(program, timeout_s, case))
            answer = answers(workshop, 1)[misbehaviour].answer
            assert isinstance(answer, RunFailure), misbehaviour
            assert answer.kind == kind, misbehaviour
            assert "\n" not in answer.message
    finally:
        workshop.close()


def test_a_cluster_without_room_is_refused() -> None:
    first = RayWorkshop(FakeRunner, 3)
    try:
        prepared(first)
        deadline_s = time.monotonic() + PATIENCE_S
        while ray_cluster.RayCluster().free_cpus >= 2 and time.monotonic() < deadline_s:
            first.wait(0.1)
        with pytest.raises(Unavailable, match="a node with 1 CPU to measure, and one CPU to prepare"):
            RayWorkshop(FakeRunner, 1, needs=Needs(patience_s=1))
    finally:
        first.close()


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(resources={"fabric": 1}, patience_s=1), "1 CPU, 1 fabric to measure"),
        (Needs(labels={"rack": "7"}, patience_s=1), "1 CPU, rack=7 to measure"),
        (Needs(gpus=1, patience_s=1), "1 CPU, 1 GPU to measure"),
    ],
)
def test_what_no_node_has_is_named_in_time(needs: Needs, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        RayWorkshop(FakeRunner, 1, needs=needs)


FAILURES = (  # kind, how often it fails, how often it is tried, whether that ends well
    (FailureKind.CRASH, 2, 3, True),
    (FailureKind.CRASH, 9, 3, False),
    (FailureKind.UNAVAILABLE, 1, 2, True),
    (FailureKind.TIMEOUT, 9, 1, False),  # there is no other node, so a hang is not waited for again
    (FailureKind.WRONG_RESULT, 9, 1, False),
    (FailureKind.REJECTED, 9, 1, False),
)


class FailingRunner(FakeRunner):
    """Fails as `FAILURES` says at the place of the request's seed; the folder there holds a mark for each time."""

    def __init__(self, folder: str) -> None:
        super().__init__(self._fail)
        self._folder = Path(folder)

    def _fail(self, request: RunRequest) -> RunFailure | None:
        kind, failures, *_ = FAILURES[request.seed]
        marks = len(list(self._folder.glob(f"{request.seed}-*"))) + 1
        (self._folder / f"{request.seed}-{marks}").touch()
        return RunFailure(kind, "made to fail") if marks <= failures else None


def test_what_another_moment_may_mend_is_tried_again(tmp_path: Path) -> None:
    workshop = RayWorkshop(partial(FailingRunner, str(tmp_path)), 1)
    try:
        program = prepared(workshop)
        for case in range(len(FAILURES)):
            workshop.measure(str(case), request(program, seed=case))
        found = answers(workshop, len(FAILURES))
        for case, (kind, failures, attempts, ends_well) in enumerate(FAILURES):
            assert isinstance(found[str(case)].answer, Measurement) == ends_well, (kind, failures)
            assert len(list(tmp_path.glob(f"{case}-*"))) == attempts, (kind, failures)
    finally:
        workshop.close()


def test_preparers_make_room_for_a_measurer_that_has_no_node() -> None:
    """The measurer dies while a stranger waits for its CPU; one of the three preparers gives way."""
    workshop = RayWorkshop(FakeRunner, 3)
    stranger: Any = None
    try:
        program = prepared(workshop)
        stranger = ray.remote(num_cpus=1)(FakeRunner).remote()
        slot = workshop._measurers._slots[0]
        ray.kill(slot.actor)
        ray.get(stranger.library.remote("allreduce"), timeout=PATIENCE_S)
        workshop.measure("x", request(program))
        assert isinstance(answers(workshop, 1)["x"].answer, Measurement)
        assert workshop._preparers.size < 3
    finally:
        workshop.close()
        if stranger is not None:
            ray.kill(stranger)


def test_two_measurers_work_at_once_and_answer_everything() -> None:
    workshop = RayWorkshop(FakeRunner, 1, measurers=2)
    try:
        program = prepared(workshop)
        for key in range(6):
            workshop.measure(str(key), request(program))
        assert all(isinstance(finished.answer, Measurement) for finished in answers(workshop, 6).values())
    finally:
        workshop.close()
