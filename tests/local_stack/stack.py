"""The processes of the compose file on this machine, without containers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.local_stack.compose import DEPLOY, Places, Service, read_services
from tests.local_stack.postgres import make_cluster, make_database, server_user
from tests.local_stack.processes import Processes

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
        """Where the service answers."""
        return f"http://127.0.0.1:{self.places.ports['8600']}"

    @property
    def mlflow_url(self) -> str:
        """Where the MLflow server answers."""
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
        """Raise Unavailable if a process has ended."""
        self._processes.require_running()

    def close(self) -> None:
        """End all processes and remove the folder. Safe to call twice."""
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
