"""Processes that are started together and end together, with everything that they started."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from chorale.synth.errors import Unavailable

MARK = "CHORALE_LOCAL_STACK"
END_S = 20.0
POLL_S = 0.5
MOST_RESTARTS = 3


@dataclass(slots=True)
class _Running:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: str | None
    process: subprocess.Popen[bytes]
    restarts: int = 0


class Processes:
    """Starts processes, each with a log of its own in the folder `logs`; all of them carry a mark in their environment.

    By the mark those are found that left their parent: Ray's and MLflow's processes do. A process that ends is started
    again a few times, as containers are: Ray gives up when a node needs more than 30 s to start.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._mark = uuid.uuid4().hex
        self._started: list[_Running] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], user: str | None = None) -> None:
        """Start `command`, as `user` if one is named; its output goes to `name`.log."""
        process = self._popen(name, command, environment, user)
        self._started.append(_Running(name, tuple(command), environment, user, process))

    def wait(self, name: str, check: Sequence[str], environment: Mapping[str, str], limit_s: float) -> None:
        """Return once the command `check` succeeds; Unavailable if a process ends before, or after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while subprocess.run(check, env={**os.environ, **environment}, capture_output=True, check=False).returncode:
            self.require_running()
            if time.monotonic() > deadline_s:
                raise Unavailable(f"{name} must be healthy within {limit_s:g} s", " ".join(check), self._tail(name))
            time.sleep(POLL_S)

    def require_running(self) -> None:
        """Start again what has ended; Unavailable if it has ended too often."""
        for one in self._started:
            if one.process.poll() is None:
                continue
            if one.restarts == MOST_RESTARTS:
                raise Unavailable(
                    f"{one.name} must run", f"it ended with {one.process.returncode}", self._tail(one.name)
                )
            one.process = self._popen(one.name, one.command, one.environment, one.user)
            one.restarts += 1

    def close(self) -> None:
        """End everything, the last started first; what does not go by itself is killed. Safe to call twice."""
        for one in reversed(self._started):
            one.process.terminate()
            try:
                one.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
        self._started.clear()
        left = self._left()
        for orphan in left:
            orphan.kill()
        psutil.wait_procs(left, timeout=END_S)

    def _popen(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], user: str | None
    ) -> subprocess.Popen[bytes]:
        whole = {**os.environ, **environment, MARK: self._mark}
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=whole, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, user=user
            )

    def _left(self) -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if self._is_ours(one)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self._mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def _tail(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
        return f"see its log, which ends with: {' | '.join(lines[-3:])}"
