"""What `chorale COMMAND --help` prints, from the table of the command line: no command is imported for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from chorale.tuner.cli.completion import TABLE


def help_page(name: str, inside: Sequence[str]) -> TyperCommand | TyperGroup | None:
    """Return a command with the help of command `name`; None unless `inside`, what stands after it, is commands."""
    entry = json.loads(TABLE.read_text(encoding="utf-8"))["commands"][name]
    inner: Mapping[str, Any] | None = entry
    for word in inside:
        inner = inner.get("commands", {}).get(word) if inner is not None else None
    return None if inner is None else _page(name, entry)


def _page(name: str, entry: Mapping[str, Any]) -> TyperCommand | TyperGroup:
    if "commands" not in entry:
        return _CommandPage(name, entry)
    return _GroupPage(name, entry)


class _Page:
    """Writes usage and parameters as they were when the table was made."""

    entry: Mapping[str, Any]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return list(self.entry["usage"])

    def write_parameters(self, ctx: Any, formatter: Any) -> None:
        own = [option.get_help_record(ctx) for option in self.get_params(ctx)]  # type: ignore[attr-defined]
        arguments = [item["row"] for item in self.entry.get("arguments", ()) if item["row"]]
        options = [item["row"] for item in self.entry["options"] if item["row"]]
        for heading, rows in (("Arguments", arguments), ("Options", [*options, *own])):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([tuple(row) for row in rows])


class _CommandPage(_Page, TyperCommand):
    def __init__(self, name: str, entry: Mapping[str, Any]) -> None:
        super().__init__(name, help=entry["text"], rich_markup_mode=None)
        self.entry = entry

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.write_parameters(ctx, formatter)


class _GroupPage(_Page, TyperGroup):
    def __init__(self, name: str, entry: Mapping[str, Any]) -> None:
        super().__init__(name=name, help=entry["text"], rich_markup_mode=None, no_args_is_help=True)
        self.entry = entry
        for inner, described in entry["commands"].items():
            self.add_command(_page(inner, described))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.write_parameters(ctx, formatter)
        self.format_commands(ctx, formatter)
