"""Runs launches of `chorale tune` in this process; starts, watches or ends them in a Ray cluster; prints results."""

import math
import os
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import typer

from chorale.runners.ray.watch import ClusterLost, handle_loss
from chorale.synth import CheckFailed, InvalidInput, Topology
from chorale.synth.errors import unknown_name
from chorale.tuner import Campaign, Home, make_workers, progress_display
from chorale.tuner.cli.options import emit_json, notice, people, results
from chorale.tuner.cli.process import print_error, stop_before_the_job_ends, take_stop_signals
from chorale.tuner.config.values import REVEALED, Address
from chorale.tuner.files.home import write_file, write_folder
from chorale.tuner.files.schedule_files import absolute_spec
from chorale.tuner.launch.detached import LaunchState, LaunchStatus, detached_name, start_launch
from chorale.tuner.launch.plan import budget_within
from chorale.tuner.launch.tune import INTERRUPTED_PATIENCE_S, TuneReport, tune
from chorale.tuner.reports import tuning
from chorale.tuner.slurm.jobs import REQUEUE_VARIABLE
from chorale.tuner.trials.records import table_programs
from chorale.tuner.trials.store import campaign_rows

POLL_S = 1.0
ANSWER_LIMIT_S = 10.0
STOP_PATIENCE_S = INTERRUPTED_PATIENCE_S + 15.0
INTERRUPTED_EXIT_CODE = 130
UNTRACKED_EXIT_CODE = 4
"""Exit code if a launch has succeeded, but MLflow lacks some of its data."""


def start(campaign: Campaign, resume: bool, address: str | None) -> None:
    """Start a detached launch in the cluster. Raises CheckFailed if the campaign is already running there."""
    home = Home.from_environment()
    home.create(home.campaigns)
    if not resume:
        _require_free_name(home, campaign.name)
    # Workers have a different environment and folder, so the campaign gets the complete address and absolute paths.
    mlflow_address = Address(campaign.tracking.address(home.mlflow_uri))
    tracking = campaign.tracking.model_copy(update={"mlflow_uri": mlflow_address})
    changes = {"tracking": tracking, "topology": absolute_spec(campaign.topology)}
    document = campaign.model_copy(update=changes).model_dump(by_alias=True, mode="json", context=REVEALED)
    from chorale.runners.ray.detached import DetachedActors  # noqa: PLC0415 - Ray is optional

    with DetachedActors(address) as actors:
        start_launch(actors, document, home.root, resume)
        note = home.detached_cluster(campaign.name)
        home.create(note.parent)
        write_file(str(note), f"{actors.address}\n".encode())
    notice(f"launched; `chorale tune --follow {campaign.name}` watches it")


def watch_launch(follow: str | None, stop: str | None, address: str | None, as_json: bool) -> None:
    """Follow the detached launch of campaign `follow` until it ends, or end the launch of campaign `stop`.

    Prints the launch's results, or raises the error that ended the launch. The launch is looked up in the cluster at
    `address`, by default at RAY_ADDRESS or, if unset, in the cluster where this data folder last started it.
    """
    campaign = str(follow if stop is None else stop)
    home = Home.from_environment()
    note = home.detached_cluster(campaign)
    cluster = address or os.environ.get("RAY_ADDRESS") or (note.read_text().strip() if note.is_file() else None)
    if cluster is None:
        names = [row["campaign"] for row in campaign_rows(home)]
        if campaign not in names and names:
            raise unknown_name("campaign", campaign, names)
        way_out = "press Ctrl-C in the terminal of a launch that is not detached, or name its cluster with --address"
        raise CheckFailed("nothing to watch or stop: {}", f"{campaign} has no detached launch or Slurm job", way_out)
    from chorale.runners.ray.detached import DetachedActors  # noqa: PLC0415 - Ray is optional

    with DetachedActors(cluster) as actors:
        actor = actors.find(detached_name(campaign))
        if actor is None:
            way_out = "start it with `chorale tune CAMPAIGN.yaml --detach`"
            raise CheckFailed("the campaign {} has no detached launch in this cluster", campaign, way_out)
        status: LaunchStatus = actor.call("status", 0, timeout_s=ANSWER_LIMIT_S)
        if stop is None:
            progress = progress_display(people, status.budget)
            for record in status.new_trials:
                progress.trial(record)
            while status.state == LaunchState.RUNNING:
                time.sleep(POLL_S)
                status = actor.call("status", status.done)
                for record in status.new_trials:
                    progress.trial(record)
        else:
            actor.call("stop")
            deadline_s = time.monotonic() + STOP_PATIENCE_S
            while status.state == LaunchState.RUNNING and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
                status = actor.call("status", 0)
        try:
            if status.error is not None:
                raise status.error
            report: TuneReport | None = actor.call("report")  # None if the report does not arrive in time
        finally:
            if stop is not None:
                actor.remove()
    if report is not None:
        show(report, as_json)


def give_up(loss: ClusterLost) -> None:
    """End this process immediately, because threads that wait for the lost Ray cluster would never return."""
    print_error(str(loss))
    os._exit(loss.exit_code)


def _require_free_name(home: Home, name: str) -> None:
    """Raise InvalidInput if the campaign `name` belongs to a service token, whose owner could then stop the launch."""
    if (home.service / "service.db").is_file():
        from chorale.tuner.service.jobs.job_store import JobStore  # noqa: PLC0415 - SQLAlchemy

        with closing(JobStore(home.service)) as store:
            owner = store.campaign_owner(name)
        if owner not in (None, "local"):
            rule = "the campaign name {} belongs to a token of the service"
            raise InvalidInput(rule, f"{name} ({owner})", "choose another `name`")


def run_launch(campaign: Campaign, topology: Topology, resume: bool, address: str | None) -> TuneReport:
    """Run a launch from this process, on the Ray cluster at `address` or on this machine."""
    home = Home.from_environment()
    if not resume:
        _require_free_name(home, campaign.name)
    handle_loss(give_up)

    def workers() -> Any:
        started = make_workers(campaign, topology, home.root, address)()
        take_stop_signals()  # replaces Ray's handler, which would abort the process
        return started

    stop_s = stop_before_the_job_ends()
    if stop_s is not None:
        campaign = budget_within(campaign, stop_s, REQUEUE_VARIABLE in os.environ)
        people.print(f"this Slurm job ends: the launch stops in {stop_s / 60:.0f} min at the latest", highlight=False)
    limit_s = math.inf if campaign.budget.minutes is None else 60 * campaign.budget.minutes
    return tune(campaign, topology, home, resume, workers, partial(progress_display, people, limit_s=limit_s))


def write_programs(report: TuneReport, folder: Path) -> None:
    """Write the winning programs and NCCL settings, with the sizes at which they won, to a new folder."""
    stored = report.folder / "programs"
    files = table_programs(tuning.tuning_table_of(report), lambda name: (stored / f"{name}.xml").read_bytes())
    write_folder(folder, files)
    people.print(f"{folder}: {len(files)} files; at other sizes the runtime's own algorithms run")


def show(report: TuneReport, as_json: bool) -> None:
    """Print the results of a launch. Exit with 130 if it was interrupted, or with 4 if MLflow lacks some of its data.

    Raises CheckFailed if nothing was measured.
    """
    if as_json:
        emit_json(tuning.tune_document(report))
    elif report.ranked_trials:
        for item in (tuning.tune_table(report), *tuning.undecided_lines(report)):
            results.print(item)
        for line in tuning.prior_lines(report):
            notice(line)
        results.print(f"journal and programs: {report.folder}")
        name = report.launch.campaign["name"]
        notice(f"next: chorale table write --campaign {name} -o {name}.table")
    if report.interrupted:
        print_error(f"interrupted; finished trials are kept ({len(report.trials)}), continue with --resume")
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if not report.ranked_trials:
        failed = [trial for trial in report.trials if trial.state != "complete"]
        reason = f"{len(failed)} trials, none complete"
        raise CheckFailed(
            "the campaign ended without a valid trial: {}", reason, "run it with --verbose, or read its journal"
        )
    if report.tracked.problem is not None:
        print_error(f"tuned, but MLflow does not have everything: {report.tracked.problem}; --resume uploads the rest")
        raise typer.Exit(UNTRACKED_EXIT_CODE)
