"""The registry: the best program per network, collective and size class, verified before and after it is stored.

A registered model is named MODEL.COLLECTIVE.TOPOLOGY.CLASS and carries the full topology id. Each version holds
`schedule.parquet`, `program.xml` and `manifest.json`: plain data, nothing that would be unpickled. Where nothing beats
an algorithm of the library, the version is that algorithm: a manifest without files. The loader is
`chorale.tuner.tracking.registry_queries`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.metadata import version as version_of_code
from typing import Any

from chorale.runners.api.units import format_size
from chorale.runners.measurement.precision import median_interval
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.switch_processes import collective_of_ranks
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.judge import judge_program
from chorale.synth.targets.lift import lift_code
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.read_write import read_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.tracking.champions import (
    BestProgram,
    PromotionVerdict,
    StoredProgram,
    apply_verdict,
    as_baseline,
    library_name,
)
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.trials.records import SizeResult
from chorale.tuner.trials.store import Store
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP, SizeClass, fastest_baseline

FORMAT = "chorale-registered/1"
TOPOLOGY_ID = "chorale.topology_id"
COLLECTIVE = "chorale.collective"
SIZE_CLASS = "chorale.size_class"
PROGRAM_ID = "chorale.program_id"
RUNNER = "chorale.runner"
BUFFER_BYTES = "chorale.buffer_bytes"
LIBRARY_ALGORITHM = "chorale.library"
LIBRARY_SIZES = "chorale.library_sizes"
BASELINES = "chorale.baselines"
SPEEDUP = "chorale.speedup"
TIME_US = "chorale.time_us"
MANIFEST_DIGEST = "chorale.manifest_sha256"
SCHEDULE_FILE, PROGRAM_FILE, MANIFEST_FILE = "schedule.parquet", "program.xml", "manifest.json"
MAX_SPEC_CHARACTERS = 40
MAX_TRIAL_IDS = 1000

UNCHANGED_RULE = "a registered file must be the one that was measured"
RERUN_WAY_OUT = "run the campaign again to register a sound one"


def register(
    mlflow: MlflowStore,
    campaign: Campaign,
    topology: Topology,
    store: Store,
    *,
    winner: BestProgram,
    run_id: str,
    verdict: PromotionVerdict,
) -> tuple[ModelVersion, PromotionVerdict]:
    """Register `winner` unless the registry has it, and apply `verdict`; return the version and the final verdict.

    The schedule and the program are read back from disk and verified first. Raises ChoraleError if they are missing
    or not sound. Algorithms of the library have no files.
    """
    files = _program_files(store, winner)
    digests = {name: digest(content) for name, content in files.items()}
    manifest = {**_manifest(campaign, topology, winner), "run_id": run_id, "sha256": digests}
    certificate = _certificate(files, manifest)
    manifest["lineage"] = lineage(store, certificate)
    manifest_text = json.dumps(manifest, indent=2, sort_keys=True).encode()
    name = model_name(mlflow, campaign.register_.model, campaign.collective, topology, winner.size_class)
    model_tags = {
        **_class_tags(campaign.collective, topology, winner.size_class),
        "chorale.topology": topology.spec,
        "chorale.size_range": f"{winner.size_class.min_bytes}-{winner.size_class.max_bytes}",
    }
    tags = model_tags | identity_tags(campaign, winner)
    tags |= {
        "chorale.schedule_id": winner.stored.schedule_id if winner.stored else "",
        "chorale.launch_id": store.launch.launch_id,
        "chorale.version": manifest["lineage"]["code_version"],
        BASELINES: ",".join(campaign.baselines),
        LIBRARY_SIZES: ",".join(str(size["size_bytes"]) for size in manifest["measured"] if size["library"]),
        SPEEDUP: f"{winner.speedup:.6g}",
        TIME_US: f"{winner.time_us:.6g}",
        MANIFEST_DIGEST: digest(manifest_text),
    }
    same = next((version for version in mlflow.versions(name) if is_same(version.tags, tags)), None)
    version = same or mlflow.register(name, model_tags, tags, run_id, files | {MANIFEST_FILE: manifest_text})
    return version, apply_verdict(mlflow, version, campaign.register_.alias, verdict)


def identity_tags(campaign: Campaign, winner: BestProgram) -> dict[str, str]:
    """Return the tags that tell versions apart, see `is_same`. CheckFailed for a baseline that could not be built."""
    runner = {RUNNER: campaign.runner.kind}
    if winner.library is not None:
        return runner | {LIBRARY_ALGORITHM: winner.library}
    stored = _stored(winner)
    buffer_bytes = stored.candidate.buffer_bytes
    tags = runner | {PROGRAM_ID: stored.program_id}
    return tags if buffer_bytes is None else tags | {BUFFER_BYTES: str(buffer_bytes)}


def lineage(store: Store, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a registered version comes from: its launch, the trials it was chosen from, code, certificate.

    The data of the trials are the runs with these ids in their tag `chorale.trial_id`.
    """
    chosen_from = store.final.results if store.final is not None else [trial.trial_id for trial in store.trials]
    return {
        "code_version": version_of_code("chorale-collectives"),
        "campaign": store.launch.campaign["name"],
        "launch_id": store.launch.launch_id,
        "trials": len(store.trials),
        "trial_ids": sorted(chosen_from)[:MAX_TRIAL_IDS],
        "certificate": dict(certificate),
    }


def is_same(registered: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two versions are, by their tags, the same program with the same buffers, or the same algorithm of the
    library, measured by the same kind of runner.
    """
    return all(registered.get(tag) == new.get(tag) for tag in (PROGRAM_ID, RUNNER, BUFFER_BYTES, LIBRARY_ALGORITHM))


def check_registered(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> VerifiedSchedule | None:
    """Verify the files of a version: a program, and the schedule that it was made of, which is returned, if there is
    one. CheckFailed unless both are sound and unchanged."""
    has_schedule = bool(manifest["schedule_id"])
    for name in (SCHEDULE_FILE, PROGRAM_FILE) if has_schedule else (PROGRAM_FILE,):
        if name not in files or digest(files[name]) != manifest["sha256"][name]:
            raise CheckFailed(UNCHANGED_RULE, f"{name}, changed", RERUN_WAY_OUT)
    try:
        verified = verify(from_parquet(files[SCHEDULE_FILE], load_topology)) if has_schedule else None
        lifted = lift_code(files[PROGRAM_FILE])
    except InvalidInput as error:
        raise CheckFailed("a registered schedule must be readable", error, RERUN_WAY_OUT) from error
    for violation in judge_program(lifted).violations:
        raise CheckFailed("a registered program must be sound", violation.message, RERUN_WAY_OUT)
    if verified is None:
        return None
    if verified.schedule.id != manifest["schedule_id"]:
        raise CheckFailed(
            "a registered schedule must be the one that was measured", verified.schedule.id, RERUN_WAY_OUT
        )
    collective = collective_of_ranks(lifted)
    if collective.name != verified.schedule.collective.name:
        raise CheckFailed("a program must do the collective of its schedule", collective, RERUN_WAY_OUT)
    return verified


def model_name(mlflow: MlflowStore, model: str, collective: str, topology: Topology, size_class: SizeClass) -> str:
    """Return the name of the registered model for a class: of the one that there is, else one that people can read.

    What differs between models comes early: lists show the beginning of names only.
    """
    names = mlflow.models(_class_tags(collective, topology, size_class))
    present = sorted(name for name in names if name.startswith(f"{model}."))
    spec = re.sub(r"[^A-Za-z0-9]+", "-", topology.spec).strip("-")[:MAX_SPEC_CHARACTERS]
    return present[0] if present else f"{model}.{collective}.{size_class}.{spec}.{topology.id[:8]}"


def _class_tags(collective: str, topology: Topology, size_class: SizeClass) -> dict[str, str]:
    return {TOPOLOGY_ID: topology.id, COLLECTIVE: collective, SIZE_CLASS: str(size_class.exponent)}


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _stored(winner: BestProgram) -> StoredProgram:
    if winner.stored is None:
        rule = "a baseline that is faster than every candidate must be possible to make"
        raise CheckFailed(rule, winner.baseline, "start the launch again with --resume")
    return winner.stored


def _program_files(store: Store, winner: BestProgram) -> dict[str, bytes]:
    """Return the program of `winner` and its schedule, if it has one; nothing for an algorithm of the library."""
    if winner.library is not None:
        return {}
    stored = _stored(winner)
    files = {PROGRAM_FILE: read_file(str(store.program_path(stored.program_id)))}
    if stored.schedule_id:
        files[SCHEDULE_FILE] = read_file(str(store.schedule_path(stored.schedule_id)))
    return files


def _certificate(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the certificate of the schedule after checking it and its program; an empty one without files."""
    if not files:
        return {}
    verified = check_registered(files, manifest)
    return {} if verified is None else verified.schedule.certificate


def _manifest(campaign: Campaign, topology: Topology, winner: BestProgram) -> dict[str, Any]:
    stored = winner.stored
    return {
        "format": FORMAT,
        "topology": {"spec": topology.spec, "id": topology.id},
        "collective": campaign.collective,
        "size_range_bytes": [winner.size_class.min_bytes, winner.size_class.max_bytes],
        "library": winner.library,
        "parameters": stored.candidate.parameters if stored else None,
        "schedule_id": (stored.schedule_id or None) if stored else None,
        "program_id": stored.program_id if stored else None,
        "runner": campaign.runner.kind,
        "baselines": list(campaign.baselines),
        "measured": [_measured(size, winner.library) for size in winner.sizes],
        "environment": winner.trial.environment,
        "trial_id": None if winner.baseline else winner.trial.trial_id,
    }


def _measured(size: SizeResult, library: str | None) -> dict[str, Any]:
    """Return the measurements at one size: of the class's program, or of a library's algorithm that is faster there."""
    fastest = fastest_baseline(size)
    if library_name(fastest) is not None and size.speedup < MIN_SPEEDUP:
        size, library = as_baseline(size, fastest), library_name(fastest)
    time = median_interval(size.times_s)
    return {
        "size_bytes": size.size_bytes,
        "size": format_size(size.size_bytes),
        "time_us": size.median_s * 1e6,
        "time_us_interval": [time.low * 1e6, time.high * 1e6],
        "confidence": time.confidence,
        "algbw_gb_per_s": size.algbw_gb_per_s,
        "speedup_vs_baseline": size.speedup,
        "baseline": fastest,
        "baseline_time_us": size.baseline_median_s * 1e6,
        "library": library,
    }
