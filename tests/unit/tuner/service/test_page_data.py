"""What the page is drawn from: networks while they are typed, trees through switches, names, events."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.service.access import TooManyRequests
from chorale.tuner.service.http import events
from chorale.tuner.service.http.events import EventStreams, Topic
from chorale.tuner.trials.records import Candidate
from tests.campaigns import complete
from tests.unit.tuner.service.test_campaigns import written

EXAMPLES = Path(__file__).parents[4] / "examples"


def test_a_tree_goes_hop_by_hop_through_switches(service):
    key = service.synthesis("a100:2", "forest", collective="allgather")["result"]
    picture = service.client.get(f"/v1/results/{key}/picture").json()
    links = {(line["src"], line["dst"]) for line in picture["connections"]}
    assert {(edge["src"], edge["dst"]) for edge in picture["tree"]} <= links
    reached = {0}
    for edge in picture["tree"]:  # sorted by step and hop: what is sent on has come before
        assert edge["src"] in reached
        reached.add(edge["dst"])
    assert set(range(16)) <= reached
    whole = [0.0] * len(picture["connections"])
    for step in picture["steps"]:
        for row, load in step:
            whole[row] += load
    assert whole == pytest.approx([line["load"] for line in picture["connections"]])


def test_a_network_is_described_and_drawn_from_its_spec_and_from_a_document(service):
    view = service.post("/v1/topologies", topology="mesh:2x3").json()
    assert (view["topology"]["nodes"], view["topology"]["links"], view["unit"]) == (6, 14, "link")
    assert len(view["picture"]["nodes"]) == 6
    assert {line["bandwidth"] for line in view["picture"]["connections"]} == {1.0}
    document = service.post("/v1/topologies", topology=to_json(parse_topology("mesh:2x3"))).json()
    assert document["picture"]["connections"] == view["picture"]["connections"]
    printed = (EXAMPLES / "b200-topo.txt").read_text()
    assert service.post("/v1/topologies", topology={"file": printed}).json()["topology"]["nodes"] == 8
    assert service.post("/v1/topologies", topology={"file": "no network"}).status_code == 422
    assert service.post("/v1/topologies", topology="torus:4x").status_code == 422
    view = service.post("/v1/topologies", topology="biring:4,3").json()
    assert [line["bandwidth"] for line in view["picture"]["connections"]] == [2.0] * 6
    view = service.post("/v1/topologies", topology="torus:32x32").json()
    assert view["topology"]["nodes"] == 1024
    assert view["picture"] is None
    assert "at most 512 nodes" in view["why"]


def test_the_catalog_names_what_requests_may_name_and_vendored_files_may_be_cached(service):
    names = service.client.get("/v1/catalog").json()
    assert "auto" in {method["name"] for method in names["methods"]}
    assert "simulated" in names["runners"]
    assert "local" not in names["runners"]
    for family in names["families"]:
        assert parse_topology(family["example"]).compute_count
    assert names["dashboards"] == {"mlflow": None, "ray": None, "optuna": None}
    for name in json.loads(service.client.get("/vendor/vendored.json").text):
        for file in name["sha256"]:
            response = service.client.get(f"/vendor/{file}")
            assert response.status_code == 200
            assert "immutable" in response.headers["cache-control"]


CAMPAIGN = "name: small\ntopology: ring:4\ncollective: allreduce\nrunner: {kind: simulated, link_mbps: 100}\n"


def test_a_campaign_as_yaml_is_checked_and_launched(service):
    checked = service.post("/v1/campaigns/checks", yaml=CAMPAIGN + "search: {methods: [bfb, ring], channels: [1, 2]}\n")
    assert checked.status_code == 200
    assert (checked.json()["ranks"], checked.json()["points"]) == (4, 4)
    wrong = service.post("/v1/campaigns/checks", yaml=CAMPAIGN + "sampler: magic\n")
    assert wrong.status_code == 422
    assert "sampler" in wrong.json()["error"]["value"]
    assert service.post("/v1/campaigns", yaml=CAMPAIGN).json()["name"] == "small"
    assert service.post("/v1/campaigns", yaml=CAMPAIGN, campaign={}).status_code == 422
    assert service.post("/v1/campaigns").status_code == 422


async def count_events(stream: Any, counts: list[int] | None = None) -> None:
    """Read a stream to its end; add how many parts it had."""
    count = len([event async for event in stream])
    if counts is not None:
        counts.append(count)


def told(streams: EventStreams, topics: dict[str, Topic], stopping: threading.Event, count: int) -> list[str]:
    """Return the first `count` parts of a stream, which the service then ends."""
    parts: list[str] = []

    async def read() -> None:
        async for event in streams.events("me", topics):
            parts.append(event.encode().decode())
            if len(parts) == count:
                stopping.set()

    anyio.run(read)
    return parts


def test_an_event_is_sent_when_what_is_looked_at_has_changed(monkeypatch):
    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    values: Iterator[int] = iter([1, 1, 2, 2, 3])
    stopping = threading.Event()
    streams = EventStreams(stopping)
    topics = {"count": Topic(lambda: {"value": next(values)}, 0.0)}
    parts = told(streams, topics, stopping, 4)
    assert parts[1:] == [f'event: count\ndata: {{"value": {value}}}\n\n' for value in (1, 2, 3)]


def test_looks_of_all_streams_of_a_token_take_a_small_part_of_a_processor():
    streams, looks = EventStreams(threading.Event()), list[float]()

    def look() -> None:
        looks.append(time.monotonic())
        begun_s = time.thread_time()
        while time.thread_time() < begun_s + 0.004:
            pass

    async def read_all() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(count_events, streams.events("me", {"it": Topic(look, 0.0)}))
            while len(looks) < 10:
                await anyio.sleep(0.01)
            await anyio.sleep(0.4)
            group.cancel_scope.cancel()

    begun_s = time.monotonic()
    anyio.run(read_all)
    assert len(looks) <= 10 + 2 * 0.05 * (time.monotonic() - begun_s) / 0.004  # one each, and twice a twentieth


def test_a_refusal_is_an_event_and_streams_of_a_token_are_bounded(monkeypatch):
    def refused() -> None:
        raise InvalidInput("a rule", "a value", "a way out")

    stopping = threading.Event()
    streams = EventStreams(stopping)
    (_, event) = told(streams, {"it": Topic(refused, 0.0)}, stopping, 2)
    assert json.loads(event.split("data: ")[1])["error"]["status"] == 422
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    stopping.clear()
    both = [streams.response("me", {}) for _ in range(2)]  # both may begin, since neither has yet
    sent = list[int]()

    async def read_both() -> None:
        async with anyio.create_task_group() as group:
            for answer in both:
                group.start_soon(count_events, answer.body_iterator, sent)
            await anyio.sleep(0.1)
            with pytest.raises(TooManyRequests, match="streams"):
                streams.response("me", {})
            stopping.set()

    anyio.run(read_both)
    assert sorted(sent) == [0, 1]


def test_events_of_jobs_and_campaigns_come_over_http(service, tmp_path, monkeypatch):
    monkeypatch.setattr(events, "LIMIT_S", 0.3)
    job = service.synthesis("ring:4")
    written(tmp_path).add(complete(Candidate("bfb")))
    query = {"topic": ["health", f"job/{job['id']}", "campaign/small", "campaign/none"]}
    text = service.client.get("/v1/events", params=query).text
    parts = [part.removeprefix("event: ") for part in text.split("\n\n") if part.startswith("event")]
    data = dict(reversed([part.split("\ndata: ") for part in parts]))  # the first of each topic
    assert json.loads(data["health"])["ok"]
    assert json.loads(data[f"job/{job['id']}"])["result"] == job["result"]
    assert json.loads(data["campaign/none"])["error"]["status"] == 404
    assert (json.loads(data["campaign/small"])["known"], len(json.loads(data["campaign/small"])["trials"])) == (0, 1)
    assert service.client.get("/v1/events", params={"topic": "weather"}).status_code == 422
