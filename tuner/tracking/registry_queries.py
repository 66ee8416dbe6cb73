"""Queries of the registry: the verified entry for a network, collective and size, and champions of similar networks."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.topology_specs import load_topology
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
from chorale.tuner.trials.records import Candidate, candidate_codec
from chorale.tuner.trials.tuning_table import SizeClass


@dataclass(frozen=True, slots=True)
class RegisteredProgram:
    """A schedule that was verified again, and the bytes of both files; a program that somebody wrote has none."""

    verified: VerifiedSchedule | None
    schedule: bytes | None
    program: bytes


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """What to run at a size.

    measured:   the measurements at the nearest size
    library:    name of the library's algorithm, if that is to be run
    registered: the program; None if an algorithm of the library is to be run
    """

    version: ModelVersion
    size_class: SizeClass
    manifest: Mapping[str, Any]
    measured: Mapping[str, Any]
    library: str | None
    registered: RegisteredProgram | None

    @property
    def program(self) -> RegisteredProgram:
        """The program to run; CheckFailed where an algorithm of the library is faster than any program."""
        if self.registered is None:
            rule = "the answer must be a program to have files"
            raise CheckFailed(rule, f"the library's own {self.library}", "let the library run its own algorithm there")
        return self.registered


def load_best(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str = "champion"
) -> RegistryEntry:
    """Return the entry of the size class of `size_bytes`, or else of the nearest class.

    Raises CheckFailed if there is none for that network and collective, or if it does not verify.
    """
    version, size_class = find_champion(mlflow, topology, collective, size_bytes, alias)
    files = mlflow.download(version)
    try:
        if digest(files[MANIFEST_FILE]) != version.tags[MANIFEST_DIGEST]:
            raise CheckFailed(UNCHANGED_RULE, f"{MANIFEST_FILE}, changed", RERUN_WAY_OUT)
        manifest = json.loads(files[MANIFEST_FILE])
        measured = min(manifest["measured"], key=lambda entry: abs(entry["size_bytes"] - size_bytes))
        library = measured.get("library")
        registered = None if library is not None else _program(files, manifest)
    except (KeyError, TypeError, ValueError) as error:
        rule = "a registered version must hold a manifest, and a schedule and a program where it is no library's"
        raise CheckFailed(rule, f"{version.name} version {version.version}: {error!r}", RERUN_WAY_OUT) from error
    return RegistryEntry(version, size_class, manifest, measured, library, registered)


def find_champion(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str
) -> tuple[ModelVersion, SizeClass]:
    """Return the version behind `alias` for the size class of `size_bytes`, or else for the nearest class that has one.

    Raises CheckFailed if there is none for that network and collective.
    """
    target = SizeClass.of(size_bytes)
    candidates = []
    for name, tags in mlflow.models({TOPOLOGY_ID: topology.id, COLLECTIVE: collective}).items():
        size_class = SizeClass(int(tags[SIZE_CLASS]))
        candidates.append((target.distance(size_class), -size_class.exponent, name))
    for _, negative_exponent, name in sorted(candidates):
        version = mlflow.aliased(name, alias)
        if version is not None:
            return version, SizeClass(-negative_exponent)
    raise nothing_registered(topology, collective)


def nothing_registered(topology: Topology, collective: str) -> CheckFailed:
    """Return the error that says so."""
    rule = "the registry must know a schedule for the network and collective"
    value = f"none for {collective} on {topology.spec}"
    return CheckFailed(rule, value, "run `chorale tune` with a campaign for it first")


def _program(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> RegisteredProgram:
    verified = check_registered(files, manifest)
    return RegisteredProgram(verified, None if verified is None else files[SCHEDULE_FILE], files[PROGRAM_FILE])


_log = logging.getLogger("chorale.registry")

MAX_MODELS = 50  # models whose champions are read
_DEGRADED = re.compile(r"(without|scaled)\(")
MAX_CLASS_DISTANCE = 1  # powers of two between size classes that still are similar


def similar_champions(mlflow: MlflowStore, campaign: Campaign, topology: Topology) -> list[Candidate]:
    """Return the parameters of champions for the same collective on similar networks, the nearest in size first.

    Similar are networks of the same `family` and the same degree, and size classes at most `MAX_CLASS_DISTANCE`
    apart from one of the campaign's. They are starting points only: nothing about them is trusted.
    """
    classes = {SizeClass.of(size) for size in campaign.sizes}
    similar: list[tuple[int, int, str]] = []
    for name, tags in mlflow.models({COLLECTIVE: campaign.collective}).items():
        size_class = SizeClass(int(tags[SIZE_CLASS]))
        spec = tags.get("chorale.topology", "")
        if family(spec) == family(topology.spec) and any(
            wanted.distance(size_class) <= MAX_CLASS_DISTANCE for wanted in classes
        ):
            similar.append((min(wanted.distance(size_class) for wanted in classes), -size_class.exponent, name))
    winners = (_winner(mlflow, campaign, topology, name) for _, _, name in sorted(similar)[:MAX_MODELS])
    return list(dict.fromkeys(winner for winner in winners if winner is not None))


def family(spec: str) -> str:
    """Return the family of a spec, before any losses: `torus` of torus:4x4 and of without(torus:4x4;…)."""
    while (whole := _DEGRADED.match(spec)) is not None:
        spec = spec[whole.end() :]
    return re.split(r"[:(]", spec, maxsplit=1)[0]


def degree(topology: Topology) -> int:
    """Return the number of links out of the compute node that has most."""
    sources = np.bincount(topology.links.src, minlength=topology.compute_count)
    return int(sources[: topology.compute_count].max())


def _winner(mlflow: MlflowStore, campaign: Campaign, topology: Topology, name: str) -> Candidate | None:
    """Return the candidate behind the alias of a model; None, with a warning, for one that cannot be read."""
    version = mlflow.aliased(name, campaign.register_.alias)
    if version is None:
        return None
    try:
        manifest: dict[str, Any] = json.loads(mlflow.download(version)[MANIFEST_FILE])
        if manifest.get("library") is not None or degree(load_topology(manifest["topology"]["spec"])) != degree(
            topology
        ):
            return None
        return candidate_codec.validate_python(manifest["parameters"])
    except (ChoraleError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s says nothing to begin with: %r", name, error)
        return None
