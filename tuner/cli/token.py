"""`chorale token`: tokens of the HTTP service."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.table import Table

from chorale.synth.errors import InvalidInput
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home
from chorale.tuner.reports.tables import Result, long_line
from chorale.tuner.service.access import (
    NAME_PATTERN,
    TokenEntry,
    change_tokens,
    make_token,
    read_tokens,
    token_file,
)

token_app = CommandLine(
    help="Make, list and revoke tokens of the HTTP service; a running service follows at once.",
    no_args_is_help=True,
)

DEFAULT_DAYS = 90
File = Annotated[
    Path | None, typer.Option("--tokens", metavar="FILE", help="Token file; default: that of the data folder.")
]


class RoleName(StrEnum):
    """Roles, each of which may do what those before it may."""

    READER = "reader"
    PLANNER = "planner"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


@token_app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Owner of the token; jobs and the audit log have it.")],
    role: Annotated[RoleName, typer.Option(help="What the token may do.")] = RoleName.PLANNER,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.001, max=36500, help=f"Days until it expires; default: {DEFAULT_DAYS}."),
    ] = None,
    expires: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="When it expires, in UTC.")
    ] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Let it never expire.")] = False,
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="Unfinished jobs at a time.")] = 20,
    requests_per_minute: Annotated[int, typer.Option(min=1, max=10**6, help="Requests that it may send.")] = 600,
    tokens: File = None,
) -> Result:
    """Make a token and print it; it is kept nowhere, only its SHA-256.

    A reader sees what is registered and results whose key it knows; a planner has schedules designed and runs simulated
    campaigns; an operator also runs campaigns on the runners of the settings; an administrator sees and stops all.

    Example: chorale token create alice --role operator --days 30
    """
    _require_name(name)
    end = _end(days, expires, forever)
    token, digest = make_token()
    fields: dict[str, Any] = {"role": role.value, "expires": end, "jobs": jobs}
    entry = TokenEntry(name=name, sha256=digest, requests_per_minute=requests_per_minute, **fields)
    file = _file(tokens)

    def added(entries: list[TokenEntry]) -> list[TokenEntry]:
        if any(other.name == name for other in entries):
            rule = "a token must have a name of its own"
            raise InvalidInput(rule, name, f"choose another, or first `chorale token revoke {name}`")
        return [*entries, entry]

    change_tokens(file, added)
    people.print("Give this token to its owner; it is not kept anywhere:", highlight=False)
    return Result({"token": token, **_facts(entry), "file": str(file)}, long_line(token))


@token_app.command("list")
def list_(tokens: File = None) -> Result:
    """List tokens by name, with role and end.

    Example: chorale token list
    """
    file = _file(tokens)
    rows = [_facts(entry) for entry in (read_tokens(file) if file.exists() else [])]
    table = Table("name", "role", "expires", "jobs", "requests a minute", "state")
    for row in rows:
        end, state = row["expires"] or "never", "expired" if row["expired"] else "valid"
        table.add_row(row["name"], row["role"], end, str(row["jobs"]), str(row["requests_per_minute"]), state)
    return Result({"file": str(file), "tokens": rows}, table if rows else "no tokens yet: `chorale token create NAME`")


@token_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    tokens: File = None,
) -> Result:
    """Take a token away; its jobs and campaigns stay.

    Example: chorale token revoke alice
    """
    file = _file(tokens)

    def without(entries: list[TokenEntry]) -> list[TokenEntry]:
        if all(entry.name != name for entry in entries):
            raise InvalidInput("a token must be there to be revoked", name, "see `chorale token list`")
        return [entry for entry in entries if entry.name != name]

    change_tokens(file, without)
    return Result({"revoked": name, "file": str(file)}, f"{name} is revoked")


def print_entry(name: str) -> None:
    """Print a new token and its entry, for a token file that this command does not write."""
    _require_name(name)
    token, digest = make_token()
    people.print("Give this token to its owner; it is not kept anywhere:")
    typer.echo(token)
    people.print("and add this entry to the list `tokens` of the token file:")
    typer.echo(yaml.safe_dump([TokenEntry(name=name, sha256=digest).document()], sort_keys=False), nl=False)


def _file(tokens: Path | None) -> Path:
    return token_file(Home.from_environment()) if tokens is None else tokens


def _require_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name) or name == "local":
        rule = "a name of a token must have letters, digits, `_`, `.` and `-`, and not be `local`"
        raise InvalidInput(rule, name, "choose another name")


def _end(days: float | None, expires: datetime | None, forever: bool) -> datetime | None:
    if sum((days is not None, expires is not None, forever)) > 1:
        raise InvalidInput("a token has one end", "--days, --expires and --forever", "give one of them")
    if forever:
        return None
    now = datetime.fromtimestamp(int(time.time()), UTC)
    end = now + timedelta(days=DEFAULT_DAYS if days is None else days) if expires is None else expires
    end = end if end.tzinfo else end.replace(tzinfo=UTC)
    if end <= now:
        raise InvalidInput("a token must expire later than now", end.isoformat(), "give a later time")
    return end


def _facts(entry: TokenEntry) -> dict[str, Any]:
    """Return what may be shown of an entry: all but the hash."""
    facts = entry.model_dump(mode="json", exclude={"sha256"})
    return facts | {"expired": entry.expires is not None and entry.expires.timestamp() <= time.time()}
