"""Faults of other parts than links, while a job trains: a rank, the watch itself, and MLflow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chorale.experiments.watch_demo.demo import Json, WatchDemo, WatchProcess, published, read_steps, wait_until
from chorale.experiments.watch_demo.figures import figures, has_enough, median_s
from chorale.experiments.watch_demo.ray_head import restart_the_ray_head
from chorale.experiments.watch_demo.retune import retune
from chorale.runners.fabric import detours
from chorale.tuner.tracking.mlflow_store import MlflowStore

_LOST_RANK = 3
_CABLE = (0, 1)
_SIZE_BYTES = 1 << 20
_FLAP_S = 4.0
_COLLECTIVE_LIMIT_S = 20.0
"""A job that has lost a rank is to fail soon."""


def lose_a_node(demo: WatchDemo, steps_before: int) -> Json:
    """A rank is cut off; the job fails, goes on with the others on their table, and with all when the rank is back."""
    log, stop = demo.fresh_files()
    demo = replace(demo, collective_limit_s=_COLLECTIVE_LIMIT_S)
    everyone = range(demo.topology.compute_count)
    others = [rank for rank in everyone if rank != _LOST_RANK]
    ends = sorted({(min(pair), max(pair)) for pair in _pairs(demo) if _LOST_RANK in pair})
    with demo.watching() as watch:
        with demo.training(log, stop, everyone) as job:
            wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
            job.may_fail = True
            lost_s = time.time()
            for cable in ends:
                detours.cut(demo.fabric, cable)
            wait_until("a table for the others is published", lambda: _of_ranks(watch, lost_s, len(others)) is not None)
            wait_until("the job has failed within its limit", lambda: job.failure is not None)
            failed_s = time.time()
        stop.unlink()
        smaller = _of_ranks(watch, lost_s, len(others)) or {}
        with demo.training(log, stop, others):
            wait_until("the others train", lambda: has_enough(read_steps(log), smaller["table"]))
            back_s = time.time()
            for cable in ends:
                detours.mend(demo.fabric, cable, demo.topology)
            wait_until("a table for all is published", lambda: _of_ranks(watch, back_s, len(everyone)) is not None)
        stop.unlink()
        whole = _of_ranks(watch, back_s, len(everyone)) or {}
        began = len(read_steps(log))
        with demo.training(log, stop, everyone):
            wait_until("all train again", lambda: has_enough(read_steps(log)[began:], whole["table"]))
    steps = read_steps(log)
    document = figures(steps, watch.events, lost_s, demo.link_mbps, _SIZE_BYTES, smaller)
    first_back = steps[began]
    return {
        **document,
        "bandwidth_of_bound_between": None,  # no step ends between a failed job and the next one
        "job_failed_s": failed_s - lost_s,
        "back": {"published_s": whole["time_s"] - back_s, "first_step_s": first_back["end_s"] - back_s},
        "allreduce_s_back": median_s(steps[began + 1 :]),
    }


def flap(demo: WatchDemo, steps_before: int) -> Json:
    """A cable is cut and mended four times, and is quiet then: no table comes and goes with it."""
    log, stop = demo.fresh_files()
    with demo.watching() as watch, demo.training(log, stop):
        wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
        fault_s = time.time()
        for _ in range(4):
            detours.cut(demo.fabric, _CABLE)
            time.sleep(_FLAP_S)
            detours.mend(demo.fabric, _CABLE, demo.topology)
            time.sleep(_FLAP_S)
        ended_s = time.time()
        wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
        first = published(watch, 0.0) or {}
        wait_until(
            "the healthy table is back", lambda: (published(watch, ended_s) or {}).get("table") == first["table"]
        )
        count = len(read_steps(log))
        wait_until("the job has trained on it", lambda: has_enough(read_steps(log)[count:], first["table"]))
        stop.touch()
    document = figures(read_steps(log), watch.events, fault_s, demo.link_mbps, _SIZE_BYTES)
    states = [event for event in watch.events if event["event"] == "state"]
    flapping = [event["time_s"] - fault_s for event in states if event["to"] == "flapping"]
    calm_s = (published(watch, ended_s) or {})["time_s"] - ended_s
    tables = [event for event in watch.events if event["event"] == "publish" and event["time_s"] > fault_s]
    return {**document, "flapping_s": flapping[:1], "calm_s": calm_s, "tables_published": len(tables)}


def kill_the_watch(demo: WatchDemo, steps_before: int) -> Json:
    """The watch is killed and starts again: it publishes nothing until a cable is cut, and then one table."""
    log, stop = demo.fresh_files()
    with demo.watching() as watch, demo.training(log, stop):
        wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
        os.kill(watch.process.pid, signal.SIGKILL)
        killed_s = time.time()
        watch.process.wait()
        steps_then = len(read_steps(log))
        wait_until("the job goes on without it", lambda: len(read_steps(log)) >= steps_then + 5)
        with demo.watching() as again:
            resumed_s = again.events[0]["time_s"]
            fault_s = time.time()
            detours.cut(demo.fabric, _CABLE)
            wait_until("a new table is published", lambda: published(again, fault_s) is not None)
            table = str((published(again, fault_s) or {})["table"])
            wait_until("the job has trained on the new table", lambda: has_enough(read_steps(log), table))
            stop.touch()
    events = [*watch.events, *again.events]
    tables = [event["table"] for event in events if event["event"] == "publish"]
    document = figures(read_steps(log), events, fault_s, demo.link_mbps, _SIZE_BYTES)
    return {**document, "resumed_s": resumed_s - killed_s, "published_twice": len(tables) - len(set(tables))}


def take_mlflow_away(demo: WatchDemo, steps_before: int) -> Json:
    """MLflow's server is killed before a cable is cut, and is back later: the file does not wait, the version comes."""
    with _mlflow_server(demo.folder) as (uri, server):
        os.environ["MLFLOW_TRACKING_URI"] = uri
        try:
            demo = replace(demo, settings={"publish": {"mlflow": True}})
            log, stop = demo.fresh_files()
            with demo.watching() as watch, demo.training(log, stop):
                wait_until("the job has trained", lambda: len(read_steps(log)) >= steps_before)
                wait_until("the first table is a version", lambda: len(_versions(uri, demo.folder)) == 1)
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
                fault_s = time.time()
                detours.cut(demo.fabric, _CABLE)
                wait_until("a new table is published", lambda: published(watch, fault_s) is not None)
                table = str((published(watch, fault_s) or {})["table"])
                wait_until("the job has trained on the new table", lambda: has_enough(read_steps(log), table))
                wait_until("it is told", lambda: any(e["event"] == "undelivered" for e in watch.events))
                stop.touch()
                back_s = time.time()
                with _mlflow_server(demo.folder, uri):
                    wait_until("it is delivered", lambda: any(e["event"] == "delivered" for e in watch.events))
                    versions = _versions(uri, demo.folder)
        finally:
            del os.environ["MLFLOW_TRACKING_URI"]
    delivered = next(event for event in watch.events if event["event"] == "delivered")
    document = figures(read_steps(log), watch.events, fault_s, demo.link_mbps, _SIZE_BYTES)
    return {**document, "delivered_s": delivered["time_s"] - back_s, "versions": versions}


def _pairs(demo: WatchDemo) -> Iterator[tuple[int, int]]:
    yield from zip(demo.topology.links.src.tolist(), demo.topology.links.dst.tolist(), strict=True)


def _of_ranks(watch: WatchProcess, after_s: float, ranks: int) -> Json | None:
    events = [each for each in watch.events if each["event"] == "publish" and each["time_s"] > after_s]
    return next((each for each in events if len(each["ranks"]) == ranks), None)


@contextmanager
def _mlflow_server(folder: Path, uri: str | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Give a server of MLflow whose data are in `folder`, at `uri` if one is given; it is killed at the end."""
    if uri is None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    store, files = f"sqlite:///{folder}/mlflow-server.db", str(folder / "mlflow-files")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rsplit(":", 1)[1]]
    command += ["--workers", "1", "--backend-store-uri", store, "--artifacts-destination", files]
    process = subprocess.Popen(  # noqa: S603 - MLflow's own module
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until("MLflow's server answers", lambda: _answers(f"{uri}/health"))
        yield uri, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own server
            return True
    except (urllib.error.URLError, OSError):
        return False


def _versions(uri: str, folder: Path) -> list[Any]:
    versions = MlflowStore(uri, folder / "artifacts").versions("demo-watch-table")
    return [version.tags["chorale.table"] for version in versions]


SCENARIOS: Mapping[str, Callable[[WatchDemo, int], Json]] = {
    "flap": flap,
    "node": lose_a_node,
    "watch": kill_the_watch,
    "mlflow": take_mlflow_away,
    "ray": restart_the_ray_head,
    "retune": retune,
}
