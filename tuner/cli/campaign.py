"""`chorale campaign`: list, pause and resume campaigns, and look after their files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.choices import campaign_name
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.cli.slurm import job_name, stop_job
from chorale.tuner.files.home import Home
from chorale.tuner.reports.lazy_rich import Table

campaign_app = CommandLine(help="List, pause and resume campaigns; check and repair their files.")
Name = Annotated[str, typer.Argument(metavar="NAME", parser=campaign_name, help="Campaign, as its file names it.")]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Ray cluster to work on; else RAY_ADDRESS.")
]
LaunchNumber = Annotated[int | None, typer.Option("--launch", min=1, help="Which launch; by default the newest.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.add_typer(campaign_app, name="campaign")


@campaign_app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the campaigns of the data folder, with the state of the newest launch of each.

    Example: chorale campaign list
    """
    from chorale.tuner.launch.campaign_list import campaign_rows  # noqa: PLC0415 - pydantic takes its time

    rows = campaign_rows(Home.from_environment())
    if as_json:
        emit_json({"campaigns": rows})
    elif not rows:
        results.print("no campaigns yet: `chorale tune examples/quickstart.yaml` runs one")
    else:
        table = Table("campaign", "collective", "network", "launches", "trials", "state")
        for row in rows:
            network, trials = row["topology"] or "", f"{row['complete']} of {row['trials']}"
            table.add_row(row["campaign"], row["collective"], network, str(row["launches"]), trials, row["state"])
        results.print(table)


@campaign_app.command("pause")
def pause_command(name: Name, address: Address = None) -> None:
    """End a launch that lives in a Ray cluster or in a job of Slurm, in order; `resume` goes on with it.

    A launch in a terminal is paused by Ctrl-C there.

    Example: chorale campaign pause quickstart
    """
    _stop(name, address)


@campaign_app.command("cancel")
def cancel_command(name: Name, address: Address = None) -> None:
    """End a launch that lives in a Ray cluster or in a job of Slurm; trials that finished are kept.

    Example: chorale campaign cancel quickstart
    """
    _stop(name, address)


@campaign_app.command("resume")
def resume_command(name: Name, address: Address = None, as_json: AsJson = False) -> None:
    """Go on with the newest launch of a campaign in this process, by the campaign that its journal has.

    Example: chorale campaign resume quickstart
    """
    from chorale.tuner.cli.tune_launch import run_launch, show  # noqa: PLC0415 - Ray and Optuna take seconds
    from chorale.tuner.files.topology_specs import load_topology  # noqa: PLC0415 - as above
    from chorale.tuner.launch.campaign_list import launched_campaign  # noqa: PLC0415 - as above

    campaign = launched_campaign(Home.from_environment(), name)
    show(run_launch(campaign, load_topology(campaign.topology), True, address), as_json)


@campaign_app.command("check")
def check_command(name: Name, launch: LaunchNumber = None, as_json: AsJson = False) -> None:
    """Say whether the files of a launch are whole: exit 0 if they are, 1 if not. Changes nothing.

    Every line of the journal has a checksum; Optuna's file and MLflow's database are opened.

    Example: chorale campaign check quickstart
    """
    from chorale.tuner.launch.repair import check_launch, launch_folder  # noqa: PLC0415 - Optuna takes seconds

    home = Home.from_environment()
    health = check_launch(home, launch_folder(home, name, launch))
    if as_json:
        emit_json({"campaign": name, **health.document})
    for problem in () if as_json else health.document["problems"]:
        results.print(problem)
    if not health.document["ok"]:
        way_out = f"repair them with `chorale campaign repair {name}`"
        raise CheckFailed("the files of a launch must be whole", health.document["problems"][0], way_out)
    _say(as_json, f"{health.folder}: {health.document['trials']} trials, all files are whole")


@campaign_app.command("repair")
def repair_command(name: Name, launch: LaunchNumber = None, as_json: AsJson = False) -> None:
    """Repair the files of a launch: damaged lines of the journal are lost, and nothing else.

    A copy of the journal stays beside it. Optuna's file and MLflow's database are made anew from the journal where they
    cannot be read, and get what they lack.

    Example: chorale campaign repair quickstart
    """
    from chorale.tuner.launch.repair import check_launch, launch_folder, repair_launch  # noqa: PLC0415 - as above

    home = Home.from_environment()
    folder = launch_folder(home, name, launch)
    before, done = repair_launch(home, folder)
    after = check_launch(home, folder)
    if as_json:
        document: dict[str, Any] = {"campaign": name, "before": before.document, "done": done}
        emit_json(document | {"after": after.document})
    for line in done:
        _say(as_json, line)
    if not after.document["ok"]:
        raise CheckFailed("a repaired launch must be whole", after.document["problems"][0], "report this")


def _stop(name: str, address: str | None) -> None:
    """End the launch of campaign `name`: a job of Slurm, or one in a Ray cluster."""
    if stop_job(job_name(name), address):
        return
    from chorale.tuner.cli.tune_launch import watch_launch  # noqa: PLC0415 - Ray and Optuna take seconds

    watch_launch(None, name, address, as_json=False)


def _say(as_json: bool, line: str) -> None:
    if not as_json:
        results.print(line)
