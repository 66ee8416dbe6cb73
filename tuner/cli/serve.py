"""Defines `chorale serve` (the HTTP service with its web page) and `token` (tokens for calling it)."""

import re
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from chorale.synth.errors import InvalidInput, name_among
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import named, notice, people
from chorale.tuner.config.values import is_loopback
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import Columns, Result, long_line, rows_table
from chorale.tuner.service import access
from chorale.tuner.service.access import load_settings
from chorale.tuner.service.jobs.job_specs import JobLimits

token_app = CommandLine(
    help="Create, list and revoke tokens of the HTTP service; this takes effect immediately.", no_args_is_help=True
)

DEFAULT_DAYS = 90
ROLES = get_args(access.RoleName)
File = Annotated[
    Path | None, typer.Option("--tokens", metavar="FILE", help="Token file; default: that of the data folder.")
]


@token_app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    role: Annotated[
        str, named(ROLES, lambda text: name_among("role", text, ROLES), "What the token may do")
    ] = "planner",
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.001, max=36500, help=f"Days until it expires; default: {DEFAULT_DAYS}."),
    ] = None,
    forever: bool = False,
    jobs: Annotated[int, typer.Option(min=1, max=100000)] = 20,
    requests_per_minute: Annotated[int, typer.Option(min=1, max=10**6)] = 600,
    tokens: File = None,
) -> Result:
    """Create a token and print it; only its SHA-256 is stored.

    A reader sees registered schedules, and results whose key it knows. A planner also designs schedules and runs
    simulated campaigns. An operator also runs campaigns with the runners in the settings file. An administrator can
    also see and stop the jobs and campaigns of all users.

    Args:
        name: Owner of the token, as shown in jobs and in the audit log.
        forever: Create a token that never expires.
        jobs: Maximum number of unfinished jobs at a time.
        requests_per_minute: Maximum number of requests per minute.

    Example: chorale token create alice --role operator --days 30
    """
    if not re.fullmatch(access.NAME_PATTERN, name) or name == "local":
        rule = "{} cannot be the name of a token"
        raise InvalidInput(rule, name, "use letters, digits, `_`, `.` and `-`, but not `local`")
    if days is not None and forever:
        raise InvalidInput("--days and --forever cannot be combined", "", "leave out one of them")
    end = datetime.fromtimestamp(int(time.time()), UTC) + timedelta(days=DEFAULT_DAYS if days is None else days)
    token, digest = access.make_token()
    fields: dict[str, Any] = {"role": role, "expires": None if forever else end, "jobs": jobs}
    entry = access.TokenEntry(name=name, sha256=digest, requests_per_minute=requests_per_minute, **fields)
    file = _file(tokens)

    def added(entries: list[access.TokenEntry]) -> list[access.TokenEntry]:
        if any(other.name == name for other in entries):
            rule = "there is already a token named {}"
            raise InvalidInput(rule, name, f"choose another, or first `chorale token revoke {name}`")
        return [*entries, entry]

    access.change_tokens(file, added)
    people.print("Give this token to its owner; it is not stored anywhere:", highlight=False)
    return Result({"token": token, **_facts(entry), "file": str(file)}, long_line(token))


@token_app.command("list")
def list_(tokens: File = None) -> Result:
    """List tokens by name, with role and expiry date.

    Example: chorale token list
    """
    file = _file(tokens)
    rows = [_facts(entry) for entry in (access.read_tokens(file) if file.exists() else [])]
    columns: Columns = {
        "name": "name",
        "role": "role",
        "expires": lambda row: row["expires"] or "never",
        "jobs": "jobs",
        "requests a minute": "requests_per_minute",
        "state": lambda row: "expired" if row["expired"] else "valid",
    }
    shown = rows_table(rows, columns) if rows else "no tokens yet: `chorale token create NAME`"
    return Result({"file": str(file), "tokens": rows}, shown)


@token_app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(metavar="NAME")], tokens: File = None) -> Result:
    """Revoke a token; its jobs and campaigns stay.

    Args:
        name: Name of the token.

    Example: chorale token revoke alice
    """
    file = _file(tokens)

    def without(entries: list[access.TokenEntry]) -> list[access.TokenEntry]:
        if all(entry.name != name for entry in entries):
            raise InvalidInput("there is no token named {}", name, "see `chorale token list`")
        return [entry for entry in entries if entry.name != name]

    access.change_tokens(file, without)
    return Result({"revoked": name, "file": str(file)}, f"{name} is revoked")


def _file(tokens: Path | None) -> Path:
    return access.token_file(Home.from_environment()) if tokens is None else tokens


def _facts(entry: access.TokenEntry) -> dict[str, Any]:
    """Return the fields of a token's entry that may be shown: all except the token's hash."""
    facts = entry.model_dump(mode="json", exclude={"sha256"})
    return facts | {"expired": entry.expires is not None and entry.expires.timestamp() <= time.time()}


def serve(
    *,
    host: str = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8600,
    tokens: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    settings: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    address: str | None = None,
    limits: JobLimits,
) -> None:
    """Serve synthesis, bounds, topologies and campaigns over HTTP, with a web page.

    Every request needs a token, on loopback too. The first start creates one for this machine in
    $CHORALE_HOME/service/local-token (mode 0600), and prints a link to the page that contains it. `chorale token`
    creates others, with a role: reader, planner, operator or administrator. Only the runners of the settings file can
    start processes.

    docs/operations/threat-model.md says who may do what, over which ports and files.

    Jobs, results and the audit log are stored under $CHORALE_HOME/service. Jobs that were queued or running when the
    service stopped continue at its next start. The API is described at /openapi.json.

    Args:
        host: Address to listen on; addresses other than loopback need a token file.
        port: Port to listen on.
        tokens: Token file, see `chorale token`; default: that of the data folder.
        settings: File with a runner for each profile; default: service/settings.yaml of the data folder.
        address: Ray cluster to compute on; default: RAY_ADDRESS, or one on this machine.

    Example: chorale serve --port 8600
    """
    home = Home.from_environment()
    home.create(home.service)
    access.load_access(tokens, host, home, time.time)  # refuse an invalid file before the cluster starts
    load_settings(settings, home)
    from chorale.runners.ray.serve import serve_application  # noqa: PLC0415 - Ray is optional
    from chorale.tuner.service.http.application import build_service  # noqa: PLC0415 - as above

    build = partial(build_service, home.root, host, tokens, settings, limits)

    def say_where() -> None:
        people.print(f"serving on http://{host}:{port}")
        if is_loopback(host):
            notice(f"web page, do not share this address: http://{host}:{port}/#token={access.local_token(home)}")

    serve_application(build, host, port, address, say_where)
