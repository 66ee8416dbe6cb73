"""How much one caller may take: links, memory, time, turns; everything that is asked for has an end."""

import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.runners.process_launch.processes import memory_guard
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.service.jobs.job_specs import JobLimits, built_network
from chorale.tuner.service.jobs.planning import PlanningProcesses
from tests.security.service import CAMPAIGN, attacked
from tests.waiting import until

MIB = 2**20
MANY_LINKS = "complete:5000"
WAIT_S = 60.0


def test_every_route_that_takes_a_network_has_a_budget_of_links(tmp_path: Path):
    question = f"topology={MANY_LINKS}&collective=allreduce&size_bytes=1024"
    with attacked(tmp_path) as service:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answers = [
            service.ask("POST", "/v1/syntheses", "planner", {"topology": MANY_LINKS, "method": "bfb"}),
            service.ask("POST", "/v1/bounds", "planner", {"topology": MANY_LINKS}),
            service.launch("planner", topology=MANY_LINKS),
            *(service.ask("GET", f"/v1/best{kind}?{question}", "reader") for kind in ("", "/schedule", "/program")),
        ]
        grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert [answer.status_code for answer in answers] == [422] * 6
    assert all("links" in answer.json()["error"]["rule"] for answer in answers)
    assert grown_mib < 100
    body = {"topology": to_json(parse_topology("complete:4")), "method": "bfb"}  # of documents, too
    for max_links, status in ((11, 422), (12, 202)):
        with attacked(tmp_path, JobLimits(max_links=max_links)) as service:
            assert service.ask("POST", "/v1/syntheses", "planner", body).status_code == status


def test_planning_that_takes_too_much_memory_costs_the_request_and_not_the_service():
    planning = PlanningProcesses(1, seconds=300, memory_bytes=64 * MIB)
    own_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput, match="must be planned within"):
        planning.call("flood", built_network, MANY_LINKS, JobLimits(max_links=10**9))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own_before < 100 * 1024
    assert planning.call("flood", built_network, "ring:4", JobLimits()).node_count == 4
    with pytest.raises(InvalidInput, match="links"):
        planning.call("flood", built_network, MANY_LINKS, JobLimits())
    planning.close()


def test_planning_that_takes_too_long_is_ended():
    planning = PlanningProcesses(1, seconds=0.01, memory_bytes=64 * MIB)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"within 0\.01 s"):
            planning.call("flood", built_network, "ring:4", JobLimits())
    planning.close()


class GatedPlanning(PlanningProcesses):
    """Planning by turns at one process, which a test holds."""

    def __init__(self) -> None:
        super().__init__(1, 60.0, 2**30)
        self.open = threading.Event()
        self.entered = threading.Event()
        self.order: list[str] = []

    def call(self, owner: str, function: Callable[..., Any], *arguments: Any) -> Any:
        with self.turn(owner):
            self.entered.set()
            assert self.open.wait(WAIT_S)
            self.order.append(owner)
            return function(*arguments)


def test_under_a_flood_of_one_token_the_requests_of_another_are_planned_in_turn(tmp_path: Path):
    planning = GatedPlanning()
    with attacked(tmp_path, planning=planning, jobs=1000) as service, ThreadPoolExecutor(64) as threads:

        def ask(role: str, nodes: int) -> int:
            return int(service.ask("POST", "/v1/bounds", role, {"topology": f"ring:{nodes}"}).status_code)

        first = threads.submit(ask, "planner", 3)
        assert planning.entered.wait(WAIT_S)
        flood = [threads.submit(ask, "planner", nodes) for nodes in range(4, 34)]
        until(lambda: sum(answer.done() for answer in flood) == 22)  # of 30, eight wait; the others are refused
        quiet = [threads.submit(ask, "operator", nodes) for nodes in range(40, 43)]
        until(lambda: planning._waiting.count("operator") == 3)  # nothing else tells
        planning.open.set()
        assert [answer.result() for answer in quiet] == [202] * 3
        statuses = [answer.result() for answer in flood]
    assert first.result() == 202
    assert (statuses.count(202), statuses.count(429)) == (8, 22)
    assert max(place for place, owner in enumerate(planning.order) if owner == "operator") == 5  # of 12


def test_a_job_that_takes_too_long_is_stopped_and_has_failed(tmp_path: Path):
    with attacked(tmp_path, JobLimits(max_job_s=100)) as service:
        service.backend.held.set()
        job = service.ask("POST", "/v1/syntheses", "planner", {"topology": "ring:4", "method": "bfb"}).json()
        until(lambda: service.backend.started)
        path = f"/v1/jobs/{job['id']}"
        assert service.ask("GET", path, "planner").json()["state"] == "running"
        service.clock.now_s += 101
        until(lambda: service.ask("GET", path, "planner").json()["state"] not in ("queued", "running"))
        ended = service.ask("GET", path, "planner").json()
    assert (ended["state"], ended["error"]["kind"]) == ("failed", "time")
    assert "100 s" in ended["error"]["rule"]


def test_a_computation_gets_no_more_memory_than_its_limit():
    exceeded = threading.Event()
    with memory_guard(64 * MIB, exceeded.set):
        reserved = np.empty(512 * MIB, np.uint8)  # not used
        assert len(b"x" * (16 * MIB)) == 16 * MIB
        assert not exceeded.wait(0.5)
        reserved[:] = 1
        assert exceeded.wait(WAIT_S)


@pytest.mark.parametrize(("given", "minutes"), [({}, 30.0), ({"minutes": 5}, 5.0), ({"minutes": 1e6}, 30.0)])
def test_every_campaign_has_an_end(tmp_path: Path, given: dict[str, float], minutes: float):
    with attacked(tmp_path, JobLimits(max_campaign_minutes=30)) as service:
        assert service.launch("planner", budget={**CAMPAIGN["budget"], **given}).status_code == 202
        ((campaign, _),) = service.launches.started
    assert campaign["budget"]["minutes"] == minutes
