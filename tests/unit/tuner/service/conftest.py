"""A service over backend that the test holds."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chorale.tuner.files.home import Home
from chorale.tuner.service.access import Access, Caller, CallerRole, digest_of
from chorale.tuner.service.campaigns import Campaigns
from chorale.tuner.service.http.application import create_api
from chorale.tuner.service.http.middleware import AuditLog, BodyLimits
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.plan import JobPlanner
from chorale.tuner.service.jobs.scheduler import JobScheduler
from tests.unit.tuner.service.fakes import FakeLaunches, FakeTaskBackend

URL = "http://127.0.0.1:8600"
LOCAL_TOKEN = "chorale-of-this-machine"
LOCAL = {digest_of(LOCAL_TOKEN): Caller("local", 1000, None, CallerRole.ADMINISTRATOR)}
BEARER = {"Authorization": f"Bearer {LOCAL_TOKEN}"}


class Service:
    """A client of the service, and what is behind it."""

    def __init__(self, client: TestClient, backend: FakeTaskBackend) -> None:
        self.client = client
        self.backend = backend

    def post(self, path: str, token: str | None = None, **body: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.client.post(path, json=body, headers=headers)

    def finished(self, job: dict[str, Any], token: str | None = None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            job = self.client.get(f"/v1/jobs/{job['id']}", headers=headers).json()
            if job["state"] not in ("queued", "running"):
                return job
            time.sleep(0.01)
        raise TimeoutError(f"not finished: {job}")


def start_service(
    folder: Path,
    backend: FakeTaskBackend,
    access: Access | None = None,
    limits: JobLimits | None = None,
    launches: FakeLaunches | None = None,
) -> TestClient:
    """Return a client of a new service: with the token of this machine, or without any on one of `access`."""
    clock = itertools.count(1000)
    store, networks = JobStore(folder), NetworkPlanner(limits or JobLimits())
    scheduler = JobScheduler(store, JobPlanner(networks, store, folder), backend, lambda: float(next(clock)), slots=1)
    campaigns = Campaigns(Home(folder), launches or FakeLaunches(), store, networks)
    audit = AuditLog(folder, lambda: 0.0)
    body_limits = BodyLimits(body_bytes=100_000, body_s=1.0)
    api = create_api(scheduler, campaigns, access or Access(lambda: LOCAL, local_only=True), audit, body_limits)
    headers = BEARER if access is None else None
    return TestClient(api, base_url=URL, raise_server_exceptions=False, headers=headers)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        yield Service(client, backend)
