"""From findings to what can be used: every runner, Ray, MLflow, the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.registry import RUNNERS
from chorale.tuner.doctor.check import Check, installed
from chorale.tuner.doctor.machine import machine_checks
from chorale.tuner.doctor.services import service_checks
from chorale.tuner.home import Home

PARTS: Mapping[str, tuple[str, ...]] = {
    **{name: runner.preconditions for name, runner in RUNNERS.items() if runner.preconditions},
    "fabric": ("linux", "ip", "tc", "fabrics"),
    "ray": ("ray", "memory", "ray cluster"),
    "mlflow": ("mlflow", "data folder", "mlflow store"),
    "service": ("ray", "fastapi", "data folder", "service port"),
}
"""Part -> the findings that it takes, in the order in which they are mended."""


@dataclass(frozen=True, slots=True)
class Component:
    """A runner or a service.

    found:   the finding that it hangs on
    missing: names of all findings that it lacks
    mend:    the command that brings the first of them
    """

    name: str
    usable: bool
    found: str
    missing: tuple[str, ...]
    mend: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and what can be used because of it."""

    checks: tuple[Check, ...]
    parts: tuple[Component, ...]

    @property
    def ready(self) -> bool:
        """Whether a campaign can run here."""
        return all(check.ok for check in self.checks if check.required)


def diagnose() -> Diagnosis:
    """Look at this machine and at what it is told to talk to; takes a second or two."""
    home = Home.from_environment()
    checks = (*machine_checks(), installed("fastapi", "the service", "make setup"), *service_checks(home))
    named = {check.name: check for check in checks}
    return Diagnosis(checks, tuple(_part(name, [named[one] for one in needs]) for name, needs in PARTS.items()))


def _part(name: str, needs: Sequence[Check]) -> Component:
    missing = [check for check in needs if not check.ok]
    told = missing[0] if missing else needs[-1]
    mend = (told.command or told.way_out) if missing else ""
    return Component(name, not missing, f"{told.name}: {told.found}", tuple(check.name for check in missing), mend)
