"""Registers and loads the best program for each network, collective and size class. Both operations verify the program.

A registered model is named MODEL.COLLECTIVE.CLASS.TOPOLOGY.ID and has the full topology id as a tag. Each version has
`schedule.parquet`, `program.xml` and `manifest.json`: plain data, nothing that would be unpickled. If nothing beats a
library algorithm, the version names that algorithm and has only a manifest.
"""

import hashlib
import json
import logging
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as version_of_code
from typing import Any

from chorale.job.files import read_file
from chorale.runners.api.base import LIBRARY
from chorale.runners.api.units import format_size
from chorale.runners.measurement.driver import MedianInterval, median_interval
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.memory import collective_of_ranks
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.targets.judge import judge_program
from chorale.synth.targets.lift import lift_code
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.trials import records
from chorale.tuner.trials.store import Store

FORMAT = "chorale-registered/1"
TOPOLOGY_ID = "chorale.topology_id"
COLLECTIVE = "chorale.collective"
SIZE_CLASS = "chorale.size_class"
PROGRAM_ID = "chorale.program_id"
RUNNER = "chorale.runner"
BUFFER_BYTES = "chorale.buffer_bytes"
LIBRARY_ALGORITHM = "chorale.library"
MANIFEST_DIGEST = "chorale.manifest_sha256"
SCHEDULE_FILE, PROGRAM_FILE, MANIFEST_FILE = "schedule.parquet", "program.xml", "manifest.json"

_log = logging.getLogger("chorale.registry")

UNCHANGED_RULE = "a registered file is not the one that was measured: {}"
RERUN_WAY_OUT = "run the campaign again to register a correct one"
PROMOTION = "chorale.promotion"
REASON = "chorale.promotion_reason"
RATIO = "chorale.promotion_ratio"
ROLLED_BACK = "chorale.rolled_back"
HISTORY = "chorale.champions."
"""A model's tag with this prefix and an alias lists the versions that had the alias, oldest first."""
MAX_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program in the store: the ids of its files, and the candidate from which it was built."""

    candidate: records.Candidate
    schedule_id: str
    program_id: str


@dataclass(frozen=True, slots=True)
class BestProgram:
    """The program or baseline to run at the sizes of one size class, with its measurements.

    trial:    the trial with the best speed-up in the class
    sizes:    measured times of the program or baseline to run
    baseline: the baseline that won; None if the program of `trial` won
    stored:   the program to run; None for a built-in library algorithm, or if the baseline is not built yet
    """

    size_class: records.SizeClass
    trial: records.CompleteTrial
    sizes: tuple[records.SizeResult, ...]
    baseline: str | None = None
    stored: StoredProgram | None = None

    @property
    def library(self) -> str | None:
        return library_name(self.baseline)

    @property
    def speedup(self) -> float:
        """Return the geometric mean of the speed-ups at the class's sizes."""
        return _geometric_mean([size.speedup for size in self.sizes])

    @property
    def time_us(self) -> float:
        """Return the geometric mean of the median times over the class's sizes."""
        return _geometric_mean([size.median_s * 1e6 for size in self.sizes])


def best_programs(ranked: Sequence[records.RankedTrial], always: bool = False) -> list[BestProgram]:
    """Return the program to run in each size class, the one with the best speed-up; empty if there are no trials.

    As in the tuning table, a program must be clearly faster than every baseline. If none is, the fastest baseline is
    returned for the class, unless `always` is set.
    """
    columns: dict[records.SizeClass, list[int]] = {}
    for index, size in enumerate(ranked[0].sizes if ranked else ()):
        columns.setdefault(records.SizeClass.of(size.size_bytes), []).append(index)
    winners = []
    for size_class, indices in sorted(columns.items()):
        least = 0.0 if always else records.MIN_SPEEDUP
        rivals = [BestProgram(size_class, item.trial, tuple(item.sizes[index] for index in indices)) for item in ranked]
        if ranked[0].verdicts and not always:  # the final comparison has proven which trials win
            proved = {name for index in indices if (name := ranked[0].verdicts[index].name) is not None}
            rivals = [rival for rival in rivals if rival.trial.trial_id in proved] or rivals
            least = 0.0 if proved else math.inf
        best = max(rivals, key=lambda rival: (rival.speedup, -rival.trial.number))
        if best.speedup >= least:
            trial = best.trial
            best = replace(best, stored=StoredProgram(trial.candidate, trial.schedule_id, trial.program_id))
        else:
            names = best.sizes[0].baseline_times_s
            times = {name: tuple(as_baseline(size, name) for size in best.sizes) for name in names}
            baselines = [replace(best, baseline=name, sizes=sizes) for name, sizes in times.items()]
            best = min(baselines, key=lambda rival: rival.time_us)
        winners.append(best)
    return winners


def library_name(baseline: str | None) -> str | None:
    """Return the name by which the library knows `baseline`, or None if that is not a library algorithm."""
    return baseline.removeprefix(LIBRARY) if baseline is not None and baseline.startswith(LIBRARY) else None


def as_baseline(size: records.SizeResult, baseline: str) -> records.SizeResult:
    """Return the measurements of `baseline` as if it were a candidate."""
    return replace(size, times_s=tuple(size.baseline_times_s[baseline]))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


@dataclass(frozen=True, slots=True)
class PromotionVerdict:
    """Says whether a program may have the alias (such as champion), and why.

    against: number of the version that had the alias at the time of the decision; None if there was none
    ratio:   the program's time divided by the time of version `against`, with an interval, if both were measured
    """

    promoted: bool
    reason: str
    against: str | None = None
    ratio: MedianInterval | None = None

    @property
    def tags(self) -> dict[str, str]:
        tags = {PROMOTION: "promoted" if self.promoted else "kept out", REASON: self.reason}
        tags["chorale.promotion_against"] = self.against or ""
        if self.ratio is not None:
            tags[RATIO] = f"{self.ratio.median:.3g} ({self.ratio.low:.3g} to {self.ratio.high:.3g})"
        return tags


def apply_verdict(
    mlflow: MlflowStore, version: ModelVersion, alias: str, verdict: PromotionVerdict
) -> PromotionVerdict:
    """Point `alias` to `version` if the verdict allows it. Tag the version with the final verdict, and return it.

    If the alias has meanwhile moved to a version that was not compared with `version`, the alias stays there.
    """
    holder = mlflow.aliased(version.name, alias)
    if holder is not None and holder.version == version.version:
        return verdict
    now = None if holder is None else holder.version
    if verdict.promoted and now != verdict.against:
        reason = f"version {now} has the alias but was not compared; use --resume to compare it"
        verdict = PromotionVerdict(False, reason, now)
    mlflow.tag_version(version, verdict.tags)
    if verdict.promoted:
        before = [] if holder is None else [*_before(mlflow, holder, alias), holder.version]
        # Update the history first: after a crash in between, the alias has not moved, and its history is complete.
        _remember(mlflow, version.name, alias, [*before, version.version])
        mlflow.set_alias(version, alias)
    return verdict


def roll_back(mlflow: MlflowStore, name: str, alias: str) -> tuple[ModelVersion, ModelVersion]:
    """Move `alias` back to the version that had it before. Return (version that loses the alias, version that gets it).

    The version that lost the alias is tagged, so that no campaign promotes it again. Raises CheckFailed if no version
    had the alias before.
    """
    holder = mlflow.aliased(name, alias)
    past = [] if holder is None else _before(mlflow, holder, alias)
    existing = {version.version: version for version in mlflow.versions(name)}
    earlier = [number for number in past if number in existing]
    if holder is None or not earlier:
        value = f"none for {name}" if holder is None else f"version {holder.version} of {name} is the first"
        raise CheckFailed("there is no earlier champion: {}", value, "keep the current one, or run a campaign")
    former = existing[earlier[-1]]
    mlflow.tag_version(holder, {ROLLED_BACK: f"to version {former.version}"})
    mlflow.set_alias(former, alias)
    _remember(mlflow, name, alias, earlier)
    return holder, former


def _before(mlflow: MlflowStore, holder: ModelVersion, alias: str) -> list[str]:
    """Return the numbers of the versions that had `alias` before the version `holder`, oldest first."""
    past = [number for number in mlflow.model_tags(holder.name).get(f"{HISTORY}{alias}", "").split(",") if number]
    return past[: past.index(holder.version)] if holder.version in past else []


def _remember(mlflow: MlflowStore, name: str, alias: str, numbers: list[str]) -> None:
    mlflow.tag_model(name, f"{HISTORY}{alias}", ",".join(numbers[-MAX_REMEMBERED:]))


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
    """Register `winner` unless it is already registered, and apply `verdict`. Return the version and the final verdict.

    First the schedule and the program are read back from disk and verified; library algorithms have no files.
    Raises ChoraleError if a file is missing or fails verification.
    """
    files: dict[str, bytes] = {}
    if winner.library is None:
        stored = _stored(winner)
        files[PROGRAM_FILE] = read_file(str(store.program_path(stored.program_id)))
        if stored.schedule_id:
            files[SCHEDULE_FILE] = read_file(str(store.schedule_path(stored.schedule_id)))
    digests = {name: digest(content) for name, content in files.items()}
    manifest = {**_manifest(campaign, topology, winner), "run_id": run_id, "sha256": digests}
    verified = check_registered(files, manifest) if files else None
    chosen_from = store.final.results if store.final is not None else [trial.trial_id for trial in store.trials]
    manifest["lineage"] = {  # the trials are the MLflow runs with these ids in the tag `chorale.trial_id`
        "code_version": version_of_code("chorale-collectives"),
        "campaign": store.launch.campaign["name"],
        "launch_id": store.launch.launch_id,
        "trials": len(store.trials),
        "trial_ids": sorted(chosen_from)[:1000],
        "certificate": {} if verified is None else dict(verified.schedule.certificate),
    }
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
        "chorale.baselines": ",".join(campaign.baselines),
        "chorale.library_sizes": ",".join(str(size["size_bytes"]) for size in manifest["measured"] if size["library"]),
        "chorale.speedup": f"{winner.speedup:.6g}",
        "chorale.time_us": f"{winner.time_us:.6g}",
        MANIFEST_DIGEST: digest(manifest_text),
    }
    same = next((version for version in mlflow.versions(name) if is_same(version.tags, tags)), None)
    version = same or mlflow.register(name, model_tags, tags, run_id, files | {MANIFEST_FILE: manifest_text})
    return version, apply_verdict(mlflow, version, campaign.register_.alias, verdict)


def identity_tags(campaign: Campaign, winner: BestProgram) -> dict[str, str]:
    """Return the tags that distinguish versions (see `is_same`). Raises CheckFailed if `winner` is not built."""
    runner = {RUNNER: campaign.runner.kind}
    if winner.library is not None:
        return runner | {LIBRARY_ALGORITHM: winner.library}
    stored = _stored(winner)
    buffer_bytes = stored.candidate.buffer_bytes
    tags = runner | {PROGRAM_ID: stored.program_id}
    return tags if buffer_bytes is None else tags | {BUFFER_BYTES: str(buffer_bytes)}


def is_same(registered: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Return whether the tags of two versions name the same program, buffers, library algorithm and kind of runner."""
    return all(registered.get(tag) == new.get(tag) for tag in (PROGRAM_ID, RUNNER, BUFFER_BYTES, LIBRARY_ALGORITHM))


def check_registered(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> VerifiedSchedule | None:
    """Verify a version's files: its program and, if there is one, its schedule. Return the verified schedule.

    Raises CheckFailed if a file is wrong or was changed.
    """
    has_schedule = bool(manifest["schedule_id"])
    for name in (SCHEDULE_FILE, PROGRAM_FILE) if has_schedule else (PROGRAM_FILE,):
        if name not in files or digest(files[name]) != manifest["sha256"][name]:
            raise CheckFailed(UNCHANGED_RULE, f"{name}, changed", RERUN_WAY_OUT)
    try:
        verified = verify(from_parquet(files[SCHEDULE_FILE], load_topology)) if has_schedule else None
        lifted = lift_code(files[PROGRAM_FILE])
    except InvalidInput as error:
        raise CheckFailed("the registered schedule cannot be read: {}", error, RERUN_WAY_OUT) from error
    for violation in judge_program(lifted).violations:
        raise CheckFailed("the registered program fails its check: {}", violation.message, RERUN_WAY_OUT)
    if verified is None:
        return None
    if verified.schedule.id != manifest["schedule_id"]:
        raise CheckFailed(
            "the registered schedule is not the one that was measured: its content id is {}",
            verified.schedule.id,
            RERUN_WAY_OUT,
        )
    collective = collective_of_ranks(lifted)
    if collective.name != verified.schedule.collective.name:
        raise CheckFailed("the program computes something else than its schedule: {}", collective, RERUN_WAY_OUT)
    return verified


def model_name(
    mlflow: MlflowStore, model: str, collective: str, topology: Topology, size_class: records.SizeClass
) -> str:
    """Return the name of the registered model for a size class: the existing model's or else a new, readable name.

    New names begin with the parts in which models differ, because lists show only the beginning of a name.
    """
    names = mlflow.models(_class_tags(collective, topology, size_class))
    present = sorted(name for name in names if name.startswith(f"{model}."))
    spec = re.sub(r"[^A-Za-z0-9]+", "-", topology.spec).strip("-")[:40]
    return present[0] if present else f"{model}.{collective}.{size_class}.{spec}.{topology.id[:8]}"


def _class_tags(collective: str, topology: Topology, size_class: records.SizeClass) -> dict[str, str]:
    return {TOPOLOGY_ID: topology.id, COLLECTIVE: collective, SIZE_CLASS: str(size_class.exponent)}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stored(winner: BestProgram) -> StoredProgram:
    if winner.stored is None:
        rule = "the fastest baseline, {}, could not be built"
        raise CheckFailed(rule, winner.baseline, "start the launch again with --resume")
    return winner.stored


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


def _measured(size: records.SizeResult, library: str | None) -> dict[str, Any]:
    """Return a size's measurements: the program's, or a library algorithm's if that is about as fast or faster."""
    fastest = records.fastest_baseline(size)
    if library_name(fastest) is not None and size.speedup < records.MIN_SPEEDUP:
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


@dataclass(frozen=True, slots=True)
class RegisteredProgram:
    """A registered program with its verified schedule; programs that users gave as files have no schedule."""

    verified: VerifiedSchedule | None
    schedule: bytes | None
    program: bytes


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """Says what the registry recommends at a size: a program, or one of the library's algorithms.

    measured:   the measurements at the nearest size
    library:    name of the library's algorithm to run, if any
    registered: the program; None if a library algorithm is to be run
    """

    version: ModelVersion
    size_class: records.SizeClass
    manifest: Mapping[str, Any]
    measured: Mapping[str, Any]
    library: str | None
    registered: RegisteredProgram | None

    def __repr__(self) -> str:
        what = f"the library's {self.library}"
        if self.library is None:
            what = self.manifest.get("parameters", {}).get("method", "a program")
        return f"<{self.version.name} version {self.version.version}: {what}>"

    @property
    def program(self) -> RegisteredProgram:
        """Return the program to run. Raises CheckFailed if the registry recommends a library algorithm instead."""
        if self.registered is None:
            rule = "there are no files, because the best choice is {}"
            raise CheckFailed(rule, f"the library's own {self.library}", "let the library run its own algorithm there")
        return self.registered


def load_best(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str = "champion"
) -> RegistryEntry:
    """Return the entry for the size class of `size_bytes`, or else for the nearest class that has one.

    Raises CheckFailed if there is no entry for this network and collective, or if verifying the entry fails.
    """
    version, size_class = find_champion(mlflow, topology, collective, size_bytes, alias)
    files = mlflow.download(version)
    try:
        if digest(files[MANIFEST_FILE]) != version.tags[MANIFEST_DIGEST]:
            raise CheckFailed(UNCHANGED_RULE, f"{MANIFEST_FILE}, changed", RERUN_WAY_OUT)
        manifest = json.loads(files[MANIFEST_FILE])
        measured = min(manifest["measured"], key=lambda entry: abs(entry["size_bytes"] - size_bytes))
        library = measured.get("library")
        registered = None
        if library is None:
            verified = check_registered(files, manifest)
            schedule = None if verified is None else files[SCHEDULE_FILE]
            registered = RegisteredProgram(verified, schedule, files[PROGRAM_FILE])
    except (KeyError, TypeError, ValueError) as error:
        rule = "a registered version must have a manifest and, unless it is the library's, a schedule and a program"
        raise CheckFailed(rule, f"{version.name} version {version.version}: {error!r}", RERUN_WAY_OUT) from error
    return RegistryEntry(version, size_class, manifest, measured, library, registered)


def find_champion(
    mlflow: MlflowStore, topology: Topology, collective: str, size_bytes: int, alias: str
) -> tuple[ModelVersion, records.SizeClass]:
    """Return the version with `alias` for the size class of `size_bytes` or, without one, for the nearest class.

    Raises CheckFailed if no version for this network and collective has the alias.
    """
    target = records.SizeClass.of(size_bytes)
    candidates = []
    for name, tags in mlflow.models({TOPOLOGY_ID: topology.id, COLLECTIVE: collective}).items():
        size_class = records.SizeClass(int(tags[SIZE_CLASS]))
        candidates.append((target.distance(size_class), -size_class.exponent, name))
    for _, negative_exponent, name in sorted(candidates):
        version = mlflow.aliased(name, alias)
        if version is not None:
            return version, records.SizeClass(-negative_exponent)
    raise nothing_registered(topology, collective)


def nothing_registered(topology: Topology, collective: str) -> CheckFailed:
    """Return the error to raise if nothing is registered for this network and collective."""
    value = f"{collective} on {topology.spec}"
    return CheckFailed("no schedule is registered for {}", value, "first run `chorale tune` with a campaign for it")
