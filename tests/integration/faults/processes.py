"""Faults of processes and files of a launch that owns its cluster, on one host."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import psutil

from tests.integration.faults.launched import LIMIT_S, Launched, Strike
from tests.integration.faults.rows import Fault


def signalled(name: str, number: int) -> Strike:
    return lambda launched: launched.child(name).send_signal(number)


def damage_database(launched: Launched) -> None:
    with (launched.home.root / "mlflow.db").open("r+b") as database:
        database.write(b"garbage!" * 4096)
    launched.home.root.joinpath("mlflow.db-wal").unlink(missing_ok=True)


def damage_optuna(launched: Launched) -> None:
    launched.process.kill()
    launched.process.wait()
    launched.journal.with_name("optuna.journal").write_bytes(b"\xff garbage\n" * 50)


def remove_lock(launched: Launched) -> None:
    """A second launch beside the first."""
    launched.journal.with_name("lock").unlink()
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
    "GCS killed": Fault(signalled("gcs_server", signal.SIGKILL)),
    "GCS stopped": Fault(signalled("gcs_server", signal.SIGSTOP)),
    "raylet killed": Fault(signalled("raylet/raylet", signal.SIGKILL)),
    "raylet stopped": Fault(signalled("raylet/raylet", signal.SIGSTOP)),
    "dashboard agent killed": Fault(signalled("DashboardAgent", signal.SIGKILL)),
    "runtime environment agent killed": Fault(signalled("RuntimeEnvAgent", signal.SIGKILL)),
    "measuring worker killed": Fault(signalled("MeasureWorker", signal.SIGKILL)),
    "measuring worker stopped": Fault(signalled("MeasureWorker", signal.SIGSTOP)),
    "building worker killed": Fault(signalled("BuildWorker", signal.SIGKILL)),
    "launch killed": Fault(kill_launch),
    "everything stopped for 10 s": Fault(stop_and_go),
    "MLflow's database damaged": Fault(damage_database),
    "launch killed and Optuna's file damaged": Fault(damage_optuna),
    "lock removed, second --resume": Fault(remove_lock),
}
