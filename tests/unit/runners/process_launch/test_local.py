"""Processes on this machine: what they see, what they leave, and that they never outlive their owner."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from chorale.runners.process_launch.processes import STDERR, STDOUT, LocalHost, LocalProcess, ProcessSpec
from chorale.synth.errors import InvalidInput, Unavailable
from tests.waiting import until


def shell(text: str, **files: bytes) -> ProcessSpec:
    return ProcessSpec(("/bin/sh", "-c", text), {"GREETING": "hello"}, files)


@pytest.fixture
def start() -> Iterator[Callable[[ProcessSpec], LocalProcess]]:
    started: list[LocalProcess] = []

    def _start(job: ProcessSpec) -> LocalProcess:
        started.append(LocalHost().start(job))
        return started[-1]

    yield _start
    for process in started:
        process.close()


Start = Callable[[ProcessSpec], LocalProcess]


def ended(process: LocalProcess) -> int:
    until(lambda: process.poll() is not None)
    code = process.poll()
    assert code is not None
    return code


def group(process: LocalProcess) -> list[psutil.Process]:
    return [one for one in psutil.process_iter() if _group_of(one) == process.pid]


def _group_of(process: psutil.Process) -> int:
    try:
        return -1 if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return -1


def test_a_job_has_its_files_its_variables_and_its_own_folder(start: Start) -> None:
    process = start(shell('cat given; printf "$GREETING" >made; printf oops >&2; cat; exit 3', given=b"content"))
    assert ended(process) == 3
    assert process.read(STDOUT) == b"content"
    assert process.read(STDERR) == b"oops"
    assert process.read("made") == b"hello"
    assert process.read("absent") == b""


def test_a_file_can_be_the_command_and_a_prefix_can_start_it() -> None:
    tool = ProcessSpec(("./tool", "x y"), {}, {"tool": b'#!/bin/sh\nprintf "%s" "$1 $PLACE"\n'})
    with closing(LocalHost(prefix=("env", "PLACE=there")).start(tool)) as process:
        assert ended(process) == 0
        assert process.read(STDOUT) == b"x y there"


def test_a_command_that_is_not_there_and_a_signal_have_codes_of_their_own(start: Start) -> None:
    process = start(ProcessSpec(("./absent",)))
    assert ended(process) == 127
    assert b"absent" in process.read(STDERR)
    assert ended(start(shell("kill -SEGV $$"))) == -signal.SIGSEGV


def test_killing_ends_the_whole_group(start: Start) -> None:
    process = start(shell("sleep 100 & touch ready; wait"))
    until(lambda: len(group(process)) == 3)  # the shell, what it started, the guard
    process.kill()
    process.kill()
    assert process.poll() == -signal.SIGKILL
    until(lambda: not group(process))


def test_closing_removes_folder_and_stragglers(start: Start) -> None:
    process = start(shell("sleep 100 & pwd"))
    assert ended(process) == 0
    folder = Path(process.read(STDOUT).decode().strip())
    assert folder.is_dir()
    process.close()
    process.close()
    assert not folder.exists()
    until(lambda: not group(process))


OWNER = """
import time
from chorale.runners.process_launch.processes import LocalHost
from chorale.runners.process_launch.processes import ProcessSpec
started = LocalHost().start(ProcessSpec(("sh", "-c", "pwd; sleep 100; sleep 100")))
while not started.read("stdout.txt"):
    time.sleep(0.01)
print(started.pid, started.read("stdout.txt").decode(), flush=True)
time.sleep(100)
"""


def test_nothing_outlives_a_killed_owner() -> None:
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        process = psutil.Process(int(pid))
        assert Path(folder.decode()).is_dir()
        owner.kill()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    assert not Path(folder.decode()).exists()


def test_files_have_plain_names_and_what_cannot_be_started_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "..", "a/b"):
        with pytest.raises(InvalidInput, match="is not a plain file name"):
            LocalHost().start(ProcessSpec(("true",), {}, {name: b""}))

    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr("chorale.runners.process_launch.processes.subprocess.Popen", fail)
    with pytest.raises(Unavailable, match="no more processes"):
        LocalHost().start(ProcessSpec(("true",)))
