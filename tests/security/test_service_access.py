"""Who gets in, in which role, how often, and what the logs know of it."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.tuner.cli.tune_launch import _require_free_name
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import (
    Caller,
    CallerRole,
    digest_of,
    load_access,
    local_token,
    read_tokens,
    token_file,
)
from chorale.tuner.service.http.events import _topic
from chorale.tuner.trials.journal import launch_folders
from tests.command import chorale
from tests.security.service import ROLES, attacked

SYNTHESIS = {"topology": "ring:4", "method": "bfb"}
KEY = "0" * 64


def test_a_local_user_without_a_token_starts_nothing_and_reads_nothing(tmp_path: Path):
    with attacked(tmp_path) as service:
        operations = service.client.get("/openapi.json").json()["paths"]
        asked = [(method, path) for path, methods in operations.items() for method in methods]
        assert len(asked) > 15
        answers = {}
        for method, path in asked:
            filled = path.replace("{", "").replace("}", "").replace("name", "small").replace("key", KEY)
            answers[method, path] = service.ask(method.upper(), filled, None, {}).status_code
        open_routes = {route for route, status in answers.items() if status != 401}
        assert open_routes == {("get", "/healthz")}
        assert service.launch(None, runner={"kind": "msccl"}).status_code == 401
        assert not service.launches.started
        assert service.client.get("/").status_code == 200  # the page, which asks for a token


def test_the_token_of_this_machine_is_for_its_owner_only_and_no_key_to_a_service_for_others(tmp_path: Path, capsys):
    home = Home(tmp_path)
    home.create(home.service)
    old = os.umask(0)
    try:
        token = local_token(home)
    finally:
        os.umask(old)
    path = home.service / "local-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert local_token(home) == token
    assert len(token) > 40
    chorale(capsys, "token", "create", "alice", "--tokens", str(token_file(home)))
    access = load_access(None, "0.0.0.0", home, lambda: 0.0)
    with pytest.raises(Exception, match="a request must have a valid token"):
        access.caller(f"Bearer {token}")
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match=r"others may read the secret file|owner only"):
        local_token(home)
    path.unlink()
    path.symlink_to(tmp_path / "planted")
    (tmp_path / "planted").write_text("chorale-known")
    with pytest.raises(InvalidInput, match=r"others may read the secret file|owner only"):
        local_token(home)


def test_roles_may_do_what_their_names_say(tmp_path: Path):
    with attacked(tmp_path) as service:
        allowed = {
            "read": [service.ask("GET", "/v1/jobs", role).status_code for role in ROLES],
            "plan": [service.ask("POST", "/v1/syntheses", role, SYNTHESIS).status_code for role in ROLES],
            "simulate": [service.launch(role, name=f"s-{role}").status_code for role in ROLES],
        }
        for name in list(service.launches.states):
            service.launches.stop(name)
        allowed["operate"] = [service.launch(r, name=f"o-{r}", runner={"profile": "here"}).status_code for r in ROLES]
        allowed["stop another's"] = [
            service.ask("POST", "/v1/campaigns/o-operator/stop", role, {}).status_code for role in ("reader", "planner")
        ]
    assert allowed["read"] == [200] * 4
    assert [status // 100 for status in allowed["plan"]] == [4, 2, 2, 2]
    assert allowed["plan"][0] == 403
    assert allowed["simulate"] == [403, 202, 202, 202]
    assert allowed["operate"] == [403, 403, 202, 202]
    assert allowed["stop another's"] == [403, 404]


def test_tokens_end_when_they_expire_and_when_they_are_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    with attacked(tmp_path, expires="1970-01-12T15:00:00") as service:
        assert service.ask("GET", "/v1/jobs", "reader").status_code == 200
        service.clock.now_s = 1_004_400.0
        expired = service.ask("GET", "/v1/jobs", "reader")
        assert (expired.status_code, expired.json()["error"]["value"]) == (401, "expired")
        made = chorale(capsys, "token", "create", "alice", "--role", "reader", "--forever", "--json").document
        assert service.ask("GET", "/v1/jobs", made["token"]).status_code == 200
        assert service.ask("POST", "/v1/syntheses", made["token"], SYNTHESIS).status_code == 403
        assert chorale(capsys, "token", "revoke", "alice").code == 0
        assert service.ask("GET", "/v1/jobs", made["token"]).status_code == 401
        token_file(service.home).write_text("tokens: broken")
        assert service.ask("GET", "/v1/jobs", "administrator").status_code == 503


def test_of_tokens_only_hashes_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    made = chorale(capsys, "token", "create", "alice", "--json").document
    assert chorale(capsys, "token", "create", "alice").code == 2
    assert chorale(capsys, "token", "create", "local").code == 2
    assert chorale(capsys, "token", "create", "../up").code == 2
    file = tmp_path / "service" / "tokens.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (entry,) = read_tokens(file)
    assert entry.sha256 == digest_of(made["token"])
    listed = chorale(capsys, "token", "list", "--json").stdout
    assert json.loads(listed)["tokens"][0]["name"] == "alice"
    assert entry.sha256 not in listed
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or made["token"].encode() not in path.read_bytes()


def test_a_token_file_that_is_not_sound_is_refused(tmp_path: Path):
    file = tmp_path / "tokens.yaml"
    entries = [{"name": "a", "sha256": "a" * 64, "role": "administrator"}, {"name": "c", "sha256": "c" * 64, "jobs": 3}]
    file.write_text(yaml.safe_dump({"tokens": entries}))
    file.chmod(0o644)
    assert [entry.caller().role for entry in read_tokens(file)] == [CallerRole.ADMINISTRATOR, CallerRole.PLANNER]
    for wrong in ({"admin": True}, {"role": "root"}, {"sha256": "a" * 64}):
        file.write_text(yaml.safe_dump({"tokens": [*entries, {"name": "d", "sha256": "d" * 64, **wrong}]}))
        with pytest.raises(InvalidInput, match="token create"):
            read_tokens(file)
    file.chmod(0o666)
    with pytest.raises(InvalidInput, match="other users may write to the permissions file"):
        read_tokens(file)


def test_wrong_tokens_are_throttled_by_client_and_right_ones_are_not(tmp_path: Path):
    with attacked(tmp_path) as service:
        statuses = [service.ask("GET", "/v1/jobs", f"chorale-{n}").status_code for n in range(1000)]
        assert statuses.count(401) <= 20
        assert statuses.count(429) == 1000 - statuses.count(401)
        assert service.ask("GET", "/v1/jobs", "reader").status_code == 200
        service.clock.now_s += 61
        assert service.ask("GET", "/v1/jobs", "chorale-again").status_code == 401
        refused = service.lines("refused.jsonl")
    assert len(refused) <= 11
    assert refused[-1]["left_out_before"] == 1000 - len(refused[:-1])


def test_nobody_without_a_token_writes_into_the_audit_log(tmp_path: Path):
    with attacked(tmp_path) as service:
        assert service.launch("operator", runner={"profile": "here"}).status_code == 202
        for number in range(100):
            service.ask("POST", "/v1/campaigns", f"chorale-{number}", {})
            service.ask("POST", "/v1/campaigns/attack/stop", None, {}, Origin="http://evil.example")
            service.client.post("/v1/syntheses", content="x")
        service.ask("POST", "/v1/campaigns/attack/stop", "operator", {})
        lines = service.lines("audit.jsonl")
    assert [line["status"] for line in lines] == [202, 202]
    facts = ("token", "role", "campaign", "runner", "method", "route", "client")
    launched = ("operator", "operator", "attack", "here", "POST", "/v1/campaigns", "127.0.0.1")
    assert tuple(lines[0][name] for name in facts) == launched
    assert (lines[1]["campaign"], lines[1]["runner"]) == ("attack", "here")
    assert stat.S_IMODE((tmp_path / "service" / "audit.jsonl").stat().st_mode) == 0o600


def test_ownership_is_no_side_effect_of_a_refused_launch(tmp_path: Path):
    """The name of a campaign of the command line, running or ended, is nobody else's to take."""
    with attacked(tmp_path) as service:
        service.launches.states["attack"] = ("running", None)
        assert service.launch("planner").status_code == 422
        assert service.ask("GET", "/v1/campaigns/attack", "planner").status_code == 404
        assert service.ask("POST", "/v1/campaigns/attack/stop", "planner", {}).status_code == 404
        assert service.launches.states["attack"][0] == "running"
        service.home.create(service.home.campaigns / "ended" / "1")
        assert service.launch("planner", name="ended").status_code == 422
        assert service.ask("GET", "/v1/campaigns", "planner").json()["campaigns"] == []


@pytest.mark.parametrize("error", [CheckFailed("is running already", "attack", "stop it first"), RuntimeError("lost")])
def test_a_launch_that_fails_leaves_the_name_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def refuse(*_: Any) -> None:
        raise error

    with attacked(tmp_path) as service:
        with monkeypatch.context() as patched:
            patched.setattr(service.launches, "start", refuse)
            assert service.launch("planner").status_code == (409 if isinstance(error, CheckFailed) else 500)
        assert service.ask("GET", "/v1/campaigns/attack", "planner").status_code == 404
        assert service.launch("operator").status_code == 202


def test_the_command_line_starts_no_launch_that_a_token_could_see(tmp_path: Path):
    with attacked(tmp_path) as service:
        assert service.launch("planner").status_code == 202
        with pytest.raises(InvalidInput, match="belongs to a token of the service"):
            _require_free_name(service.home, "attack")
        _require_free_name(service.home, "another")


def test_names_and_events_lead_to_no_other_folder(tmp_path: Path):
    for name in ("//etc", "/tmp", "..", "a/../b", "", "x" * 65, "a\nb"):
        with pytest.raises(InvalidInput, match="the name of a campaign"):
            launch_folders(Home(tmp_path), name)
    (tmp_path / "elsewhere" / "campaigns" / "theirs" / "1").mkdir(parents=True)
    caller = Caller("root", 1, None, CallerRole.ADMINISTRATOR)
    with attacked(tmp_path / "served") as service:
        state = service.client.app.state  # type: ignore[attr-defined]
        with pytest.raises(InvalidInput, match="the name of a campaign"):
            _topic(f"campaign/{tmp_path}/elsewhere/campaigns/theirs", caller, state).look()
