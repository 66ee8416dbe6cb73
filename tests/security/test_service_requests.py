"""What requests may not say: paths, commands, names that lead elsewhere; where they may not come from."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from chorale.runners.api.registry import RUNNERS
from chorale.synth.topology.formats.json_document import to_json
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import SECTIONS
from chorale.tuner.service.access import redacted
from chorale.tuner.service.campaigns import exposure, is_closed, takes_text
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.store import Store
from tests.security.service import CAMPAIGN, ROLES, Attacked, attacked

CLOSED = {"local": {"fabric"}, "oneccl": {"fabric"}, "simulated": set(), "recorded": set()}
CLOSED |= {"mpi": {"fabric", "hosts", "interface"}}
GPUS = {"launcher", "hosts", "address", "variables", "memory"}
CLOSED |= {"msccl": {"library_folder", *GPUS}, "nccl": {"library", "runtime", "torch", *GPUS}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Attacked]:
    with attacked(tmp_path) as this:
        yield this


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A service that refuses everything it is asked, so that all these tests may ask the same."""
    with attacked(tmp_path_factory.mktemp("refusing")) as this:
        yield this


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize(
    "runner",
    [
        {"kind": "msccl", "msccl": {"launcher": "mpich"}},
        {"kind": "msccl", "msccl": {"library_folder": "/tmp/attacker"}},
        {"kind": "msccl", "msccl": {"variables": {"LD_PRELOAD": "/tmp/attacker.so"}}},
        {"kind": "msccl", "msccl": {"hosts": ["attacker.example"]}},
        {"kind": "nccl", "library": "/tmp/attacker.so"},
        {"kind": "mpi", "hosts": "@/root/secret"},
        {"kind": "mpi", "interface": "attacker0"},
        {"kind": "local", "fabric": "../../attacker"},
        {"kind": "local"},
        {"kind": "oneccl"},
        {"kind": "simulated", "needs": {"gpus": 8}},
        {"kind": "simulated", "at_once": 64},
        {"profile": "unknown"},
        {"profile": ["gpus"]},
        {"profile": "gpus", "msccl": {"library_folder": "/tmp/attacker"}},
        {"profile": "here", "kind": "msccl"},
    ],
)
def test_no_role_names_what_is_started(refusing: Attacked, role: str, runner: dict[str, Any]):
    answer = refusing.launch(role, runner=runner)
    assert answer.status_code == (403 if role == "planner" and "profile" in runner else 422)
    assert not refusing.launches.started


def store(service: Attacked, campaign: Mapping[str, Any]) -> None:
    """Write the journal of a launch of this campaign."""
    folder = service.home.campaigns / "attack" / "1"
    folder.mkdir(parents=True)
    Store(folder, Launch("launch", 1, {}, dict(campaign), 5.0)).close()


def test_a_profile_is_what_the_administrator_wrote_and_is_not_shown(service: Attacked):
    assert service.launch("operator", runner={"profile": "gpus"}, topology="ring:4").status_code == 202
    ((campaign, _),) = service.launches.started
    assert campaign["runner"]["msccl"]["library_folder"] == "/opt/canary-tests"
    store(service, campaign)
    for role in ("operator", "administrator"):
        shown = service.ask("GET", "/v1/campaigns/attack", role)
        assert shown.status_code == 200
        assert shown.json()["campaign"]["runner"] == {"kind": "msccl", "profile": "gpus"}
        for canary in ("canary", "secret-value", str(service.home.root)):
            assert canary not in shown.text
    service.launches.stop("attack")
    assert service.ask("POST", "/v1/campaigns/attack/resume", "operator", {}).status_code == 202
    assert service.launches.started[-1][0]["runner"] == campaign["runner"]


def test_a_stored_campaign_of_a_runner_without_a_profile_is_not_gone_on_with(service: Attacked):
    assert service.launch("administrator").status_code == 202
    service.launches.stop("attack")
    ((campaign, _),) = service.launches.started
    runner = SECTIONS["msccl"].model_validate({"kind": "msccl", "msccl": {"library_folder": "/tmp/attacker"}})
    store(service, {**campaign, "runner": runner.model_dump(by_alias=True, mode="json")})
    assert "attacker" not in service.ask("GET", "/v1/campaigns/attack", "administrator").text
    assert service.ask("POST", "/v1/campaigns/attack/resume", "administrator", {}).status_code == 422
    assert len(service.launches.started) == 1


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_option_of_a_runner_that_takes_text_says_who_may_set_it(runner: str):
    fields = RUNNERS[runner].model_fields
    silent = [name for name, field in fields.items() if takes_text(field.annotation) and exposure(field) is None]
    assert silent == [], "mark them as SERVER_ONLY or FROM_REQUESTS, see chorale.runners.api.config"
    assert {name for name, field in fields.items() if is_closed(field)} == CLOSED.get(runner, set())


def test_every_key_of_a_campaign_that_takes_text_says_who_may_set_it():
    assert list(_silent(Campaign, "")) == []


def _silent(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and name != "runner":
            yield from _silent(inner, f"{path}{name}.")
        elif name != "runner" and takes_text(inner) and exposure(field) is None and is_closed(field):
            yield f"{path}{name}"


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize(
    "changes",
    [
        {"topology": "file:{secret}"},
        {"topology": "without(file:{secret};0)"},
        {"storage": "sqlite:///{secret}"},
        {"storage": "postgresql://user:password@elsewhere.example/x"},
        {"tracking": {"mlflow_uri": "file:{secret}"}},
        {"tracking": {"experiment": "../../../x"}},
        {"tracking": {"experiment": "/tmp/x"}},
        {"tracking": {"experiment": "a/b"}},
        {"tracking": {"experiment": ".."}},
        {"name": "../x"},
        {"name": "a/b"},
        {"register": {"model": "../x"}},
        {"register": {"alias": "../x"}},
        {"search": {"methods": ["{secret}"]}},
        {"baselines": ["../{secret}"]},
        {"search": {"methods": ["bfb"], **{k: {"from": 1, "to": 1000} for k in ("k", "chunks")}}},
    ],
)
def test_requests_have_no_paths_and_nothing_of_files_comes_back(
    refusing: Attacked, tmp_path: Path, role: str, changes: dict[str, Any]
):
    secret = tmp_path / "secret.json"
    secret.write_text('{"canary-of-a-file": 1}')
    filled = json.loads(json.dumps(changes).replace("{secret}", str(secret)))
    answer = refusing.launch(role, **filled)
    assert answer.status_code == 422
    assert "canary-of-a-file" not in answer.text
    absent = refusing.launch(role, **json.loads(json.dumps(changes).replace("{secret}", f"{secret}-absent")))
    assert absent.status_code == answer.status_code  # whether a file is there is not said either
    assert absent.text.replace("-absent", "") == answer.text
    assert not refusing.launches.started


def test_specs_of_jobs_and_queries_read_no_files(refusing: Attacked, tmp_path: Path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"canary-of-a-file": 1}')
    for spec in (f"file:{secret}", f"file:{secret}-absent", f"without(file:{secret};0)"):
        for path, body in (("syntheses", {"method": "bfb"}), ("bounds", {})):
            answer = refusing.ask("POST", f"/v1/{path}", "planner", {"topology": spec, **body})
            assert answer.status_code == 422
            assert "canary" not in answer.text
        question = f"/v1/best?topology={spec}&collective=allreduce&size_bytes=1024"
        assert refusing.ask("GET", question, "reader").status_code == 422


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
]


def test_pages_elsewhere_forms_and_text_change_nothing_and_the_page_of_the_service_may(service: Attacked):
    assert service.launch("local").status_code == 202
    for headers in FOREIGN:
        for verb in ("stop", "resume"):
            assert service.ask("POST", f"/v1/campaigns/attack/{verb}", "local", {}, **headers).status_code == 403
        body = {"topology": "ring:4", "method": "bfb"}
        assert service.ask("POST", "/v1/syntheses", "local", body, **headers).is_error
        assert service.ask("DELETE", f"/v1/jobs/{'0' * 32}", "local", **headers).status_code == 403
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None):
        sent = {"Authorization": f"Bearer {service.tokens['local']}"} | ({} if kind is None else {"Content-Type": kind})
        for verb in ("stop", "resume"):
            assert service.client.post(f"/v1/campaigns/attack/{verb}", headers=sent).status_code == 415
    assert service.launches.states["attack"][0] == "running"
    own = {"Origin": "http://127.0.0.1:8600", "Sec_Fetch_Site": "same-origin"}
    assert service.ask("POST", "/v1/campaigns/attack/stop", "local", {}, **own).is_success


def test_answers_have_no_paths_of_the_server(service: Attacked):
    service.ask("POST", "/v1/campaigns", "planner", {"campaign": dict(CAMPAIGN)})
    service.launches.states["attack"] = ("failed", "cannot write /root/data/artifacts/x: sqlite:////root/a.db denied")
    assert "/root" not in service.ask("GET", "/v1/campaigns", "planner").text
    (service.home.root / "mlflow.db").mkdir()  # the registry cannot be opened
    answer = service.ask("GET", "/v1/best?topology=ring:4&collective=allreduce&size_bytes=1024", "reader")
    assert answer.status_code == 503
    assert str(service.home.root) not in answer.text


def test_what_is_left_out_of_answers():
    cases = {
        "/root/x.json: Permission denied": "(path): Permission denied",
        "[Errno 2]: '/home/a/b'": "[Errno 2]: '(path)'",
        "sqlite:////data/x.db: closed": "sqlite://(address) closed",
        "http://user:secret@host/x?y, twice": "http://(address) twice",
        "see /v1/campaigns and /openapi.json, 3/1040": "see /v1/campaigns and /openapi.json, 3/1040",
        "write 1/3 or torus:4x4": "write 1/3 or torus:4x4",
    }
    assert {text: redacted(text) for text in cases} == cases


HALF = "\ud800x"
"""Text that no file, database or answer can hold: half of a character of UTF-16."""
DOCUMENT = to_json(parse_topology("ring:4"))
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/syntheses": {"topology": DOCUMENT, "method": "bfb", "collective": "allreduce"},
    "/v1/bounds": {"topology": "ring:4"},
    "/v1/finds": {"nodes": 8, "degree": 2},
    "/v1/programs": {"result": "0" * 64, "target": "msccl-xml"},
    "/v1/prices": {"result": "0" * 64, "sizes_bytes": [1]},
    "/v1/judgements": {"topology": "ring:4", "results": "size,time", "file_name": "a.csv"},
    "/v1/topologies": {"topology": DOCUMENT},
    "/v1/campaigns": {"campaign": {**CAMPAIGN, "yaml": None}},
    "/v1/campaigns/checks": {"yaml": "name: x"},
}


def with_half(value: Any) -> Iterator[Any]:
    """Yield copies of a document in which one text, or the name of one field, is `HALF`."""
    if isinstance(value, str):
        yield HALF
    elif isinstance(value, dict):
        yield {**value, HALF: 1}
        yield from ({**value, key: changed} for key in value for changed in with_half(value[key]))
    elif isinstance(value, list):
        yield from ([changed, *value[1:]] for changed in with_half(value[0]) if value)


def test_half_characters_are_refused_in_words(refusing: Attacked):
    headers = {"Authorization": f"Bearer {refusing.tokens['administrator']}", "Content-Type": "application/json"}
    bodies = [(path, body) for path, whole in BODIES.items() for body in with_half(whole)]
    bodies += [
        ("/v1/campaigns/checks", {"yaml": json.dumps({**CAMPAIGN, key: HALF})}) for key in ("name", "topology", HALF)
    ]
    bodies.append(("/v1/campaigns", {"yaml": json.dumps({**CAMPAIGN, "collective": HALF})}))
    results = {"results": json.dumps({HALF: HALF}), "file_name": "a.json"}
    bodies.append(("/v1/judgements", {"topology": "ring:4", **results}))
    for path, body in bodies:
        for content in (
            json.dumps(body).encode(),
            json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        ):
            answer = refusing.client.post(path, content=content, headers=headers)
            assert answer.status_code in (400, 422), (body, answer.text)
            assert set(answer.json()["error"]) == {"rule", "value", "way_out"}


def test_paths_and_queries_that_are_no_text_find_nothing(refusing: Attacked):
    for text in ("%ED%A0%80", "%FF%FE", "%00", "%F0%9F%98"):
        paths = [f"/v1/{kind}/{text}" for kind in ("jobs", "results", "campaigns")]
        paths += [f"/{text}", f"/v1/events?topic={text}", f"/v1/jobs?state={text}"]
        for path in [*paths, f"/v1/best?topology={text}&collective={text}&size_bytes=1"]:
            assert refusing.ask("GET", path, "administrator").status_code in (400, 404, 422), path
