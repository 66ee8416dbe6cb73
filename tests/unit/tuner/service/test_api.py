"""The service as clients see it: jobs, results, prices, the registry, refusals."""

from fractions import Fraction

import pytest

from chorale.synth.errors import Unavailable
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.lift import lift
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.service.access import Access, Caller, CallerRole, make_token
from chorale.tuner.service.jobs import job_store, scheduler
from chorale.tuner.service.jobs.job_specs import BoundSpec, JobLimits, NetworkPlanner, memory_estimate
from chorale.tuner.service.jobs.tasks import JobTask, run_task
from tests.command import chorale
from tests.unit.tuner.launch.test_tuning import run
from tests.unit.tuner.service.conftest import FakeTaskBackend, Service, start_service
from tests.waiting import until

GATHER = {"collective": "allgather"}


def test_a_synthesis_gives_a_proved_document_and_a_schedule_that_verifies(service):
    answer = service.post("/v1/syntheses", topology="a100:2", method="forest", **GATHER)
    assert answer.status_code == 202
    job = service.finished(answer.json())
    document = service.document(job)
    assert (document["cost"]["time_per_byte"], document["optimality"]["gap"]) == ("3/1040", "0")
    content = service.client.get(f"/v1/results/{job['result']}/files/schedule.parquet").content
    assert verify(from_parquet(content, load_topology)).cost.time_per_byte == Fraction(3, 1040)
    assert service.document(service.synthesis("torus:3x3", "auto", **GATHER))["method"] == "bfb"
    failed = service.synthesis("ring:4", "expand")
    assert (failed["state"], failed["error"]["kind"], not failed["error"]["way_out"]) == ("failed", "refused", False)


def test_what_was_asked_before_is_answered_at_once_and_equal_jobs_share_a_computation(service):
    service.backend.held.set()
    body = {"topology": "torus:3x3", "method": "bfb", "collective": "allreduce"}
    jobs = [service.post("/v1/syntheses", **body).json() for _ in range(3)]
    service.backend.held.clear()
    [result] = {service.finished(job)["result"] for job in jobs}
    again = service.post("/v1/syntheses", **body)
    assert again.status_code == 200
    assert (again.json()["state"], again.json()["cached"], again.json()["result"]) == ("done", "yes", result)
    assert len(service.backend.started) == 1


def test_a_program_is_made_of_a_result_and_checked(service):
    job = service.synthesis("ring:4")

    def made(name: str, **options):
        job_of_program = service.finished(service.post("/v1/programs", result=job["result"], **options).json())
        return service.client.get(f"/v1/results/{job_of_program['result']}/files/{name}")

    assert len(lift(made("program.xml", target="msccl-xml", channels=2).content).ranks) == 4
    answer = made("program.json", target="mscclpp-json")
    assert (answer.headers["content-type"], bool(answer.json()["gpus"])) == ("application/json", True)


def test_bounds_finds_and_judgements(service):
    document = service.document(service.finished(service.post("/v1/bounds", topology="a100:2", **GATHER).json()))
    assert (document["time_per_byte"], document["because_in_network"]) == ("3/1040", None)
    assert "must get" in document["because"]
    assert service.document(service.finished(service.post("/v1/finds", nodes=16, degree=4).json()))["frontier"]
    row = "1073741824 268435456 float sum -1 3976.8 270.00 472.50 0 3976.8 270.00 472.50 0"
    body = {"topology": "h100:1", "results": f"# Collective test starting: all_reduce_perf\n{row}\n"}
    document = service.document(service.finished(service.post("/v1/judgements", **body).json()))
    assert document["verdict"].startswith("good: 1GiB at 270 GB/s")
    assert document["sizes"][0]["percent_of_bound"] == pytest.approx(60, abs=0.1)
    refused = service.post("/v1/judgements", **body | {"results": "nothing"})
    assert (refused.status_code, "contains no collective timings" in refused.text) == (422, True)


def test_a_picture_has_loads_and_the_tree_of_a_root(service):
    job = service.synthesis("ring:4", **GATHER)
    picture = service.client.get(f"/v1/results/{job['result']}/picture", params={"root": 2}).json()
    assert len(picture["nodes"]) == 4
    assert {one["share"] for one in picture["connections"]} == {1.0}
    assert sum(one["load"] for one in picture["connections"]) == pytest.approx(12)
    assert {edge["dst"] for edge in picture["tree"]} == {0, 1, 3}
    assert [sum(load for _, load in step) for step in picture["steps"]] == [8, 4]
    assert service.client.get(f"/v1/results/{job['result']}/picture", params={"root": 4}).status_code == 422


@pytest.mark.parametrize(
    ("place", "name", "problem", "kind"),
    [
        (scheduler, "JobTask", RuntimeError("a bug"), "crash"),
        (job_store, "write_file", Unavailable("cannot write", "No space left on device", "free some space"), "refused"),
    ],
)
def test_what_goes_wrong_costs_one_job_only(service, monkeypatch, place, name, problem, kind):
    def broken(*_):
        raise problem

    with monkeypatch.context() as fault:
        fault.setattr(place, name, broken)
        job = service.synthesis("ring:4")
    assert (job["state"], job["error"]["kind"]) == ("failed", kind)
    assert service.synthesis("ring:4")["state"] == "done"


def test_a_queued_and_a_running_job_are_cancelled(service):
    service.backend.held.set()
    running = service.post("/v1/syntheses", topology="ring:4", method="bfb").json()
    queued = service.post("/v1/syntheses", topology="ring:5", method="bfb").json()
    assert service.client.get("/v1/jobs").json()["jobs"][0] == queued
    for job in (queued, running):
        assert service.client.delete(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
    assert service.client.delete(f"/v1/jobs/{queued['id']}").status_code == 409
    service.backend.held.clear()
    assert service.synthesis("ring:4")["state"] == "done"


def test_jobs_go_on_after_a_restart(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend) as client:
        first = Service(client, backend)
        jobs = [first.post("/v1/syntheses", topology=f"ring:{nodes}", method="bfb").json() for nodes in (4, 5, 6)]
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        second = Service(client, backend)
        assert all(second.finished(job)["state"] == "done" for job in jobs)


TOKENS = {name: make_token() for name in ("alice", "bob", "root")}
ALICE, BOB, ROOT = (TOKENS[name][0] for name in TOKENS)


def access_of(jobs: int = 20, requests: int = 1000) -> Access:
    roles = {name: CallerRole.PLANNER for name in TOKENS} | {"root": CallerRole.ADMINISTRATOR}
    callers = {digest: Caller(name, jobs, requests, roles[name]) for name, (_, digest) in TOKENS.items()}
    return Access(lambda: callers)


def test_owners_see_their_own_jobs_and_administrators_all(tmp_path):
    with start_service(tmp_path, FakeTaskBackend(), access_of()) as client:
        service = Service(client, FakeTaskBackend())
        job = service.finished(service.post("/v1/syntheses", ALICE, topology="ring:4", method="bfb").json(), ALICE)
        bob, path = {"Authorization": f"Bearer {BOB}"}, f"/v1/jobs/{job['id']}"
        for token, status in ((ALICE, 200), (BOB, 404), (ROOT, 200)):
            assert client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == status
        lists = [client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}) for token in (BOB, ROOT)]
        assert [one.json()["jobs"] for one in lists] == [[], [job]]
        assert client.delete(path, headers=bob).status_code == 404


def test_quotas_of_jobs_and_of_requests_answer_429(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend, access_of(jobs=2, requests=5)) as client:
        service = Service(client, backend)
        answers = [service.post("/v1/syntheses", ALICE, topology=f"ring:{n}", method="bfb") for n in range(4, 10)]
        assert [answer.status_code for answer in answers] == [202, 202, 429, 429, 429, 429]
        assert "unfinished" in answers[2].json()["error"]["rule"]
        assert "a minute" in answers[5].json()["error"]["rule"]
        assert answers[5].headers["Retry-After"]


def test_owners_take_turns_and_priorities_order_their_own_jobs(tmp_path):
    backend = FakeTaskBackend()
    backend.held.set()
    with start_service(tmp_path, backend, access_of()) as client:
        service = Service(client, backend)
        asked = [(ALICE, 4, 5), (ALICE, 5, 1), (ALICE, 6, 9), (ALICE, 7, 5), (BOB, 8, 5), (BOB, 9, 5)]
        jobs = []
        for token, nodes, priority in asked:
            body = {"topology": f"ring:{nodes}", "method": "bfb", "priority": priority}
            jobs.append((service.post("/v1/syntheses", token, **body).json(), token))
            until(lambda: backend.started)  # the first runs before the others come
        backend.held.clear()
        finished = [service.finished(job, token) for job, token in jobs]
        order = [job["request"]["topology"] for job in sorted(finished, key=lambda job: job["started_s"])]
    # The first was running already; then bob, who was never served, and so on in turns.
    assert order == ["ring:4", "ring:8", "ring:6", "ring:9", "ring:7", "ring:5"]


def test_a_job_beyond_the_memory_of_every_node_fails_at_once(tmp_path):
    backend = FakeTaskBackend()
    backend.largest_memory_bytes = memory_estimate(4) - 1
    with start_service(tmp_path, backend, limits=JobLimits()) as client:
        job = Service(client, backend).synthesis("ring:4")
    assert job["state"] == "failed"
    assert "memory" in job["error"]["rule"]
    assert not backend.started


def test_metrics_headers_and_health_which_waits_for_no_lock(service):
    service.synthesis("ring:4")
    service.client.app.state.stopping.set()  # so that streams end immediately
    assert service.client.get("/v1/events", params={"topic": "health"}).status_code == 200
    answer = service.client.get("/metrics")
    assert 'route="/v1/events",status="200"} 1.0' in answer.text
    assert 'chorale_request_seconds_count{method="GET",route="/v1/events"}' not in answer.text
    assert 'route="/v1/syntheses",status="202"} 1.0' in answer.text
    assert 'chorale_jobs{state="queued"} 0.0' in answer.text
    assert 'chorale_request_seconds_count{method="POST",route="/v1/syntheses"} 1.0' in answer.text
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    with service.client.app.state.scheduler._lock:
        answer = service.client.get("/healthz")
    assert (answer.status_code, answer.json()["queued"]) == (200, 0)


ASKED = {"topology": "ring:4", "collective": "allreduce", "size_bytes": 5000}


def test_what_a_campaign_registered_is_given_out_and_nothing_before(home):
    with start_service(home.root, FakeTaskBackend()) as client:
        answer = client.get("/v1/best", params=ASKED)
        assert answer.status_code == 409
        assert "chorale tune" in answer.json()["error"]["way_out"]
        assert client.get("/v1/best", params={**ASKED, "topology": "file:/etc/hostname"}).status_code == 422
        run(home)
        found = client.get("/v1/best", params=ASKED).json()
        program = client.get("/v1/best/program", params=ASKED).content
        schedule = client.get("/v1/best/schedule", params=ASKED).content
    assert found["exact"]
    assert found["manifest"]["collective"] == "allreduce"
    assert len(lift(program).ranks) == 4
    assert verify(from_parquet(schedule, load_topology)).schedule.topology.spec == "ring:4"


def test_prices_are_those_of_the_command(service, capsys):
    job = service.synthesis("torus:3x3", collective="allreduce")
    asked = {"result": job["result"], "sizes_bytes": [4096, 2**20], "alpha_us": 1, "link_gbps": 100}
    priced = service.finished(service.post("/v1/prices", **asked).json())
    rows = service.document(priced)["results"]
    arguments = ("--sizes", "4KiB,1MiB", "--alpha-us", 1, "--link-gbps", 100, "--json")
    expected = chorale(capsys, "simulate", "bfb", "torus:3x3", *arguments).document["results"]
    assert [row["time_us"] for row in rows] == [pytest.approx(row["time_us"]) for row in expected]
    answer = service.post("/v1/prices", result=job["result"], sizes_bytes=[4096])
    assert (answer.status_code, "link_gbps" in answer.json()["error"]["rule"]) == (422, True)


RING = {"topology": "ring:4", "method": "bfb"}


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("syntheses", {**RING, "k": 3}, ("bfb has the options chunks", "k: 3", "leave out `k`")),
        ("syntheses", {**RING, "objective": "trees"}, ("objective: trees",)),
        ("syntheses", {"topology": "a100:2", "method": "forest", "chunks": 2}, ("leave out `chunks`",)),
        ("syntheses", {**RING, "chunks": 2**15 + 1}, ("chunks per shard must be 1 to 32768", "32769")),
        ("syntheses", {**RING, "chunks": 0}, ("body.chunks", "greater than or equal to 1")),
        ("syntheses", {**RING, "kind": "bound"}, ("body.kind",)),
        ("syntheses", {**RING, "topology": "torus:4x"}, ("whole numbers",)),
        ("syntheses", {**RING, "method": "magic"}, ("magic",)),
        ("syntheses", {**RING, "topology": "file:/etc/passwd"}, ("file",)),
        ("syntheses", {**RING, "topology": "ring:10000000"}, ("a job must have at most", "10000000 nodes, about")),
        ("syntheses", {**RING, "root": 4, "collective": "broadcast"}, ("ranks 0 to 3",)),
        ("syntheses", {**RING, "method": "swing", "collective": "alltoall"}, ("swing",)),
        ("syntheses", {**RING, "topology": {"format": "chorale-topology/1"}}, ("document",)),
        ("syntheses", {"topology": "ring:4"}, ("method",)),
        ("bounds", {"topology": "a100:2", "k": 0}, ("body.k",)),
        ("bounds", {"topology": "a100:2", "method": "bfb"}, ("body.method", "Extra inputs")),
        ("finds", {"nodes": 4, "degree": 4}, ("degree must be below",)),
        ("programs", {"result": "0" * 64, "target": "magic"}, ("unknown target", "magic")),
        ("programs", {"result": "0" * 64, "target": "msccl-xml", "channels": 0}, ("body.channels",)),
    ],
)
def test_what_is_not_possible_is_refused_before_a_job_is_made(service, path, body, parts):
    answer = service.client.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert set(error) == {"rule", "value", "way_out"}
    assert [part for part in parts if part not in f"{error['rule']} {error['value']} {error['way_out']}"] == []
    assert service.client.get("/v1/jobs").json()["jobs"] == []


def test_networks_are_kept_up_to_a_size_and_a_worker_builds_others():
    networks = NetworkPlanner(JobLimits(), cached_links=20)
    networks.plan("ring:4")
    network = networks.cached("ring:4")
    networks.plan("ring:4")
    assert network is not None
    assert networks.cached("ring:4") is network
    networks.plan("complete:4")
    networks.plan("ring:6")
    assert networks.cached("complete:4") is None or networks.cached("ring:4") is None
    networks.plan("complete:8")  # too large to be kept, and no reason to drop others
    assert networks.cached("complete:8") is None
    assert networks.cached("ring:6") is not None
    spec, silent = BoundSpec(topology="ring:4"), lambda _done, _total: None
    assert run_task(JobTask(spec), silent) == run_task(JobTask(spec, parse_topology("ring:4")), silent)
