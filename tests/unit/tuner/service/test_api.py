"""The service as clients see it: jobs, results, refusals."""

import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.method import Options
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.lift import lift
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.config.building import verified_from_cache
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.service.access import Access, Caller, CallerRole, load_access, make_token
from chorale.tuner.service.jobs import job_store, scheduler
from chorale.tuner.service.jobs.job_specs import JobLimits, memory_estimate
from tests.unit.tuner.service.conftest import Service, start_service
from tests.unit.tuner.service.fakes import FakeTaskBackend

GATHER = {"collective": "allgather"}


def test_a_synthesis_gives_a_proved_document_and_a_schedule_that_verifies(service: Service):
    answer = service.post("/v1/syntheses", topology="a100:2", method="forest", **GATHER)
    assert answer.status_code == 202
    job = service.finished(answer.json())
    assert job["state"] == "done"
    result = service.client.get(f"/v1/results/{job['result']}").json()
    assert result["document"]["cost"]["time_per_byte"] == "3/1040"
    assert result["document"]["optimality"]["gap"] == "0"
    content = service.client.get(f"/v1/results/{job['result']}/files/schedule.parquet").content
    assert verify(from_parquet(content, load_topology)).cost.time_per_byte == Fraction(3, 1040)


def test_the_best_method_is_chosen_and_named(service: Service):
    job = service.finished(service.post("/v1/syntheses", topology="torus:3x3", method="auto", **GATHER).json())
    document = service.client.get(f"/v1/results/{job['result']}").json()["document"]
    assert (document["method"], document["optimality"]["gap"]) == ("bfb", "0")


def test_a_schedule_that_a_command_or_campaign_left_in_the_data_folder_is_used(service: Service, tmp_path):
    request = ScheduleRequest(parse_topology("a100:2"), ALLGATHER, "forest", Options())
    verified, _ = verified_from_cache(request, tmp_path, SerialExecutor())
    job = service.finished(service.post("/v1/syntheses", topology="a100:2", method="forest", **GATHER).json())
    document = service.client.get(f"/v1/results/{job['result']}").json()["document"]
    assert (document["cached"], document["schedule"]["id"]) == (True, verified.schedule.id)
    assert "cache" in document["seconds"]
    assert "synthesis" not in document["seconds"]


def test_what_was_asked_before_is_answered_at_once(service: Service):
    body = {"topology": "torus:3x3", "method": "bfb", "collective": "allreduce"}
    first = service.finished(service.post("/v1/syntheses", **body).json())
    again = service.post("/v1/syntheses", **body)
    assert again.status_code == 200
    assert (again.json()["state"], again.json()["cached"]) == ("done", "yes")
    assert again.json()["result"] == first["result"]
    assert len(service.backend.started) == 1


def test_a_program_is_made_of_a_result_and_checked(service: Service):
    job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    made = service.finished(service.post("/v1/programs", result=job["result"], target="msccl-xml", channels=2).json())
    text = service.client.get(f"/v1/results/{made['result']}/files/program.xml").content
    assert text.startswith(b"<algo")
    assert len(lift(text).ranks) == 4
    made = service.finished(service.post("/v1/programs", result=job["result"], target="mscclpp-json").json())
    answer = service.client.get(f"/v1/results/{made['result']}/files/program.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["gpus"]


def test_a_bound_and_a_find(service: Service):
    job = service.finished(service.post("/v1/bounds", topology="a100:2", **GATHER).json())
    assert service.client.get(f"/v1/results/{job['result']}").json()["document"]["time_per_byte"] == "3/1040"
    document = service.client.get(f"/v1/results/{job['result']}").json()["document"]
    assert "must get" in document["because"]
    assert document["because_in_network"] is None
    job = service.finished(service.post("/v1/finds", nodes=16, degree=4).json())
    assert service.client.get(f"/v1/results/{job['result']}").json()["document"]["frontier"]


def test_results_are_judged(service: Service):
    """8 H100 at 270 GB/s, which is 60 % of what switches that add allow."""
    row = "1073741824 268435456 float sum -1 3976.8 270.00 472.50 0 3976.8 270.00 472.50 0"
    body = {"topology": "h100:1", "results": f"# Collective test starting: all_reduce_perf\n{row}\n"}
    job = service.finished(service.post("/v1/judgements", **body).json())
    document = service.client.get(f"/v1/results/{job['result']}").json()["document"]
    assert document["verdict"].startswith("good: 1GiB at 270 GB/s")
    assert document["sizes"][0]["percent_of_bound"] == pytest.approx(60, abs=0.1)
    refused = service.post("/v1/judgements", **body | {"results": "nothing"})
    assert (refused.status_code, "contains no measured times of a collective" in refused.text) == (422, True)


def test_a_picture_has_loads_and_the_tree_of_a_root(service: Service):
    job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb", **GATHER).json())
    picture = service.client.get(f"/v1/results/{job['result']}/picture", params={"root": 2}).json()
    assert len(picture["nodes"]) == 4
    assert {one["share"] for one in picture["connections"]} == {1.0}
    assert sum(one["load"] for one in picture["connections"]) == pytest.approx(12)
    assert {edge["dst"] for edge in picture["tree"]} == {0, 1, 3}
    assert [sum(load for _, load in step) for step in picture["steps"]] == [8, 4]
    assert service.client.get(f"/v1/results/{job['result']}/picture", params={"root": 4}).status_code == 422


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"topology": "torus:4x", "method": "bfb"}, 422, "whole numbers"),
        ({"topology": "ring:4", "method": "magic"}, 422, "magic"),
        ({"topology": "file:/etc/passwd", "method": "bfb"}, 422, "file"),
        ({"topology": "ring:10000000", "method": "bfb"}, 422, "10000000 nodes, about"),
        ({"topology": "ring:20000", "method": "bfb"}, 422, "20000 nodes, about"),
        ({"topology": "ring:4", "method": "bfb", "root": 4, "collective": "broadcast"}, 422, "ranks 0 to 3"),
        ({"topology": "ring:4", "method": "swing", "collective": "alltoall"}, 422, "swing"),
        ({"topology": "ring:4", "method": "bfb", "unknown": 1}, 422, "unknown"),
        ({"topology": {"format": "chorale-topology/1"}, "method": "bfb"}, 422, "document"),
        ({"topology": "ring:4"}, 422, "method"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_rule(service: Service, body, status, part):
    answer = service.client.post("/v1/syntheses", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert part in f"{error['rule']} {error['value']} {error['way_out']}"
    assert not service.backend.started


def test_a_synthesis_that_cannot_be_had_fails_with_the_rule(service: Service):
    body = {"topology": "ring:4", "method": "expand"}
    answer = service.client.post("/v1/syntheses", json=body)
    job = service.finished(answer.json())
    assert job["state"] == "failed"
    assert job["error"]["kind"] == "refused"
    assert job["error"]["way_out"]


def test_a_bug_before_the_start_costs_one_job_only(service: Service, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as bug:
        bug.setattr(scheduler, "JobTask", broken)
        job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    assert (job["state"], job["error"]["kind"]) == ("failed", "crash")
    assert service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())["state"] == "done"


def test_a_queued_and_a_running_job_are_cancelled(service: Service):
    service.backend.held.set()
    running = service.post("/v1/syntheses", topology="ring:4", method="bfb").json()
    queued = service.post("/v1/syntheses", topology="ring:5", method="bfb").json()
    for job in (queued, running):
        assert service.client.delete(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
    assert service.client.delete(f"/v1/jobs/{queued['id']}").status_code == 409
    service.backend.held.clear()
    again = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    assert again["state"] == "done"


def test_equal_jobs_share_a_computation(service: Service):
    service.backend.held.set()
    jobs = [service.post("/v1/syntheses", topology="ring:4", method="bfb").json() for _ in range(3)]
    service.backend.held.clear()
    assert {service.finished(job)["state"] for job in jobs} == {"done"}
    assert len(service.backend.started) == 1


def test_a_result_that_cannot_be_kept_is_a_failure_and_can_be_had_later(service: Service, monkeypatch):
    def full(*_: object) -> None:
        raise Unavailable("cannot write", "No space left on device", "free some space")

    with monkeypatch.context() as disk:
        disk.setattr(job_store, "write_file", full)
        job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    assert job["state"] == "failed"
    assert job["error"]["way_out"] == "free some space"
    assert service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())["state"] == "done"


def test_jobs_go_on_after_a_restart(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend) as client:
        first = Service(client, backend)
        jobs = [first.post("/v1/syntheses", topology=f"ring:{nodes}", method="bfb").json() for nodes in (4, 5, 6)]
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        second = Service(client, backend)
        assert {second.finished(job)["state"] for job in jobs} == {"done"}


TOKENS = {name: make_token() for name in ("alice", "bob", "root")}


def access_of(jobs: int = 20, requests: int = 1000) -> Access:
    roles = {name: CallerRole.PLANNER for name in TOKENS} | {"root": CallerRole.ADMINISTRATOR}
    callers = {digest: Caller(name, jobs, requests, roles[name]) for name, (_, digest) in TOKENS.items()}
    return Access(lambda: callers)


def test_owners_see_their_own_jobs_and_administrators_all(tmp_path):
    alice, bob, root = (TOKENS[name][0] for name in ("alice", "bob", "root"))
    with start_service(tmp_path, FakeTaskBackend(), access_of()) as client:
        service = Service(client, FakeTaskBackend())
        job = service.finished(service.post("/v1/syntheses", alice, topology="ring:4", method="bfb").json(), alice)
        for token, status in ((alice, 200), (bob, 404), (root, 200)):
            headers = {"Authorization": f"Bearer {token}"}
            assert client.get(f"/v1/jobs/{job['id']}", headers=headers).status_code == status
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {bob}"}).json()["jobs"] == []
        assert client.delete(f"/v1/jobs/{job['id']}", headers={"Authorization": f"Bearer {bob}"}).status_code == 404


def test_quotas_of_jobs_and_of_requests_answer_429(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend, access_of(jobs=2, requests=5)) as client:
        service, token = Service(client, backend), TOKENS["alice"][0]
        answers = [service.post("/v1/syntheses", token, topology=f"ring:{n}", method="bfb") for n in range(4, 10)]
        assert [answer.status_code for answer in answers] == [202, 202, 429, 429, 429, 429]
        assert "unfinished" in answers[2].json()["error"]["rule"]
        assert "a minute" in answers[5].json()["error"]["rule"]
        assert answers[5].headers["Retry-After"]


def wait_until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_owners_take_turns_and_priorities_order_their_own_jobs(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend, access_of()) as client:
        service, alice, bob = Service(client, backend), TOKENS["alice"][0], TOKENS["bob"][0]
        asked = [(alice, 4, 5), (alice, 5, 1), (alice, 6, 9), (alice, 7, 5), (bob, 8, 5), (bob, 9, 5)]
        jobs = []
        for token, nodes, priority in asked:
            body = {"topology": f"ring:{nodes}", "method": "bfb", "priority": priority}
            jobs.append((service.post("/v1/syntheses", token, **body).json(), token))
            wait_until(lambda: backend.started)  # the first runs before the others come
        backend.held.clear()
        finished = [service.finished(job, token) for job, token in jobs]
        order = [job["request"]["topology"] for job in sorted(finished, key=lambda job: job["started_s"])]
    # The first was running already; then bob, who was never served, and so on in turns.
    assert order == ["ring:4", "ring:8", "ring:6", "ring:9", "ring:7", "ring:5"]


def test_the_largest_body_may_also_come_without_a_length(service: Service):
    def chunks():
        for _ in range(30):
            yield b" " * 10_000

    assert service.client.post("/v1/syntheses", content=chunks()).status_code == 413


def test_a_service_for_others_needs_tokens(tmp_path):
    home = Home(tmp_path)
    with pytest.raises(InvalidInput, match="token file"):
        load_access(None, "0.0.0.0", home, time.time)
    token, digest = make_token()
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens:\n- name: alice\n  sha256: {digest}\n")
    assert load_access(str(path), "0.0.0.0", home, time.time).caller(f"Bearer {token}").name == "alice"
    path.write_text("tokens:\n- name: alice\n  sha256: short\n")
    with pytest.raises(InvalidInput, match="sha256"):
        load_access(str(path), "0.0.0.0", home, time.time)


def test_a_job_beyond_the_memory_of_every_node_fails_at_once(tmp_path):
    backend = FakeTaskBackend()
    backend.largest_memory_bytes = memory_estimate(4) - 1
    with start_service(tmp_path, backend, limits=JobLimits()) as client:
        service = Service(client, backend)
        job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    assert job["state"] == "failed"
    assert "memory" in job["error"]["rule"]
    assert not backend.started


def test_a_stream_of_events_is_counted_and_not_timed(service: Service):
    service.client.app.state.stopping.set()  # type: ignore[attr-defined] - so that the stream ends at once
    assert service.client.get("/v1/events", params={"topic": "health"}).status_code == 200
    text = service.client.get("/metrics").text
    assert 'route="/v1/events",status="200"} 1.0' in text
    assert 'chorale_request_seconds_count{method="GET",route="/v1/events"}' not in text


def test_metrics_and_headers(service: Service):
    service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    answer = service.client.get("/metrics")
    assert 'route="/v1/syntheses",status="202"} 1.0' in answer.text
    assert 'chorale_jobs{state="queued"} 0.0' in answer.text
    assert 'chorale_request_seconds_count{method="POST",route="/v1/syntheses"} 1.0' in answer.text
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
