"""Whether a Ray cluster still works: its processes on this machine, or whether its head answers at all.

Ray itself notices after minutes what happened to its processes, and then ends the process that uses it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from chorale.synth.errors import Unavailable

LOOK_S = 0.2
CENSUS_S = 1.0
SHUTDOWN_LIMIT_S = 30.0
STOPPED_LIMIT_S = 8.0
SILENCE_LIMIT_S = 10.0
PING_S = 3.0
NOTICE_S = 1.0
LEAST_FAILURES = 3  # this process may have been stopped itself
_AGENTS = ("DashboardAgent", "RuntimeEnvAgent", "dashboard_agent", "runtime_env_agent")
_log = logging.getLogger("chorale.ray")
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and empty settings


class ClusterLost(Unavailable):
    """The cluster of a campaign works no more."""

    def __init__(self, value: str) -> None:
        way_out = "start the cluster again, then go on with --resume"
        super().__init__("the Ray cluster must keep working", value, way_out)


LossHandler = Callable[[ClusterLost], None]
"""Called from a thread when the cluster of this process works no more, after its processes have been killed. Calls into
Ray may never return by then, so all that helps is to replace the process."""

_handlers: list[LossHandler] = []


def handle_loss(handler: LossHandler) -> None:
    """Have `handler` called when a cluster that this process starts from now on is lost."""
    _handlers[:] = [handler]


class LocalClusterWatch:
    """Looks at the processes of the cluster that this process started: `node` is Ray's handle of it."""

    def __init__(self, node: Any) -> None:
        self._node = node
        started = {kind: psutil.Process(infos[0].process.pid) for kind, infos in node.all_processes.items() if infos}
        self._needed = {kind: started[kind] for kind in ("gcs_server", "raylet") if kind in started}
        self._descendants: set[psutil.Process] = set()
        self._stopped_since_s: dict[str, float] = {}
        self._next_census_s = 0.0
        self._shutdown_until_s = math.inf
        self._closed = threading.Event()
        self._loss: ClusterLost | None = None
        self._handler = _handlers[0] if _handlers else None
        threading.Thread(target=self._watch, name="chorale-ray-watch", daemon=True).start()

    def check(self) -> None:
        """Raise ClusterLost if a process that Ray needs has ended or been stopped, and nobody handles that."""
        if self._loss is not None and self._handler is None:
            raise self._loss

    def begin_shutdown(self) -> None:
        """Ray shuts the cluster down from here on: if it cannot, or not within `SHUTDOWN_LIMIT_S`, kill it."""
        self._shutdown_until_s = time.monotonic() + SHUTDOWN_LIMIT_S

    def close(self) -> None:
        """Look no more: the cluster has been shut down."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            self._loss = self._look()
            if time.monotonic() > self._shutdown_until_s or (self._loss and self._shutdown_until_s < math.inf):
                self.kill()
                return
            if self._loss is not None:
                if self._handler is not None:
                    self.kill()
                    self._handler(self._loss)
                return

    def _look(self) -> ClusterLost | None:
        now_s = time.monotonic()
        if now_s >= self._next_census_s:
            self._add_descendants()
            self._next_census_s = now_s + CENSUS_S
        for kind, process in self._needed.items():
            problem = self._problem(kind, process, now_s)
            if problem:
                return ClusterLost(f"Ray's {kind} {problem}")
        self._end_stopped_workers(now_s)
        return None

    def _end_stopped_workers(self, now_s: float) -> None:
        """End workers that somebody stopped, so that others do their work; it would be waited for until its limit."""
        for worker in self._descendants:
            problem = self._problem(f"worker {worker.pid}", worker, now_s)
            if problem is not None and "stopped" in problem:
                _log.warning("worker %d %s: it is ended, so that its work is done again", worker.pid, problem)
                end_processes([worker])

    def kill(self) -> None:
        """End every process of the cluster: what works no more cannot be shut down in order."""
        self._add_descendants()
        with contextlib.suppress(Exception):  # Ray's list holds what has ended already
            self._node.kill_all_processes(check_alive=False, allow_graceful=False)
        end_processes(self._descendants)

    def _add_descendants(self) -> None:
        raylet = self._needed.get("raylet")
        with contextlib.suppress(psutil.Error):
            children = raylet.children(recursive=True) if raylet is not None else []
            self._descendants |= set(children)
            for child in children:
                kind = next((name for name in _AGENTS if name in " ".join(child.cmdline()[:6])), None)
                if kind is not None:
                    self._needed.setdefault(kind, child)

    def _problem(self, kind: str, process: psutil.Process, now_s: float) -> str | None:
        try:
            status = process.status() if process.is_running() else psutil.STATUS_DEAD
        except psutil.Error:
            status = psutil.STATUS_DEAD
        if status in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE):
            return "has ended"
        if status != psutil.STATUS_STOPPED:
            self._stopped_since_s.pop(kind, None)
            return None
        stopped_s = now_s - self._stopped_since_s.setdefault(kind, now_s)
        return f"has been stopped for {stopped_s:.0f} s" if stopped_s > STOPPED_LIMIT_S else None


def end_with_raylet() -> None:
    """End this worker at once when the raylet that started it ends, and with it all that its threads hold.

    Ray makes what lived here again elsewhere; by itself a worker whose threads are busy stays.
    """
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="chorale-end-with-raylet", daemon=True).start()


class RemoteClusterWatch:
    """Asks the head of a cluster that others started, `address`, now and then, from a thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._closed = threading.Event()
        self._loss: ClusterLost | None = None
        self._is_known = False
        self._handler = _handlers[0] if _handlers else None
        threading.Thread(target=self._watch, name="chorale-ray-watch", daemon=True).start()

    def check(self) -> None:
        """Raise ClusterLost if the head has not answered for `SILENCE_LIMIT_S`."""
        if self._loss is not None:
            self._is_known = True
            raise self._loss

    def begin_shutdown(self) -> None:
        """Do nothing: the cluster goes on."""

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def kill(self) -> None:
        """Do nothing: the cluster belongs to others."""

    def _watch(self) -> None:
        answered_s, failures = time.monotonic(), 0
        while self._loss is None:
            if head_answers(self._address, PING_S):
                answered_s, failures = time.monotonic(), -1
            failures += 1
            if failures >= LEAST_FAILURES and time.monotonic() - answered_s > SILENCE_LIMIT_S:
                self._loss = ClusterLost(f"{self._address} has not answered for {SILENCE_LIMIT_S:.0f} s")
            if self._closed.wait(LOOK_S if self._loss else PING_S):
                return
        if not self._closed.wait(NOTICE_S) and not self._is_known and self._handler is not None:
            self._handler(self._loss)  # whoever should have asked waits for Ray


def head_answers(address: str, timeout_s: float) -> bool:
    """Whether somebody who speaks HTTP/2, as Ray's head does, answers at HOST:PORT; a stopped process does not."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return True
            connection.settimeout(timeout_s)
            connection.sendall(_HTTP2_PREFACE)
            return bool(connection.recv(9))
    except (OSError, ValueError, OverflowError):
        return False


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, also stopped ones; those that are gone already do not matter."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
