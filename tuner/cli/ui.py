"""`chorale ui`: MLflow's web pages over the default store."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.redaction import redacted
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home
from chorale.tuner.service.loopback import is_loopback


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("ui")(ui)


def ui(
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every one of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 5000,
) -> None:
    """Show campaigns, trials and registered schedules in the browser until interrupted.

    The browser asks for a user and a password: `chorale`, and what the file `ui-password` of the data folder has.

    Example: chorale ui --port 5001
    """
    home = Home.from_environment()
    uri = home.mlflow_uri
    if uri.startswith(("http://", "https://")):
        raise InvalidInput("the pages of a database are shown here", uri, "open this address in the browser")
    from chorale.tuner.tracking.mlflow_pages import USER, password_file, serve_pages  # noqa: PLC0415 - as other commands

    secret = password_file(home)
    address = f"http://{host}:{port}/#/experiments?workflowType=machine_learning"
    people.print(f"{redacted(uri)} at {address} (ctrl-C ends)", soft_wrap=True, highlight=False)
    people.print(f"user {USER}, password in {secret}", soft_wrap=True, highlight=False)
    if not is_loopback(host):
        people.print("warning: others can reach it, and HTTP hides no password: use it in networks that you trust")
    serve_pages(home, host, port)
