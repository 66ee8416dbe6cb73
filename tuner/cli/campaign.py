"""`chorale campaign` and `chorale ui`: list, pause and resume campaigns, look after their files, and show them."""

from typing import Annotated, Any

import typer

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.redaction import redacted
from chorale.tuner.cli.application import AsJson, CommandLine
from chorale.tuner.cli.options import Address, CampaignName
from chorale.tuner.cli.output import notice, people
from chorale.tuner.cli.slurm import job_name, stop_job
from chorale.tuner.config.values import is_loopback
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.tables import Columns, Result, rows_table
from chorale.tuner.trials.store import campaign_rows, launch_folder, launch_health, launched_campaign, repair_launch

campaign_app = CommandLine(help="List, pause and resume campaigns; check and repair their files.")
LaunchNumber = Annotated[int | None, typer.Option("--launch", min=1, help="Which launch; by default the newest.")]


@campaign_app.command("list")
def list_command() -> Result:
    """List the campaigns of the data folder, with the state of the newest launch of each.

    Example: chorale campaign list
    """
    rows = campaign_rows(Home.from_environment())
    columns: Columns = {
        "campaign": "campaign",
        "collective": "collective",
        "network": "topology",
        "launches": "launches",
        "trials": lambda row: f"{row['complete']} of {row['trials']}",
        "state": "state",
    }
    nothing = "no campaigns yet: `chorale tune examples/quickstart.yaml` runs one"
    return Result({"campaigns": rows}, rows_table(rows, columns) if rows else nothing)


@campaign_app.command("pause")
def pause_command(name: CampaignName, address: Address = None) -> None:
    """End a launch that lives in a Ray cluster or in a job of Slurm, in order; `resume` goes on with it.

    A launch in a terminal is paused by Ctrl-C there.

    Example: chorale campaign pause quickstart
    """
    cancel_command(name, address)


@campaign_app.command("cancel")
def cancel_command(name: CampaignName, address: Address = None) -> None:
    """End a launch that lives in a Ray cluster or in a job of Slurm; trials that finished are kept.

    Example: chorale campaign cancel quickstart
    """
    if stop_job(job_name(name), address):
        return
    from chorale.tuner.cli.tune_launch import watch_launch  # noqa: PLC0415 - Ray and Optuna are optional

    watch_launch(None, name, address, as_json=False)


@campaign_app.command("resume")
def resume_command(name: CampaignName, address: Address = None, as_json: AsJson = False) -> None:
    """Go on with the newest launch of a campaign in this process, by the campaign that its journal has.

    Example: chorale campaign resume quickstart
    """
    from chorale.tuner.cli.tune_launch import run_launch, show  # noqa: PLC0415 - Ray and Optuna are optional

    campaign = launched_campaign(Home.from_environment(), name)
    show(run_launch(campaign, load_topology(campaign.topology), True, address), as_json)


@campaign_app.command("check")
def check_command(name: CampaignName, launch: LaunchNumber = None) -> Result:
    """Say whether the journal of a launch is whole: exit 0 if it is, 1 if not. Changes nothing.

    Every line of the journal has a checksum.

    Example: chorale campaign check quickstart
    """
    folder = launch_folder(Home.from_environment(), name, launch)
    facts = launch_health(folder)
    whole = f"{folder}: {facts['trials']} trials, the journal is whole"
    document = {"campaign": name, **facts}
    if facts["ok"]:
        return Result(document, whole)
    way_out = f"repair them with `chorale campaign repair {name}`"
    failure = CheckFailed("the journal is damaged: {}", facts["problems"][0], way_out)
    return Result(document, *facts["problems"], failure=failure)


@campaign_app.command("repair")
def repair_command(name: CampaignName, launch: LaunchNumber = None) -> Result:
    """Repair the journal of a launch: damaged lines are lost, and nothing else.

    A copy of it stays beside it. `chorale tune --resume` gives Optuna and MLflow what they lack.

    Example: chorale campaign repair quickstart
    """
    folder = launch_folder(Home.from_environment(), name, launch)
    before, done, after = launch_health(folder), repair_launch(folder), launch_health(folder)
    document: dict[str, Any] = {"campaign": name, "before": before, "done": done, "after": after}
    failure = None
    if not after["ok"]:
        failure = CheckFailed("the launch is still damaged after the repair: {}", after["problems"][0], "report this")
    return Result(document, *done, failure=failure)


def ui(
    host: str = ("127.0.0.1"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000,
) -> None:
    """Show campaigns, trials and registered schedules in the browser until interrupted.

    The browser asks for a user and a password: `chorale`, and what the file `ui-password` of the data folder has.

    Args:
        host: Address to listen on; 0.0.0.0 is every one of this machine.
        port: Port to listen on.

    Example: chorale ui --port 5001
    """
    home = Home.from_environment()
    uri = home.mlflow_uri
    if uri.startswith(("http://", "https://")):
        raise InvalidInput("`chorale ui` shows a database, not the server {}", uri, "open its address in the browser")
    from chorale.tuner.tracking.mlflow_pages import USER, password_file, serve_pages  # noqa: PLC0415 - MLflow is optional

    secret = password_file(home)
    address = f"http://{host}:{port}/#/experiments?workflowType=machine_learning"
    notice(f"{redacted(uri)} at {address} (ctrl-C ends)")
    notice(f"user {USER}, password in {secret}")
    if not is_loopback(host):
        people.print("warning: others can reach it, and HTTP hides no password: use it in networks that you trust")
    serve_pages(home, host, port)
