"""The service inside the process of the tests: what `chorale serve` starts, but for the cluster.

Jobs are computed in processes that are forked from one that has imported what they need; launches run in threads.
`tests/integration/test_service.py` has the service as `chorale serve` starts it.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from rich.console import Console

from chorale.runners.api.workers import Completion
from chorale.runners.ray.tasks import TaskFailure, TaskFailureKind
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.tuner.config.campaign import Campaign, make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import tune
from chorale.tuner.service.access import load_access
from chorale.tuner.service.campaigns import STORED, Campaigns
from chorale.tuner.service.http.application import create_api
from chorale.tuner.service.http.middleware import AuditLog
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.scheduler import JobScheduler
from chorale.tuner.service.jobs.tasks import JobPlanner
from chorale.tuner.trials.records import TrialRecord

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["chorale.tuner.service.jobs.tasks"])
END_S = 120.0


def local_api(home: Home, launches: ThreadLaunches) -> FastAPI:
    """Return the application over the data folder `home`, with the token of this machine."""
    home.create(home.service)
    store, networks = JobStore(home.service), NetworkPlanner(JobLimits())
    scheduler = JobScheduler(store, JobPlanner(networks, store), ForkedTasks(), time.time)
    campaigns = Campaigns(home, launches, store, networks)
    access = load_access(None, "127.0.0.1", home, time.time)
    return create_api(scheduler, campaigns, access, AuditLog(home.service, time.time))


def _compute(connection: Connection, computation: Callable[..., Any], argument: Any) -> None:
    value: Any
    try:
        value = computation(argument, lambda done, total: connection.send(("progress", (done, total))))
    except ChoraleError as error:
        value = TaskFailure(TaskFailureKind.REFUSED, error)
    connection.send(("value", value))


class ForkedTasks:
    """Stands in for `RayTaskBackend`: a process for each task; one that ends without a result has crashed."""

    cpus = 2
    largest_memory_bytes = 8 * 2**30

    def __init__(self) -> None:
        self._tasks: dict[Connection, tuple[str, Any]] = {}
        self._progress: dict[str, tuple[int, int]] = {}
        self._cancelled: set[str] = set()

    def start(self, key: str, computation: Callable[..., Any], argument: Any, memory_bytes: int) -> None:
        here, there = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=_compute, args=(there, computation, argument), daemon=True)
        process.start()
        there.close()
        self._tasks[here] = key, process

    def cancel(self, key: str) -> None:
        for other, process in self._tasks.values():
            if other == key:
                self._cancelled.add(key)
                process.kill()

    def progress(self) -> dict[str, tuple[int, int]]:
        progress, self._progress = self._progress, {}
        return progress

    def ended(self, timeout_s: float) -> dict[str, Completion[Any]]:
        completions = {}
        for connection in wait(list(self._tasks), timeout_s):
            assert isinstance(connection, Connection)
            key, process = self._tasks[connection]
            try:
                kind, value = connection.recv()
            except EOFError:
                kind, value = "value", self._lost(key)
            if kind == "progress":
                self._progress[key] = value
                continue
            del self._tasks[connection]
            connection.close()
            process.join(END_S)
            completions[key] = Completion(value)
        return completions

    def _lost(self, key: str) -> TaskFailure:
        is_cancelled = key in self._cancelled
        self._cancelled.discard(key)
        return TaskFailure(TaskFailureKind.CANCELLED if is_cancelled else TaskFailureKind.CRASH)

    def close(self) -> None:
        for _, process in self._tasks.values():
            process.kill()
            process.join(END_S)


def _silent(budget: int, recorded: Sequence[TrialRecord]) -> PlainLines:
    return PlainLines(Console(quiet=True), budget, recorded)


class ThreadLaunches:
    """Stands in for `DetachedLaunches`: a thread for each launch; launches that are long are not stopped."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._errors: dict[str, str] = {}

    def start(self, campaign: Mapping[str, Any], home: Path, resume: bool) -> None:
        name = campaign["name"]
        if self.state(name)[0] == "running":
            raise CheckFailed("is running already", name, "stop it first")
        self._errors.pop(name, None)
        self._threads[name] = threading.Thread(target=self._run, args=(dict(campaign), home, resume), daemon=True)
        self._threads[name].start()

    def state(self, name: str) -> tuple[str, str | None]:
        if name not in self._threads:
            return STORED, None
        error = self._errors.get(name)
        return "running" if self._threads[name].is_alive() else "failed" if error else "ended", error

    def stop(self, name: str) -> None:
        raise CheckFailed("a launch of tests ends by itself", name, "wait for it")

    def close(self) -> None:
        """Wait for all launches."""
        for thread in self._threads.values():
            thread.join(END_S)
            assert not thread.is_alive()

    def _run(self, document: dict[str, Any], home: Path, resume: bool) -> None:
        try:
            campaign = Campaign.model_validate(document)
            topology = load_topology(campaign.topology)
            make = make_workers(campaign, topology, home)
            tune(campaign, topology, Home(home), resume, make, _silent)
        except Exception as error:  # the page shows it
            self._errors[document["name"]] = str(error)
