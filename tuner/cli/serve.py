"""`chorale serve`: the HTTP service and its page."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from chorale.tuner.cli.output import notice, people
from chorale.tuner.cli.token import print_entry
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import is_loopback, load_access, local_token
from chorale.tuner.service.jobs.limits import JobLimits
from chorale.tuner.service.settings import load_settings

GIB = 2**30


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a token file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8600,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Tokens that may call, see `chorale token`; default: those of the data folder."
        ),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Runners by name of a profile; default: service/settings.yaml of the data folder."
        ),
    ] = None,
    make_token: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Print a new token and its entry for a token file that is elsewhere, and exit."
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to compute on; default: RAY_ADDRESS, or one on this machine.")
    ] = None,
    max_nodes: Annotated[int, typer.Option(min=2, help="Largest network that a job may have.")] = 16_384,
    max_links: Annotated[int, typer.Option(min=2, help="Most links that a network may have.")] = 2**21,
    max_memory_gib: Annotated[int, typer.Option(min=1, help="Most memory that a job may need, by its estimate.")] = 8,
    max_job_s: Annotated[int, typer.Option(min=1, help="Seconds after which a job is stopped.")] = 3600,
    max_campaign_minutes: Annotated[int, typer.Option(min=1, help="Longest search of a campaign.")] = 1440,
) -> None:
    """Serve synthesis, bounds, topologies and campaigns over HTTP, with a web page.

    Every request needs a token, on loopback too: the first start makes one for this machine, in
    $CHORALE_HOME/service/local-token (mode 0600), and prints a link to the page with it. `chorale token` makes others,
    with a role: reader, planner, operator or administrator. Runners that start processes are those of the settings.

    Who may do what, over which port and file: docs/operations/threat-model.md.

    Jobs, results and the audit log are kept under $CHORALE_HOME/service: what was queued or running when the service
    stopped goes on at its next start. The API is described at /openapi.json.

    Example: chorale serve --port 8600
    """
    if make_token is not None:
        print_entry(make_token)
        return
    from chorale.runners.ray.serve import serve_application  # noqa: PLC0415 - Ray is optional
    from chorale.tuner.service.http.application import ServiceSettings  # noqa: PLC0415 - as above

    home = Home.from_environment()
    home.create(home.service)
    load_access(tokens, host, home, time.time)  # an invalid file is refused here rather than in the replica
    load_settings(settings, home)
    limits = JobLimits(
        max_nodes, max_memory_gib * GIB, max_links, job_s=max_job_s, campaign_minutes=max_campaign_minutes
    )
    service = ServiceSettings(home.root, host, tokens, settings, limits)

    serve_application(service.build, host, port, address, lambda: _say_where(host, port, home))


def _say_where(host: str, port: int, home: Home) -> None:
    people.print(f"serving on http://{host}:{port}")
    if is_loopback(host):
        link = f"http://{host}:{port}/#token={local_token(home)}"
        notice(f"the page, for you alone: {link}")
