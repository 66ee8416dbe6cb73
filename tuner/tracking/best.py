"""The loader of the registry: what to run for a network, a collective and a size, verified before it is given out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.campaigns.size_class import SizeClass
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.tracking.registry import (
    COLLECTIVE,
    MANIFEST_DIGEST,
    MANIFEST_FILE,
    PROGRAM_FILE,
    RERUN_WAY_OUT,
    SCHEDULE_FILE,
    SIZE_CLASS,
    TOPOLOGY_ID,
    UNCHANGED_RULE,
    check_registered,
    digest,
)


@dataclass(frozen=True, slots=True)
class RegisteredProgram:
    """A schedule that verified again, and both files as they were measured."""

    verified: VerifiedSchedule
    schedule: bytes
    program: bytes


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """What the registry says of a size.

    measured: what was measured of the answer at the nearest size
    library:  name of the library's own algorithm, where that is the answer
    made:     the program; None where the library's own is the answer
    """

    version: ModelVersion
    size_class: SizeClass
    manifest: Mapping[str, Any]
    measured: Mapping[str, Any]
    library: str | None
    registered: RegisteredProgram | None

    @property
    def program(self) -> RegisteredProgram:
        """The program that is to be run; CheckFailed where the library's own algorithm is faster than any."""
        if self.registered is None:
            rule = "the answer must be a program to have files"
            raise CheckFailed(rule, f"the library's own {self.library}", "let the library run its own algorithm there")
        return self.registered


def load_best(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str = "champion"
) -> RegistryEntry:
    """Return what is registered for the size class of `size_bytes`, or else for the nearest class.

    Raises CheckFailed if there is none for that network and collective, or if what is there does not verify.
    """
    version, size_class = find_champion(mlflow, topology, collective, size_bytes, alias)
    files = mlflow.download(version)
    try:
        if digest(files[MANIFEST_FILE]) != version.tags[MANIFEST_DIGEST]:
            raise CheckFailed(UNCHANGED_RULE, f"{MANIFEST_FILE}, changed", RERUN_WAY_OUT)
        manifest = json.loads(files[MANIFEST_FILE])
        measured = min(manifest["measured"], key=lambda entry: abs(entry["size_bytes"] - size_bytes))
        library = measured.get("library")
        made = None if library is not None else _program(files, manifest)
    except (KeyError, TypeError, ValueError) as error:
        rule = "a registered version must hold a manifest, and a schedule and a program where it is no library's"
        raise CheckFailed(rule, f"{version.name} version {version.version}: {error!r}", RERUN_WAY_OUT) from error
    return RegistryEntry(version, size_class, manifest, measured, library, made)


def find_champion(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str
) -> tuple[ModelVersion, SizeClass]:
    """Return the version behind `alias` for the size class of `size_bytes`, or else for the nearest class that has one.

    Raises CheckFailed if there is none for that network and collective.
    """
    wanted = SizeClass.of(size_bytes)
    candidates = []
    for name, tags in mlflow.models({TOPOLOGY_ID: topology.id, COLLECTIVE: collective}).items():
        size_class = SizeClass(int(tags[SIZE_CLASS]))
        candidates.append((wanted.distance(size_class), -size_class.exponent, name))
    for _, negative_exponent, name in sorted(candidates):
        version = mlflow.aliased(name, alias)
        if version is not None:
            return version, SizeClass(-negative_exponent)
    rule = "the registry must know a schedule for the network and collective"
    value = f"none for {collective} on {topology.spec}"
    raise CheckFailed(rule, value, "run `chorale tune` with a campaign for it first")


def _program(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> RegisteredProgram:
    schedule, program = files[SCHEDULE_FILE], files[PROGRAM_FILE]
    return RegisteredProgram(check_registered(schedule, program, manifest), schedule, program)
