"""Faults of the services that a launch uses: MLflow's server, and PostgreSQL with the Optuna storage."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_pages import password_file
from tests.integration.faults.launched import Launched, Setting, lasting
from tests.integration.faults.rows import Fault
from tests.integration.mlflow_server import address, free_port, kill_group, start_server, wait_until_healthy
from tests.local_stack.stack import SEARCHES, Stack


@contextmanager
def mlflow(folder: Path) -> Iterator[Setting]:
    """An MLflow server with a password, in a home of its own."""
    home, port = Home(folder / "server"), free_port()
    home.create(home.root)
    process = start_server(home, port)
    wait_until_healthy(port, process)
    setting = Setting(folder, Home(folder / "home"), uri=address(home, port))
    setting.environment["MLFLOW_TRACKING_URI"] = str(setting.uri)
    setting.servers = {"mlflow": process, "home": home, "port": port}
    try:
        yield setting
    finally:
        kill_group(setting.servers["mlflow"])


def kill_server(launched: Launched) -> None:
    kill_group(launched.setting.servers["mlflow"])


def start_server_again(launched: Launched) -> None:
    servers = launched.setting.servers
    servers["mlflow"] = start_server(servers["home"], servers["port"])
    wait_until_healthy(servers["port"], servers["mlflow"])


def stop_server(launched: Launched) -> None:
    os.killpg(launched.setting.servers["mlflow"].pid, signal.SIGSTOP)


def let_server_go_on(launched: Launched) -> None:
    os.killpg(launched.setting.servers["mlflow"].pid, signal.SIGCONT)


def revoke_password(launched: Launched) -> None:
    """Start the server again with another password."""
    kill_server(launched)
    file = password_file(launched.setting.servers["home"])
    file.write_text(file.read_text().strip()[::-1] + "\n")
    start_server_again(launched)


def tell_password(launched: Launched) -> None:
    servers = launched.setting.servers
    launched.setting.uri = address(servers["home"], servers["port"])
    launched.setting.environment["MLFLOW_TRACKING_URI"] = launched.setting.uri


@contextmanager
def postgres(folder: Path) -> Iterator[Setting]:
    """PostgreSQL, where Optuna keeps the search."""
    with Stack() as stack:
        stack.start(("postgres",))
        database, _, _ = stack.database_url.rpartition("/")
        setting = Setting(folder, Home(folder / "home"), campaign={"storage": f"{database}/{SEARCHES}"})
        setting.servers = {"postgres": stack}
        yield setting


def _server_of(launched: Launched) -> psutil.Process:
    """Return the first process of PostgreSQL."""
    folder = str(launched.setting.servers["postgres"].folder / "postgres")
    found = [process for process in psutil.process_iter(["cmdline"]) if folder in (process.info["cmdline"] or ())]
    return found[0]


def kill_postgres(launched: Launched) -> None:
    _server_of(launched).kill()


def start_postgres_again(launched: Launched) -> None:
    stack = launched.setting.servers["postgres"]
    stack.require_running()
    stack._wait(stack.services["postgres"])


FAULTS = {
    "MLflow server killed, back after 10 s": Fault(
        lasting(10.0, kill_server, start_server_again), mlflow, resumes=True
    ),
    "MLflow server killed for good": Fault(kill_server, mlflow, start_server_again, resumes=True),
    "MLflow server stopped for 20 s": Fault(lasting(20.0, stop_server, let_server_go_on), mlflow),
    "MLflow server stopped for good": Fault(stop_server, mlflow, let_server_go_on, resumes=True),
    "MLflow's password revoked": Fault(revoke_password, mlflow, tell_password, resumes=True),
    "PostgreSQL of the search killed": Fault(kill_postgres, postgres, start_postgres_again),
}
