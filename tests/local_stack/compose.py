"""The services of the compose file, as this machine can run them without containers."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

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
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))

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
        environment |= _env_file(places.folder / entry["env_file"], places)
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


def _env_file(path: Path, places: Places) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text().splitlines())
    return {name: places.here(value) for name, _, value in pairs}


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
