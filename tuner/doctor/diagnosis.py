"""Which runners and services can be used here, by the checks of the machine, of Ray, MLflow and the service's port."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from chorale.runners.api.registry import RUNNERS
from chorale.synth.redaction import redacted, split_credentials
from chorale.tuner.doctor.machine import Check, installed, machine_checks
from chorale.tuner.files.home import Home

PATIENCE_S = 1.5
SERVICE_PORT = 8600


def service_checks(home: Home) -> Iterator[Check]:
    """Yield a check of each service; each waits `PATIENCE_S` at most for an answer."""
    yield _ray_cluster(os.environ.get("RAY_ADDRESS", ""))
    yield _mlflow(home.mlflow_uri)
    yield _service_port()


def _ray_cluster(address: str) -> Check:
    purpose, command = "campaigns on a cluster", "unset RAY_ADDRESS"
    way_out = f"start it with `ray start --head`, or `{command}` and campaigns work in processes here"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        found = "none named: campaigns work in processes here" if not address else f"RAY_ADDRESS={address}"
        return Check("ray cluster", True, found, purpose, way_out, True, command)
    ok = _answers(host.strip("[]"), int(port))
    found = f"{address} {'answers' if ok else 'does not answer'}"
    return Check("ray cluster", ok, found, purpose, way_out, True, command)


def _mlflow(uri: str) -> Check:
    purpose, command = "tracking", "unset MLFLOW_TRACKING_URI"
    way_out = f"start that server, or `{command}` and runs are kept in the data folder; campaigns go on without it"
    if not uri.startswith(("http://", "https://")):
        return Check("mlflow store", True, f"a database: {redacted(uri)}", purpose, way_out)
    uri, _, _ = split_credentials(uri)
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE_S) as answer:  # noqa: S310 - http above
            return Check("mlflow store", True, f"{uri} answers {answer.status}", purpose, way_out, command=command)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Check("mlflow store", False, f"{uri}: {reason}", purpose, way_out, command=command)


def _service_port() -> Check:
    command = f"chorale serve --port {SERVICE_PORT + 1}"
    free = not _answers("127.0.0.1", SERVICE_PORT)
    ours = not free and _is_the_service(f"http://127.0.0.1:{SERVICE_PORT}/openapi.json")
    what = "is free" if free else "is where the service answers" if ours else "is taken by something else"
    found = f"port {SERVICE_PORT} {what}"
    return Check("service port", free or ours, found, "the service", f"run `{command}`", command=command)


def _is_the_service(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310 - of this machine
            return b"chorale" in answer.read(4096).lower()
    except (OSError, ValueError):
        return False


def _answers(host: str, port: int) -> bool:
    try:
        with closing(socket.create_connection((host, port), timeout=PATIENCE_S)):
            return True
    except OSError:
        return False


PARTS: Mapping[str, tuple[str, ...]] = {
    **{name: runner.preconditions for name, runner in RUNNERS.items() if runner.preconditions},
    "fabric": ("linux", "ip", "tc", "fabrics"),
    "ray": ("ray", "memory", "ray cluster"),
    "mlflow": ("mlflow", "data folder", "mlflow store"),
    "service": ("ray", "fastapi", "data folder", "service port"),
}
"""Runner or service -> names of the checks that it needs, in the order in which they are to be repaired."""


@dataclass(frozen=True, slots=True)
class Component:
    """A runner or a service.

    found:   the result of the check that decides
    missing: names of all checks that fail
    mend:    the command that repairs the first of them
    """

    name: str
    usable: bool
    found: str
    missing: tuple[str, ...]
    mend: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the runners and services that can be used."""

    checks: tuple[Check, ...]
    parts: tuple[Component, ...]

    @property
    def ready(self) -> bool:
        """Whether a campaign can run here."""
        return all(check.ok for check in self.checks if check.required)


def diagnose() -> Diagnosis:
    """Check this machine and the services that it is configured for; takes a second or two."""
    home = Home.from_environment()
    checks = (
        *machine_checks(),
        installed("fastapi", "the service", "pip install 'chorale-collectives[serve]'"),
        *service_checks(home),
    )
    named = {check.name: check for check in checks}
    return Diagnosis(checks, tuple(_part(name, [named[check] for check in needs]) for name, needs in PARTS.items()))


def _part(name: str, needs: Sequence[Check]) -> Component:
    missing = [check for check in needs if not check.ok]
    deciding = missing[0] if missing else needs[-1]
    mend = (deciding.command or deciding.way_out) if missing else ""
    return Component(
        name, not missing, f"{deciding.name}: {deciding.found}", tuple(check.name for check in missing), mend
    )
