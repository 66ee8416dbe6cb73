"""The picture and the report of a launch, beside its journal and in MLflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from chorale.runners.measurement.driver import LinkLimit, link_limit
from chorale.synth.collective import parse_collective
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.read_write import write_file
from chorale.tuner.launch.executions import read_execution_rows
from chorale.tuner.tracking.champions import PromotionVerdict
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.tracker import TrackingResult
from chorale.tuner.trials.records import CompleteTrial, RankedTrial, TrialRecord
from chorale.tuner.trials.store import Store
from chorale.tuner.trials.tuning_table import SizeClass, regressions, tuning_table

_log = logging.getLogger("chorale.tune")


def launch_limit(campaign: Campaign, topology: Topology, trials: Sequence[TrialRecord]) -> LinkLimit | None:
    """Return what the links of a launch allow, None where their rate is not known."""
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    return link_limit(topology, parse_collective(campaign.collective), complete[-1].environment) if complete else None


def draw_picture(campaign: Campaign, store: Store, limit: LinkLimit | None) -> None:
    """Write a picture of the launch beside its journal; if that fails it is only logged."""
    complete = [trial for trial in store.trials if isinstance(trial, CompleteTrial)]
    if not complete:
        return
    from chorale.tuner.plots.campaign_plots import campaign_png  # noqa: PLC0415  # matplotlib takes half a second to import

    title = f"{campaign.name}: {campaign.collective} on {campaign.topology}, {campaign.runner.kind} runner"
    try:
        write_file(store.picture_path, campaign_png(complete, title, limit))
    except ChoraleError as error:
        _log.warning("no picture: %s", error)


def write_page(
    campaign: Campaign,
    store: Store,
    ranked: Sequence[RankedTrial],
    versions: Mapping[int, str],
    verdicts: Mapping[SizeClass, PromotionVerdict],
    overhead: Mapping[str, Any],
) -> None:
    """Write the report beside the journal; if that fails it is only logged."""
    from chorale.tuner.launch.html_report import campaign_page  # noqa: PLC0415  # matplotlib takes half a second to import

    chosen = tuning_table(ranked, campaign.one_winner, campaign.deterministic)
    try:
        refused = regressions(store.launch.campaign, store.trials, ranked)
        executions = _executions(ranked, store)
        page = campaign_page(store.launch, store.trials, chosen, versions, verdicts, overhead, refused, executions)
        write_file(store.report_path, page.encode())
    except ChoraleError as error:
        _log.warning("no report: %s", error)


def _executions(ranked: Sequence[RankedTrial], store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return where the time of each finalist went, by its candidate, where it was traced."""
    rows = {str(one.trial.candidate): read_execution_rows(store.trace_path(one.trial.trial_id)) for one in ranked}
    return {candidate: sizes for candidate, sizes in rows.items() if sizes}


def upload_page(mlflow: MlflowStore, tracked: TrackingResult, store: Store) -> None:
    """Store the report as an artifact of the launch's run."""
    if tracked.parent_run_id is None or not store.report_path.exists():
        return
    try:
        mlflow.upload(tracked.parent_run_id, {store.report_path.name: store.report_path.read_bytes()})
    except ChoraleError as error:
        _log.warning("the report is not in MLflow: %s", error)
