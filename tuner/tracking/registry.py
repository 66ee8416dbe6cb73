"""The registry: the best schedule per network, collective and size class, loaded back only after verification.

A registered model is named MODEL.COLLECTIVE.TOPOLOGY.CLASS and carries the full topology id. Each version holds
`schedule.parquet`, `program.xml` and `manifest.json`: plain data, nothing that would be unpickled. `load_best`
is its loader.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of_code
from typing import Any

from runners.sizes import format_size
from synth.errors import CheckFailed, InvalidInput
from synth.lowering.check import check_program
from synth.lowering.lift import lift
from synth.schedule.codec import from_parquet
from synth.topology.topology import Topology
from synth.verify.verified import VerifiedSchedule
from synth.verify.verify import verify
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.final import Standing
from tuner.campaigns.records import CompleteTrial, SizeResult
from tuner.campaigns.size_class import SizeClass
from tuner.campaigns.store import Store
from tuner.files import read_file
from tuner.specs import load_topology
from tuner.tracking.champions import Verdict, settle
from tuner.tracking.mlflow_store import MlflowStore, Version

FORMAT = "chorale-registered/1"
TOPOLOGY_ID = "chorale.topology_id"
COLLECTIVE = "chorale.collective"
SIZE_CLASS = "chorale.size_class"
PROGRAM_ID = "chorale.program_id"
RUNNER = "chorale.runner"
BUFFER_BYTES = "chorale.buffer_bytes"
BASELINES = "chorale.baselines"
SPEEDUP = "chorale.speedup"
TIME_US = "chorale.time_us"
MANIFEST_DIGEST = "chorale.manifest_sha256"
SCHEDULE_FILE, PROGRAM_FILE, MANIFEST_FILE = "schedule.parquet", "program.xml", "manifest.json"
MOST_TRIALS_NAMED = 1000

_UNCHANGED = "a registered file must be the one that was measured"
_AGAIN = "run the campaign again to register a sound one"


@dataclass(frozen=True, slots=True)
class Winner:
    """The best trial of a launch for the sizes of one class."""

    size_class: SizeClass
    trial: CompleteTrial
    sizes: tuple[SizeResult, ...]

    @property
    def speedup(self) -> float:
        """Geometric mean over the sizes of the class."""
        return math.exp(statistics.fmean(math.log(size.speedup) for size in self.sizes))

    @property
    def time_us(self) -> float:
        """Geometric mean of the median times over the sizes of the class."""
        return math.exp(statistics.fmean(math.log(size.median_s * 1e6) for size in self.sizes))


@dataclass(frozen=True, slots=True)
class Best:
    """What the registry gives back: a schedule that verified again, its program and what was measured."""

    version: Version
    size_class: SizeClass
    verified: VerifiedSchedule
    schedule: bytes
    program: bytes
    manifest: Mapping[str, Any]


def winners(standings: Sequence[Standing]) -> list[Winner]:
    """Return the best trial for each size class, by speed-up within it. Empty if there are no trials."""
    found = []
    sizes = [size.size_bytes for size in standings[0].sizes] if standings else []
    for size_class in sorted({SizeClass.of(size) for size in sizes}):
        columns = [index for index, size in enumerate(sizes) if SizeClass.of(size) == size_class]
        rivals = [
            Winner(size_class, standing.trial, tuple(standing.sizes[index] for index in columns))
            for standing in standings
        ]
        found.append(max(rivals, key=lambda winner: (winner.speedup, -winner.trial.number)))
    return found


def register(
    mlflow: MlflowStore,
    campaign: Campaign,
    topology: Topology,
    store: Store,
    winner: Winner,
    run_id: str,
    verdict: Verdict,
) -> tuple[Version, Verdict]:
    """Register `winner` if its program is new, let it have the alias if `verdict` says so; return what came of it.

    The schedule and the program are read back from disk and verified first. Raises ChoraleError if they are not
    there or not sound.
    """
    schedule = read_file(str(store.schedule_path(winner.trial.schedule_id)))
    program = read_file(str(store.program_path(winner.trial.program_id)))
    digests = {SCHEDULE_FILE: _digest(schedule), PROGRAM_FILE: _digest(program)}
    manifest = {**_manifest(campaign, topology, winner), "run_id": run_id, "sha256": digests}
    verified = check_registered(schedule, program, manifest)
    manifest["lineage"] = lineage(store, verified)
    manifest_text = json.dumps(manifest, indent=2, sort_keys=True).encode()
    name = model_name(campaign.register_.model, campaign.collective, topology, winner.size_class)
    model_tags = {
        TOPOLOGY_ID: topology.id,
        COLLECTIVE: campaign.collective,
        SIZE_CLASS: str(winner.size_class.exponent),
        "chorale.topology": topology.spec,
        "chorale.size_range": f"{winner.size_class.min_bytes}-{winner.size_class.max_bytes}",
    }
    tags = model_tags | identity_tags(campaign, winner)
    tags |= {
        "chorale.schedule_id": winner.trial.schedule_id,
        "chorale.launch_id": store.launch.launch_id,
        "chorale.version": manifest["lineage"]["code_version"],
        BASELINES: ",".join(campaign.baselines),
        SPEEDUP: f"{winner.speedup:.6g}",
        TIME_US: f"{winner.time_us:.6g}",
        MANIFEST_DIGEST: _digest(manifest_text),
    }
    same = next((version for version in mlflow.versions(name) if is_same(version.tags, tags)), None)
    files = {SCHEDULE_FILE: schedule, PROGRAM_FILE: program, MANIFEST_FILE: manifest_text}
    version = same or mlflow.register(name, model_tags, tags, run_id, files)
    return version, settle(mlflow, version, campaign.register_.alias, verdict)


def identity_tags(campaign: Campaign, winner: Winner) -> dict[str, str]:
    """Return the tags that tell versions apart, see `is_same`."""
    tags = {PROGRAM_ID: winner.trial.program_id, RUNNER: campaign.runner.kind}
    buffer_bytes = winner.trial.candidate.buffer_bytes
    return tags if buffer_bytes is None else tags | {BUFFER_BYTES: str(buffer_bytes)}


def lineage(store: Store, verified: VerifiedSchedule) -> dict[str, Any]:
    """Return where a registered schedule comes from: its launch, the trials it was chosen from, code, certificate.

    The data of the trials are the runs with these ids in their tag `chorale.trial_id`.
    """
    chosen_from = store.final.results if store.final is not None else [one.trial_id for one in store.trials]
    return {
        "code_version": version_of_code("chorale"),
        "campaign": store.launch.campaign["name"],
        "launch_id": store.launch.launch_id,
        "trials": len(store.trials),
        "trial_ids": sorted(chosen_from)[:MOST_TRIALS_NAMED],
        "certificate": dict(verified.schedule.certificate),
    }


def is_same(held: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether a version holds the same program with the same buffers, measured by the same kind of runner."""
    return all(held.get(tag) == new.get(tag) for tag in (PROGRAM_ID, RUNNER, BUFFER_BYTES))


def load_best(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str = "champion"
) -> Best:
    """Return the registered schedule for the size class of `size_bytes`, or else for the nearest class.

    Raises CheckFailed if there is none for that network and collective, or if what is there does not verify.
    """
    version, size_class = find_champion(mlflow, topology, collective, size_bytes, alias)
    return _load(mlflow, version, size_class)


def find_champion(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str
) -> tuple[Version, SizeClass]:
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


def check_registered(schedule: bytes, program: bytes, manifest: Mapping[str, Any]) -> VerifiedSchedule:
    """Verify a schedule and its program as they would be given out; raise CheckFailed for what is not sound."""
    for name, content in ((SCHEDULE_FILE, schedule), (PROGRAM_FILE, program)):
        if _digest(content) != manifest["sha256"][name]:
            raise CheckFailed(_UNCHANGED, f"{name}, changed", _AGAIN)
    try:
        verified = verify(from_parquet(schedule, load_topology))
        lifted = lift(program)
    except InvalidInput as error:
        raise CheckFailed("a registered schedule must be readable", error, _AGAIN) from error
    if verified.schedule.id != manifest["schedule_id"]:
        raise CheckFailed("a registered schedule must be the one that was measured", verified.schedule.id, _AGAIN)
    if lifted.collective.name != verified.schedule.collective.name:
        raise CheckFailed("a program must do the collective of its schedule", lifted.collective, _AGAIN)
    for violation in check_program(lifted):
        raise CheckFailed("a registered program must be sound", violation.message, _AGAIN)
    return verified


def model_name(model: str, collective: str, topology: Topology, size_class: SizeClass) -> str:
    """Return the name of the registered model for a class."""
    return f"{model}.{collective}.{topology.id[:16]}.{size_class}"


def _load(mlflow: MlflowStore, version: Version, size_class: SizeClass) -> Best:
    files = mlflow.download(version)
    try:
        if _digest(files[MANIFEST_FILE]) != version.tags[MANIFEST_DIGEST]:
            raise CheckFailed(_UNCHANGED, f"{MANIFEST_FILE}, changed", _AGAIN)
        manifest = json.loads(files[MANIFEST_FILE])
        schedule, program = files[SCHEDULE_FILE], files[PROGRAM_FILE]
        verified = check_registered(schedule, program, manifest)
    except (KeyError, TypeError, ValueError) as error:
        rule = "a registered version must hold a manifest, a schedule and a program"
        raise CheckFailed(rule, f"{version.name} version {version.version}: {error!r}", _AGAIN) from error
    return Best(version, size_class, verified, schedule, program, manifest)


def _manifest(campaign: Campaign, topology: Topology, winner: Winner) -> dict[str, Any]:
    trial = winner.trial
    return {
        "format": FORMAT,
        "topology": {"spec": topology.spec, "id": topology.id},
        "collective": campaign.collective,
        "size_range_bytes": [winner.size_class.min_bytes, winner.size_class.max_bytes],
        "parameters": trial.candidate.parameters,
        "schedule_id": trial.schedule_id,
        "program_id": trial.program_id,
        "runner": campaign.runner.kind,
        "baselines": list(campaign.baselines),
        "measured": [_measured(size) for size in winner.sizes],
        "environment": trial.environment,
        "trial_id": trial.trial_id,
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _measured(size: SizeResult) -> dict[str, Any]:
    return {
        "size_bytes": size.size_bytes,
        "size": format_size(size.size_bytes),
        "time_us": size.median_s * 1e6,
        "algbw_gb_per_s": size.algbw_gb_per_s,
        "speedup_vs_baseline": size.speedup,
    }
