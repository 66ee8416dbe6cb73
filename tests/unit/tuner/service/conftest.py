"""A service over backend that the test holds."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from chorale.runners.api.base import Completion
from chorale.runners.ray.tasks import TaskFailure, TaskFailureKind
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import Access, Caller, CallerRole, digest_of, load_settings
from chorale.tuner.service.campaigns import Campaigns
from chorale.tuner.service.http.application import create_api
from chorale.tuner.service.http.middleware import AuditLog
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.planning import Planning
from chorale.tuner.service.jobs.scheduler import JobScheduler
from chorale.tuner.service.jobs.tasks import JobPlanner

URL = "http://127.0.0.1:8600"
LOCAL_TOKEN = "chorale-of-this-machine"
LOCAL = {digest_of(LOCAL_TOKEN): Caller("local", 1000, None, CallerRole.ADMINISTRATOR)}
BEARER = {"Authorization": f"Bearer {LOCAL_TOKEN}"}


class FakeTaskBackend:
    """A fake of `RayTaskBackend`: computes at once in the caller's thread, or holds all back while `held` is set."""

    cpus = 2
    largest_memory_bytes = 8 * 2**30

    def __init__(self) -> None:
        self.held = threading.Event()
        self.started: list[str] = []
        self._tasks: dict[str, tuple[Callable[..., Any], Any]] = {}
        self._cancelled: list[str] = []

    def start(self, key: str, computation: Callable[..., Any], argument: Any, memory_bytes: int) -> None:
        self.started.append(key)
        self._tasks[key] = (computation, argument)

    def cancel(self, key: str) -> None:
        self._cancelled.append(key)

    def progress(self) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(self._tasks, (1, 2))

    def ended(self, timeout_s: float) -> dict[str, Completion[Any]]:
        cancelled = TaskFailure(TaskFailureKind.CANCELLED)
        ended = {key: Completion(cancelled) for key in self._cancelled if self._tasks.pop(key, None)}
        self._cancelled.clear()
        if self.held.is_set():
            threading.Event().wait(0.01)
            return ended
        tasks, self._tasks = self._tasks, {}
        return ended | {key: Completion(self._value_of(*task)) for key, task in tasks.items()}

    def close(self) -> None:
        self._tasks.clear()

    @staticmethod
    def _value_of(computation: Callable[..., Any], argument: Any) -> Any:
        try:
            return computation(argument, lambda done, total: None)
        except ChoraleError as error:
            return TaskFailure(TaskFailureKind.REFUSED, error)
        except Exception as error:
            return TaskFailure(TaskFailureKind.CRASH, error)


class FakeLaunches:
    """A fake of `DetachedLaunches`: notes what is asked; tests write the journals."""

    def __init__(self) -> None:
        self.started: list[tuple[Mapping[str, Any], bool]] = []
        self.states: dict[str, tuple[str, str | None]] = {}

    def start(self, campaign: Mapping[str, Any], home: Path, resume: bool) -> None:
        self.started.append((campaign, resume))
        self.states[campaign["name"]] = ("running", None)

    def state(self, name: str) -> tuple[str, str | None]:
        return self.states.get(name, ("stored", None))

    def stop(self, name: str) -> None:
        if name not in self.states:
            raise CheckFailed("is not running", name, "leave it")
        self.states[name] = ("ended", None)


class Service:
    def __init__(self, client: TestClient, backend: FakeTaskBackend) -> None:
        self.client = client
        self.backend = backend

    def post(self, path: str, token: str | None = None, **body: Any) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.client.post(path, json=body, headers=headers)

    def synthesis(self, topology: str, method: str = "bfb", **body: Any) -> dict[str, Any]:
        """Return the finished job of a synthesis."""
        return self.finished(self.post("/v1/syntheses", topology=topology, method=method, **body).json())

    def document(self, job: dict[str, Any]) -> Any:
        return self.client.get(f"/v1/results/{job['result']}").json()["document"]

    def finished(self, job: dict[str, Any], token: str | None = None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            job = self.client.get(f"/v1/jobs/{job['id']}", headers=headers).json()
            if job["state"] not in ("queued", "running"):
                return job
            time.sleep(0.01)
        raise TimeoutError(f"not finished: {job}")


def service_api(
    home: Home,
    backend: FakeTaskBackend,
    launches: Any,
    access: Access,
    unix_s: Callable[[], float] = time.time,
    limits: JobLimits | None = None,
    planning: Planning | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
    **bounds: float,
) -> FastAPI:
    """Return what `chorale serve` starts, but for the cluster, over the data folder `home`. bounds: of requests"""
    limits = limits or JobLimits()
    home.create(home.service)
    store, networks = JobStore(home.service), NetworkPlanner(limits, planning=planning)
    planner = JobPlanner(networks, store)
    scheduler = JobScheduler(store, planner, backend, unix_s, 1, limits.max_job_s, monotonic_s)
    campaigns = Campaigns(home, launches, store, networks, load_settings(None, home))
    return create_api(scheduler, campaigns, access, AuditLog(home.service, unix_s), **bounds)


def start_service(
    folder: Path,
    backend: FakeTaskBackend,
    access: Access | None = None,
    limits: JobLimits | None = None,
    launches: FakeLaunches | None = None,
) -> TestClient:
    """Return a client of a new service: with the token of this machine, or without any on one of `access`."""
    clock, rules = itertools.count(1000.0), access or Access(lambda: LOCAL, local_only=True)
    made = launches or FakeLaunches()
    api = service_api(Home(folder), backend, made, rules, clock.__next__, limits, body_bytes=100_000, body_s=1.0)
    headers = BEARER if access is None else None
    return TestClient(api, base_url=URL, raise_server_exceptions=False, headers=headers)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    backend = FakeTaskBackend()
    with start_service(tmp_path, backend) as client:
        yield Service(client, backend)
