"""`chorale ui`: MLflow's web pages over the default store, on this machine only."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home

# No job runners (they would be eight more processes) and no usage reports.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("ui")(ui)


def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Show campaigns, trials and registered schedules in the browser until interrupted.

    Example: chorale ui --port 5001
    """
    home = Home.from_environment()
    uri = home.mlflow_uri
    if uri.startswith(("http://", "https://")):
        raise InvalidInput("the pages of a database are shown here", uri, "open this address in the browser")
    home.create(home.root)
    address = f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning"
    people.print(f"{uri} at {address} (ctrl-C ends)", soft_wrap=True, highlight=False)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", uri, "--artifacts-destination", home.artifacts.as_uri()]
    finished = subprocess.run(command, env={**os.environ, **_ENVIRONMENT}, check=False)  # noqa: S603
    if finished.returncode != 0:
        way_out = "choose another --port, or look at the lines above"
        raise Unavailable("the MLflow server must keep running", f"exit code {finished.returncode}", way_out)
