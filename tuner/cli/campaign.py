"""`chorale campaign`: look after the files of campaigns."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.choices import campaign_name
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.files.home import Home

campaign_app = CommandLine(help="Check and repair the files of campaigns: journals, Optuna's and MLflow's.")
Name = Annotated[str, typer.Argument(metavar="NAME", parser=campaign_name, help="Campaign, as its file names it.")]
LaunchNumber = Annotated[int | None, typer.Option("--launch", min=1, help="Which launch; by default the newest.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.add_typer(campaign_app, name="campaign")


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


def _say(as_json: bool, line: str) -> None:
    if not as_json:
        results.print(line)
