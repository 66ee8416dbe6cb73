"""A head that answers no more is told within its limit, also to who waits for Ray; workers end with their raylet."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chorale.runners.ray import watch
from chorale.runners.ray.watch import ClusterLost, ClusterWatch, handle_loss
from tests.waiting import until

ROOT = Path(__file__).parents[4]
LIMIT_S = 30.0
WORKER = """
from chorale.runners.ray.watch import end_with_raylet
import time
end_with_raylet()
print("ready", flush=True)
time.sleep(600)
"""
RAYLET = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def silent_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterLost]]:
    """Let no head answer, with short limits; yield what the handler is told."""
    monkeypatch.setattr(watch, "head_answers", lambda address, timeout_s: False)
    for name in ("SILENCE_LIMIT_S", "PING_S", "LOOK_S", "NOTICE_S"):
        monkeypatch.setattr(watch, name, 0.02)
    told: list[ClusterLost] = []
    handle_loss(told.append)
    yield told
    watch._handlers.clear()


@pytest.mark.usefixtures("silent_head")
def test_who_asks_is_told_that_the_head_is_silent() -> None:
    cluster = ClusterWatch("10.0.0.1:6379")
    with pytest.raises(ClusterLost):
        until(cluster.check)


def test_who_waits_for_ray_and_does_not_ask_is_told_by_the_handler(silent_head: list[ClusterLost]) -> None:
    ClusterWatch("10.0.0.1:6379")
    until(lambda: silent_head)
    assert "10.0.0.1:6379 has not answered" in str(silent_head[0])


def test_a_watch_that_was_closed_tells_nobody(silent_head: list[ClusterLost]) -> None:
    cluster = ClusterWatch("10.0.0.1:6379")
    cluster.close()
    for thread in threading.enumerate():
        if thread.name == "chorale-ray-watch":
            thread.join(LIMIT_S)
    assert silent_head == []


def test_a_worker_ends_with_its_raylet() -> None:
    command = [sys.executable, "-c", RAYLET, WORKER]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as raylet:
        assert raylet.stdout is not None
        assert raylet.stdout.readline() == "ready\n"
        [worker] = psutil.Process(raylet.pid).children()
        raylet.send_signal(signal.SIGKILL)
        raylet.wait()
        worker.wait(LIMIT_S)
