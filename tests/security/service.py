"""The service as attackers see it: by the settings of `chorale serve`, over HTTP, with the tokens that they have."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from fastapi.testclient import TestClient

from chorale.tuner.files.home import Home
from chorale.tuner.service.access import TokenEntry, load_access, local_token, make_token, token_file, write_tokens
from chorale.tuner.service.jobs.job_specs import JobLimits
from chorale.tuner.service.jobs.planning import Planning
from tests.unit.tuner.service.conftest import FakeLaunches, FakeTaskBackend, service_api

ROLES = ("reader", "planner", "operator", "administrator")
CAMPAIGN: Mapping[str, Any] = {
    "name": "attack", "topology": "ring:4", "collective": "allreduce", "sizes": ["4KiB"],
    "runner": {"kind": "simulated"}, "search": {"methods": ["bfb"]}, "budget": {"trials": 1},
}  # fmt: skip
PROFILES = {
    "gpus": {
        "kind": "msccl",
        "msccl": {"library_folder": "/opt/canary-tests", "variables": {"CANARY": "secret-value"}},
    },
    "here": {"kind": "local", "link_mbps": 10},
}


class Clock:
    """The time of a service, which a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.ticks = False

    def __call__(self) -> float:
        """Return seconds since the epoch; a second more each time where the clock `ticks`."""
        self.now_s += self.ticks
        return self.now_s


class Attacked:
    """A service with a token of every role, and who may attack it."""

    def __init__(self, home: Home, tokens: Mapping[str, str], client: TestClient) -> None:
        self.home, self.tokens, self.client = home, tokens, client
        self.launches = FakeLaunches()
        self.backend = FakeTaskBackend()
        self.clock = Clock()

    def ask(self, method: str, path: str, token: str | None = None, body: Any = None, **headers: str) -> Any:
        """Send a request with the token of that role, or that very token; headers with `_` for `-`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        return self.client.request(method, path, json=body, headers=sent)

    def launch(self, token: str | None, **changes: Any) -> Any:
        return self.ask("POST", "/v1/campaigns", token, {"campaign": {**CAMPAIGN, **changes}})

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home.service / name).read_text().splitlines()]


@contextmanager
def attacked(
    folder: Path,
    limits: JobLimits | None = None,
    planning: Planning | None = None,
    address: str = "127.0.0.1",
    **entry: Any,
) -> Iterator[Attacked]:
    """Start a service in `folder` on loopback, as `chorale serve` does, but for the cluster. `entry`: of all tokens."""
    home = Home(folder)
    home.create(home.service)
    made = {role: make_token() for role in ROLES}
    fields = {"requests_per_minute": 10**6, **entry}
    entries = [TokenEntry(name=role, sha256=digest, role=role, **fields) for role, (_, digest) in made.items()]  # type: ignore[arg-type]
    write_tokens(token_file(home), entries)
    settings = home.service / "settings.yaml"
    settings.write_text(yaml.safe_dump({"runners": PROFILES}))
    settings.chmod(0o600)
    tokens = {role: token for role, (token, _) in made.items()}
    this = Attacked(home, {**tokens, "local": local_token(home)}, None)  # type: ignore[arg-type]  # set below
    access = load_access(None, "127.0.0.1", home, this.clock)
    now_s = lambda: this.clock.now_s  # noqa: E731 - which does not tick
    api = service_api(home, this.backend, this.launches, access, this.clock, limits, planning, now_s)
    peer = (address, 50_000)
    with TestClient(api, base_url="http://127.0.0.1:8600", raise_server_exceptions=False, client=peer) as client:
        this.client = client
        yield this
