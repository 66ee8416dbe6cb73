"""Tuning tables for jobs from what was tuned: the answer of a campaign, or the champions of the registry."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from chorale.job.table.merging import SizeRange
from chorale.job.table.model import Table
from chorale.runners.measurement.precision import median_interval
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import read_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.table_writing import (
    JobGroup,
    RangeRow,
    assemble,
    checked_program,
    program_certificate,
    require_links,
    schedule_certificate,
)
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.tracking.registry import COLLECTIVE, PROGRAM_ID, SIZE_CLASS, TOPOLOGY_ID, RegistryEntry, load_best
from chorale.tuner.trials.journal import launch_folders
from chorale.tuner.trials.store import LaunchSnapshot, is_begun, read_snapshot
from chorale.tuner.trials.tuning_table import SizeClass, TableEntry, TableRange, table_ranges, tuning_table

_log = logging.getLogger("chorale.table")

LAUNCH_ID = "chorale.launch_id"
MEASURED_DTYPE = "float32"
"""The type of elements that campaigns measure."""


def table_of_campaign(
    home: Home, name: str, group: JobGroup, dtypes: Sequence[str], beyond: bool, with_mlflow: bool = True
) -> Table:
    """Return the table of the newest launch of campaign `name` that measured something.

    It covers the size classes from the smallest to the largest measured size, with `beyond` all sizes; where a
    baseline won, the library's own runs. CheckFailed where no launch measured anything, or for a program that is wrong.
    """
    snapshot = _newest_launch(home, name)
    campaign = snapshot.launch.campaign
    network = load_topology(campaign["topology"])
    chosen = tuning_table(snapshot.ranked_trials, campaign["objective"] == "geomean_speedup")
    origin = {"campaign": name, "launch": snapshot.launch.number, "launch_id": snapshot.launch.launch_id}
    versions = _registered(home, campaign, network, snapshot.launch.launch_id) if with_mlflow else {}
    rows = []
    for item in _bounded(table_ranges(chosen), chosen, beyond):
        among = [entry for entry in chosen if _within(entry.size_bytes, item)]
        registered = versions.get(item.entry.trial.program_id) if item.entry.trial else None
        rows.append(_campaign_row(snapshot, network, item, among, origin | (registered or {})))
    return assemble(
        rows, network, group, dtypes, {"source": "campaign", **origin, "runner": campaign["runner"]["kind"]}
    )


def _newest_launch(home: Home, name: str) -> LaunchSnapshot:
    folders = launch_folders(home, name)
    for folder in reversed([folder for folder in folders if is_begun(folder)]):
        snapshot = read_snapshot(folder)
        if snapshot.ranked_trials:
            return snapshot
    if not folders:
        known = ", ".join(sorted(path.name for path in home.campaigns.glob("*") if path.is_dir())) or "none"
        raise InvalidInput("the campaign must have been launched here", name, f"there are: {known}; see CHORALE_HOME")
    rule, way_out = "a campaign must have a complete trial to give a table", "run it again with `chorale tune`"
    raise CheckFailed(rule, name, way_out)


def _bounded(ranges: Sequence[TableRange], chosen: Sequence[TableEntry], beyond: bool) -> list[TableRange]:
    """Return the ranges cut to the classes of measured sizes, or as they are from the smallest size on."""
    if beyond:
        return [replace(ranges[0], first_bytes=0), *ranges[1:]]
    smallest = min(SizeClass.of(entry.size_bytes).min_bytes for entry in chosen)
    largest = max(SizeClass.of(entry.size_bytes).max_bytes for entry in chosen)
    last = replace(ranges[-1], last_bytes=largest)
    cut = [*ranges[:-1], last]
    return [replace(cut[0], first_bytes=smallest), *cut[1:]]


def _within(size_bytes: int, item: TableRange) -> bool:
    return item.first_bytes <= size_bytes and (item.last_bytes is None or size_bytes <= item.last_bytes)


def _campaign_row(
    snapshot: LaunchSnapshot,
    network: Topology,
    item: TableRange,
    among: Sequence[TableEntry],
    origin: Mapping[str, Any],
) -> RangeRow:
    campaign, trial = snapshot.launch.campaign, item.entry.trial
    collective = parse_collective(campaign["collective"])
    sizes = SizeRange(item.first_bytes, item.last_bytes)
    measured = {"runner": campaign["runner"]["kind"], "sizes": [_measured(entry) for entry in among]}
    make = partial(RangeRow, collective.name.value, collective.root, sizes)
    if trial is None:
        return make(None, measured, None, {**origin, "baseline": item.entry.baseline})
    text = read_file(str(snapshot.folder / "programs" / f"{trial.program_id}.xml"))
    lifted, program = checked_program(text, f"trial {trial.number}", trial.candidate.method, trial.candidate.parameters)
    require_links(f"trial {trial.number}", text, tuple(range(network.compute_count)), network)
    if not trial.schedule_id:  # a program from a file
        return make(program, measured, program_certificate(lifted, network), {**origin, "trial_id": trial.trial_id})
    schedule = read_file(str(snapshot.folder / "schedules" / f"{trial.schedule_id}.parquet"))
    verified = verify(from_parquet(schedule, load_topology))
    if verified.schedule.topology.id != network.id:
        value, way_out = f"another {network.spec}", "write the table where the campaign ran"
        raise CheckFailed("the network must be the one that the campaign was for", value, way_out)
    certificate = schedule_certificate(verified)
    return make(program, measured, certificate, {**origin, "trial_id": trial.trial_id})


def _measured(entry: TableEntry) -> dict[str, Any]:
    """Return what was measured at a size of what runs there: the program, or the baseline that nothing beat."""
    result = entry.result
    times = result.baseline_times_s[entry.baseline] if entry.trial is None else result.times_s
    interval = median_interval(times)
    return {
        "size_bytes": result.measured_bytes,
        "time_us": interval.median * 1e6,
        "time_us_interval": [interval.low * 1e6, interval.high * 1e6],
        "confidence": interval.confidence,
        "repeats": interval.samples,
        "baseline": entry.baseline,
        "baseline_time_us": result.baseline_median_s * 1e6,
        "speedup_vs_baseline": entry.speedup,
    }


def _registered(
    home: Home, campaign: Mapping[str, Any], network: Topology, launch_id: str
) -> dict[str, dict[str, Any]]:
    """Return where MLflow has the programs of a launch, by program id; empty where it has none or is not reached."""
    found: dict[str, dict[str, Any]] = {}
    try:
        mlflow = MlflowStore(campaign["tracking"]["mlflow_uri"] or home.mlflow_uri, home.artifacts)
        for model in sorted(mlflow.models({TOPOLOGY_ID: network.id, COLLECTIVE: campaign["collective"]})):
            for version in mlflow.versions(model):
                if version.tags.get(LAUNCH_ID) == launch_id and version.tags.get(PROGRAM_ID):
                    found.setdefault(version.tags[PROGRAM_ID], _version_facts(version))
    except ChoraleError as error:
        _log.warning("the table does not name runs and versions of MLflow: %s", error)
    return found


def _version_facts(version: ModelVersion) -> dict[str, Any]:
    return {"model": version.name, "version": version.version, "run_id": version.run_id}


def table_of_registry(
    mlflow: MlflowStore, network: Topology, group: JobGroup, dtypes: Sequence[str], alias: str = "champion"
) -> Table:
    """Return the table of all champions for `network`: of each collective, and in each size class that has one.

    CheckFailed where there is none, or for one that does not verify.
    """
    classes = {
        (tags[COLLECTIVE], SizeClass(int(tags[SIZE_CLASS])))
        for name, tags in mlflow.models({TOPOLOGY_ID: network.id}).items()
        if mlflow.aliased(name, alias) is not None
    }
    if not classes:
        value, way_out = f"none for {network.spec}", "run `chorale tune` with a campaign for it first"
        raise CheckFailed("the registry must know a schedule for the network", value, way_out)
    rows = [
        row
        for collective, size_class in sorted(classes)
        for row in _class_rows(mlflow, network, collective, size_class, alias)
    ]
    return assemble(rows, network, group, dtypes, {"source": "registry", "alias": alias})


def _class_rows(
    mlflow: MlflowStore, network: Topology, collective: str, size_class: SizeClass, alias: str
) -> Iterator[RangeRow]:
    """Yield what runs in a size class; the library may be faster at some of its sizes."""
    best = load_best(mlflow, network, collective, size_class.min_bytes, alias)
    sizes = sorted(best.manifest["measured"], key=lambda measured: int(measured["size_bytes"]))
    runs = [list(run) for _, run in groupby(sizes, key=lambda measured: measured["library"] is None)]
    firsts = [size_class.min_bytes, *(int(run[0]["size_bytes"]) for run in runs[1:])]
    lasts = [*(first - 1 for first in firsts[1:]), size_class.max_bytes]
    for run, first, last in zip(runs, firsts, lasts, strict=True):
        entry = load_best(mlflow, network, collective, int(run[0]["size_bytes"]), alias)
        yield _registry_row(network, entry, SizeRange(first, last), run)


def _registry_row(
    network: Topology, entry: RegistryEntry, sizes: SizeRange, measured: Sequence[Mapping[str, Any]]
) -> RangeRow:
    manifest, version = entry.manifest, entry.version
    collective = parse_collective(manifest["collective"])
    facts = {"runner": manifest["runner"], "sizes": [dict(size) for size in measured]}
    lineage = manifest.get("lineage", {})
    origin = _version_facts(version) | {name: lineage[name] for name in ("campaign", "launch_id") if name in lineage}
    make = partial(RangeRow, collective.name.value, collective.root, sizes)
    if entry.registered is None:
        return make(None, facts, None, {**origin, "baseline": measured[0]["baseline"]})
    text = entry.registered.program
    parameters = manifest["parameters"]
    lifted, program = checked_program(text, f"{version.name} {version.version}", parameters["method"], parameters)
    require_links(version.name, text, tuple(range(network.compute_count)), network)
    verified = entry.registered.verified
    certificate = program_certificate(lifted, network) if verified is None else schedule_certificate(verified)
    return make(program, facts, certificate, origin)
