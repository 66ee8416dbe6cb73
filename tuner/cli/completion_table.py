"""Makes the table that shells complete from: `python -m chorale.tuner.cli.completion_table` writes it anew."""

from __future__ import annotations

import json
from typing import Any

from typer.core import TyperCommand

from chorale.synth.topology.grammar import FILE_PREFIX
from chorale.synth.topology.spec import FAMILIES
from chorale.tuner.cli.choices import CHOICES, METHODS, campaign_name
from chorale.tuner.cli.completion import CAMPAIGNS, TABLE
from chorale.tuner.cli.main import command_line


def completion_table() -> dict[str, Any]:
    """Return commands, options and their values, as the command line declares them."""
    return _command(command_line())


def table_text() -> str:
    """Return the table as its file has it."""
    return json.dumps(completion_table(), indent=0) + "\n"


def _command(command: Any) -> dict[str, Any]:
    options = [_option(item) for item in command.params if item.param_type_name == "option"]
    text = {"help": _first_sentence(command.help), "text": command.help or "", "usage": _usage(command)}
    table: dict[str, Any] = text | {"options": options}
    if hasattr(command, "commands"):
        return table | {"commands": {name: _command(item) for name, item in command.commands.items()}}
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    return table | {"arguments": [_argument(item) for item in arguments]}


def _argument(argument: Any) -> dict[str, Any]:
    name = (argument.metavar or argument.name.upper()).removesuffix("...")
    facts = {"name": name, "text": argument.help or "", "many": argument.nargs == -1}
    return {"required": argument.required, "values": _values(argument), **facts, "row": _row(argument)}


def _option(option: Any) -> dict[str, Any]:
    names = [*option.opts, *option.secondary_opts]
    return {
        "names": names,
        "help": _first_sentence(option.help),
        "text": option.help or "",
        "metavar": "" if option.is_flag else (option.metavar or "VALUE"),
        "value": not option.is_flag,
        "values": None if option.is_flag else _values(option),
        "row": _row(option),
    }


def _usage(command: Any) -> list[str]:
    return list(command.collect_usage_pieces(_context(command)))


def _row(parameter: Any) -> tuple[str, str] | None:
    """Return what help shows of a parameter, and says of it; None for one that is hidden."""
    row: tuple[str, str] | None = parameter.get_help_record(_context(TyperCommand("chorale", params=[parameter])))
    return row


def _context(command: Any) -> Any:
    return command.make_context(command.name or "chorale", [], resilient_parsing=True)


def _values(parameter: Any) -> list[str] | str | None:
    """Return what a parameter takes: names, the sign for campaigns, or None for anything, such as files."""
    reader = getattr(parameter.type, "func", None)
    if reader is campaign_name:
        return CAMPAIGNS
    for known, (_, names) in CHOICES.items():
        if reader is known:
            return list(names)
    label = (parameter.metavar or parameter.name).upper()
    if label in ("METHOD", "FILE|METHOD"):
        return list(METHODS)
    if label in ("SPEC", "TOPOLOGY"):
        return [*sorted(entry.example for entry in FAMILIES.values()), FILE_PREFIX]
    return None


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")


if __name__ == "__main__":
    TABLE.write_text(table_text())
