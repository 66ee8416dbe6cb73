"""Processes that are started together and end together."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chorale.synth.errors import Unavailable
from tests.local_stack.processes import MOST_RESTARTS, Processes

ORPHAN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def first_line(log: Path) -> str:
    deadline_s = time.monotonic() + 30
    while "\n" not in log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return log.read_text().splitlines()[0]


def test_also_those_end_that_left_their_parent(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    processes = Processes(tmp_path)
    try:
        processes.start("one", (sys.executable, "-c", ORPHAN), {})
        orphan = psutil.Process(int(first_line(tmp_path / "one.log")))
        processes.close()
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
        assert bystander.poll() is None
    finally:
        processes.close()
        bystander.kill()
        bystander.wait()


def test_what_ends_is_started_again_a_few_times(tmp_path):
    processes = Processes(tmp_path)
    processes.start("short", (sys.executable, "-c", "print('here', flush=True); raise SystemExit(7)"), {})
    with pytest.raises(Unavailable, match="short must run, got it ended with 7; see its log, which ends with: here"):
        processes.wait("short", (sys.executable, "-c", "raise SystemExit(1)"), {}, 60)
    processes.close()
    assert (tmp_path / "short.log").read_text().count("here") == MOST_RESTARTS + 1


def test_health_is_waited_for(tmp_path):
    processes = Processes(tmp_path)
    flag = tmp_path / "flag"
    code = f"import pathlib, time; time.sleep(1); pathlib.Path({str(flag)!r}).touch(); time.sleep(600)"
    check = (sys.executable, "-c", f"import os, sys; sys.exit(not os.path.exists({str(flag)!r}))")
    try:
        processes.start("slow", (sys.executable, "-c", code), {})
        processes.wait("slow", check, {}, 60)
        assert flag.exists()
        with pytest.raises(Unavailable, match=r"slow must be healthy within 0\.1 s"):
            processes.wait("slow", (sys.executable, "-c", "raise SystemExit(1)"), {}, 0.1)
    finally:
        processes.close()
