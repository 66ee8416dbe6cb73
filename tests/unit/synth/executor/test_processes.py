"""ProcessExecutor keeps the contract, and no death of any process hangs it or leaves processes behind."""

import _thread
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from chorale.synth.errors import Unavailable
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import MAX_ATTEMPTS, ProcessExecutor
from tests.conformance import executor_kit


@pytest.mark.parametrize("check", executor_kit.CHECKS + executor_kit.WORKER_CHECKS)
def test_contract(check):
    check(lambda: ProcessExecutor(2))


@pytest.mark.parametrize("check", executor_kit.CHECKS)
def test_contract_of_the_serial_executor(check):
    check(SerialExecutor)


@pytest.fixture
def executor():
    opened = ProcessExecutor(2)
    yield opened
    opened.close()


def always_die(_: None, task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def die_while_answering(_: None, task: str) -> bytes:
    """Kill the own process when half of the answer is in the pipe; the first time only."""
    if not os.path.exists(task):
        open(task, "w").close()

        def half(self: Connection, buffer: bytes, write: Callable[[int, bytes], int] = os.write) -> None:
            write(self.fileno(), bytes(buffer[: len(buffer) // 2]))
            os.kill(os.getpid(), signal.SIGKILL)

        Connection._send = half  # type: ignore[attr-defined]
    return b"x" * 1_000_000


def unpicklable_result(_: None, task: int) -> object:
    return lambda: task


class PickyError(Exception):
    """Can be pickled, but not rebuilt."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first + second)


def raise_picky(_: None, task: int) -> int:
    raise PickyError(task, task)


def process_id(_: None, task: int) -> int:
    time.sleep(0.02)
    return os.getpid()


def test_task_that_always_kills_its_worker_ends_with_a_clear_error(executor):
    with pytest.raises(Unavailable) as caught:
        executor.map(always_die, range(6))
    assert str(caught.value).startswith(f"a worker must survive its task within {MAX_ATTEMPTS} attempts, got killed by")
    assert executor.map(always_die, [0, 1]) == [0, 1]


def test_worker_killed_in_the_middle_of_its_answer_is_replaced(executor, tmp_path):
    assert executor.map(die_while_answering, [str(tmp_path / "mark")]) == [b"x" * 1_000_000]


@pytest.mark.parametrize("task", [unpicklable_result, raise_picky])
def test_what_cannot_be_pickled_or_rebuilt_is_an_error_of_the_call(executor, task):
    with pytest.raises(TypeError, match="cannot be pickled"):
        executor.map(task, [1])


def test_workers_live_on_between_maps_and_end_with_close(executor):
    assert len(set(executor.map(process_id, [1]))) == 1  # no more workers than tasks
    first = set(executor.map(process_id, range(8)))
    second = set(executor.map(process_id, range(8), "another shared value"))
    assert len(first) == 2
    assert first == second
    executor.close()
    assert not any(psutil.pid_exists(pid) for pid in first)


SCRIPT = textwrap.dedent("""
    import os, sys
    from chorale.synth.executor.processes import ProcessExecutor
    from tests.unit.synth.executor.test_processes import report_and_sleep

    if __name__ == "__main__":
        ProcessExecutor(2).map(report_and_sleep, [float(sys.argv[1])] * 20)
""")


def report_and_sleep(_: None, task: float) -> float:
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    time.sleep(task)
    return task


@pytest.fixture
def busy_program(tmp_path, request):
    """A program in a session of its own with two workers whose tasks take a given time; and their process ids."""
    path = tmp_path / "busy.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    program = subprocess.Popen(
        [sys.executable, str(path), str(request.param)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    workers = [int(program.stdout.readline()) for _ in range(2)]
    yield program, workers
    for pid in (program.pid, *workers):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    program.communicate()


@pytest.mark.parametrize("busy_program", [30.0], indirect=True)
def test_ctrl_c_ends_program_and_workers_at_once(busy_program):
    program, workers = busy_program
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=20)  # tasks take longer
    assert errors.count("KeyboardInterrupt") == 1
    assert errors.count("Traceback") == 1
    assert all(ended(pid) for pid in workers)


def test_an_interrupt_that_wakes_no_system_call_is_heard_too(executor):
    """A signal just before the wait begins sets a flag of Python's and ends no wait: as `interrupt_main` does."""
    threading.Timer(1, _thread.interrupt_main).start()
    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.map(executor_kit.sleep_s, [60.0, 60.0])
    assert time.monotonic() - start_s < 50


@pytest.mark.parametrize("busy_program", [0.5], indirect=True)
def test_workers_end_after_their_task_when_the_program_is_killed(busy_program):
    program, workers = busy_program
    program.kill()
    assert all(ended(pid) for pid in workers)


def ended(pid: int, within_s: float = 10) -> bool:
    """Whether the process is gone, or a zombie that nobody waits for, soon enough."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False
