"""`chorale ui`: MLflow's web pages over the default store."""

from __future__ import annotations

from typing import Annotated

import typer

from chorale.synth.errors import InvalidInput
from chorale.synth.redaction import redacted
from chorale.tuner.cli.output import notice, people
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import is_loopback


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
    from chorale.tuner.tracking.mlflow_pages import USER, password_file, serve_pages  # noqa: PLC0415 - MLflow is optional

    secret = password_file(home)
    address = f"http://{host}:{port}/#/experiments?workflowType=machine_learning"
    notice(f"{redacted(uri)} at {address} (ctrl-C ends)")
    notice(f"user {USER}, password in {secret}")
    if not is_loopback(host):
        people.print("warning: others can reach it, and HTTP hides no password: use it in networks that you trust")
    serve_pages(home, host, port)
