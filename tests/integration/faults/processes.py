"""Faults of processes and files of a launch that works in processes of its host."""

import time
from contextlib import suppress

import psutil

from tests.integration.faults.launched import LIMIT_S, Launched
from tests.integration.faults.rows import Fault


def kill_workers(launched: Launched) -> None:
    for worker in launched.workers():
        worker.kill()


def damage_optuna(launched: Launched) -> None:
    launched.process.kill()
    launched.process.wait()
    launched.journal.with_name("optuna.journal").write_bytes(b"\xff garbage\n" * 50)


def start_second(launched: Launched) -> None:
    """A second launch beside the first."""
    second = Launched(launched.setting, resume=True)
    assert second.process.wait(LIMIT_S) == 3, second.lines
    launched.lines.append((time.monotonic(), "second refused"))


def stop_and_go(launched: Launched) -> None:
    """The launch and all of its processes are stopped for ten seconds."""
    processes = [psutil.Process(launched.process.pid), *psutil.Process(launched.process.pid).children(recursive=True)]
    for process in processes:
        with suppress(psutil.Error):
            process.suspend()
    time.sleep(10.0)
    for process in processes:
        with suppress(psutil.Error):
            process.resume()


def kill_launch(launched: Launched) -> None:
    launched.process.kill()
    launched.process.wait()


FAULTS = {
    "workers killed": Fault(kill_workers),
    "fork server killed": Fault(lambda launched: launched.child("forkserver").kill()),
    "launch killed": Fault(kill_launch),
    "everything stopped for 10 s": Fault(stop_and_go),
    "launch killed and Optuna's file damaged": Fault(damage_optuna),
    "second --resume": Fault(start_second),
}
