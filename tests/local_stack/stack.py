"""The processes of the compose file on this machine, without containers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

from chorale.synth.errors import Unavailable
from tests.local_stack.postgres import make_cluster, make_database, server_user
from tests.waiting import free_ports

ORDER = ("postgres", "mlflow", "ray-head", "ray-worker", "service")
HEALTHY_S = 240.0
SEARCHES = "optuna"
"""Database for searches: Optuna and MLflow keep the version of their tables in a table of one name."""
OBJECT_STORE_BYTES = 100 * 2**20


class Stack:
    """PostgreSQL, the MLflow server on it, a Ray head with workers, and the service, until the end of the block.

    Commands, environment, health checks and order are those of compose.yaml, see `Placement`. There is no object store:
    the MLflow server keeps artifacts in a folder. Everything is in one new folder, which goes with the stack.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chorale-"))
        self.folder.chmod(0o711)  # the user of the database must pass
        made = subprocess.run(
            [DEPLOY / "make-secrets", self.folder / "secrets"], capture_output=True, text=True, check=True
        )
        self.token = made.stdout.split()[-1]
        self.places = Places(self.folder)
        self.services = read_services(self.places)
        for name in ("logs", "data", "artifacts"):
            (self.folder / name).mkdir()
        self._processes = Processes(self.folder / "logs")

    @property
    def service_url(self) -> str:
        return f"http://127.0.0.1:{self.places.ports['8600']}"

    @property
    def mlflow_url(self) -> str:
        return self.services["service"].environment["MLFLOW_TRACKING_URI"]

    @property
    def database_url(self) -> str:
        """Where the MLflow server keeps everything but artifacts, with user and password, for SQLAlchemy."""
        return self.services["mlflow"].environment["MLFLOW_BACKEND_STORE_URI"]

    def start(self, names: Sequence[str] = ORDER) -> None:
        """Start the services `names`, each after what it needs; return when the last is healthy.

        Unavailable if one does not become so.
        """
        for name in names:
            service = self.services[name]
            for needed in service.needs:
                if needed in names:
                    self._wait(self.services[needed])
            self._start(service)
        self._wait(self.services[names[-1]])

    def require_running(self) -> None:
        self._processes.require_running()

    def close(self) -> None:
        self._processes.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, service: Service) -> None:
        if service.name == "postgres":
            self._start_postgres(service)
            return
        for number in range(service.replicas):
            name = service.name if service.replicas == 1 else f"{service.name}-{number + 1}"
            command = [str(Path(sys.executable).parent / service.command[0]), *service.command[1:]]
            if service.command[0] == "ray":
                command.append(f"--object-store-memory={OBJECT_STORE_BYTES}")  # all nodes share one /dev/shm here
            self._processes.start(name, command, service.environment)

    def _start_postgres(self, service: Service) -> None:
        user = server_user()
        command = make_cluster(self.folder / "postgres", service.environment, user)
        port = self.places.ports["5432"]
        self._processes.start(service.name, (*command, "-h", "127.0.0.1", "-p", str(port)), {}, user)
        self._wait(service)
        for name in (service.environment["POSTGRES_DB"], SEARCHES):
            make_database(port, service.environment, name)

    def _wait(self, service: Service) -> None:
        check = service.health
        if service.name == "postgres":
            check = (*check, "--host=127.0.0.1", f"--port={self.places.ports['5432']}")
        own = Path(sys.executable).parent / check[0]
        command = (str(own) if own.exists() else check[0], *check[1:])
        self._processes.wait(service.name, command, service.environment, HEALTHY_S)


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
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
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

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self._mark
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def _tail(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
        return f"see its log, which ends with: {' | '.join(lines[-3:])}"


DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE_FILE = DEPLOY / "compose.yaml"

HOSTS = ("mlflow", "postgres", "ray-head", "object-store")
PORTS = ("5000", "5432", "6379", "8265", "8600", "10001")


@dataclass(frozen=True, slots=True)
class Service:
    """A service with everything in its words that a container would change put right for this machine."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    health: tuple[str, ...]
    needs: tuple[str, ...]
    replicas: int


class Places:
    """What stands here for the names, ports and folders that containers have.

    folder: holds `secrets`, `data`, `ray` and `artifacts`, which stand for volumes; its path must be short, as sockets
    are put there. Every port is one that is free.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))

    def here(self, text: str) -> str:
        """Return `text` of the compose file with the names, ports and folders of this machine."""
        for there, name in (
            ("/run/secrets/tokens", "secrets/tokens.yaml"),
            ("/tmp/ray", "ray"),
            ("s3://mlflow", "artifacts"),  # a folder stands for the object store
            ("/data", "data"),
        ):
            text = re.sub(rf"(^|=){re.escape(there)}$", rf"\g<1>{self.folder / name}", text)
        port = "|".join(PORTS)
        text = re.sub(rf"\b({'|'.join(HOSTS)})(?=:({port})\b)", "127.0.0.1", text).replace("0.0.0.0", "127.0.0.1")
        return re.sub(rf"(?<=[:=])({port})\b", lambda found: str(self.ports[found[1]]), text)


def read_services(places: Places) -> dict[str, Service]:
    """Return the services by name; those of the object store have no command that could run here."""
    document = yaml.safe_load(COMPOSE_FILE.read_text())
    return {name: _service(name, entry, places) for name, entry in document["services"].items()}


def _service(name: str, entry: Mapping[str, Any], places: Places) -> Service:
    environment = {key: places.here(value) for key, value in entry.get("environment", {}).items()}
    if "env_file" in entry:
        lines = (places.folder / entry["env_file"]).read_text().splitlines()
        pairs = (line.partition("=") for line in lines)
        environment |= {key: places.here(value) for key, _, value in pairs}
    kind, *health = entry.get("healthcheck", {}).get("test", ["CMD"])
    if kind != "CMD":
        raise ValueError(f"{name}: a health check must be a command in words, not {kind}")
    return Service(
        name,
        tuple(places.here(word) for word in entry.get("command", ())),
        environment,
        tuple(places.here(word) for word in health),
        tuple(entry.get("depends_on", ())),
        entry.get("deploy", {}).get("replicas", 1),
    )
