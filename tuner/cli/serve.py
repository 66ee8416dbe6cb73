"""`chorale serve`: the HTTP service and its page."""

from __future__ import annotations

import re
from typing import Annotated

import typer
import yaml

from chorale.runners.ray.serve import serve_application
from chorale.synth.errors import InvalidInput
from chorale.tuner.cli.output import people, results
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import load_access
from chorale.tuner.service.access import make_token as new_token
from chorale.tuner.service.jobs.limits import JobLimits

GIB = 2**30


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("serve")(serve)


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need --tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8600,
    tokens: Annotated[
        str | None, typer.Option(metavar="FILE", help="YAML file of tokens: who may call, with which quotas.")
    ] = None,
    make_token: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print a new token and its entry for the token file, and exit.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to compute on; default: RAY_ADDRESS, or one on this machine.")
    ] = None,
    max_nodes: Annotated[int, typer.Option(min=2, help="Largest network that a job may have.")] = 16_384,
    max_memory_gib: Annotated[int, typer.Option(min=1, help="Most memory that a job may need, by its estimate.")] = 8,
) -> None:
    """Serve synthesis, bounds, topologies and campaigns over HTTP, with a page to watch and compare them.

    Who may do what, over which port and file: docs/operations/threat-model.md.

    Jobs, results and the audit log are kept under $CHORALE_HOME/service: what was queued or running when the service
    stopped goes on at its next start. The API is described at /openapi.json.

    Example: chorale serve --port 8600
    """
    if make_token is not None:
        _print_token(make_token)
        return
    from chorale.tuner.service.http.application import ServiceSettings  # noqa: PLC0415 - seconds, for what the service computes

    load_access(tokens, host)  # an invalid file is refused here rather than in the replica
    home = Home.from_environment()
    limits = JobLimits(max_nodes, max_memory_gib * GIB)
    home.create(home.service)
    settings = ServiceSettings(home.root, host, tokens, limits)
    serve_application(settings.build, host, port, address, lambda: people.print(f"serving on http://{host}:{port}"))


def _print_token(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise InvalidInput("a name of a token must have letters, digits, `_`, `.` and `-`", name, "choose another name")
    token, digest = new_token()
    results.print("Give this token to its owner; it is not kept anywhere:", highlight=False)
    typer.echo(token)
    results.print("and add this entry to the list `tokens` of the token file:", highlight=False)
    typer.echo(yaml.safe_dump([{"name": name, "sha256": digest, "jobs": 20, "requests_per_minute": 600}]), nl=False)
