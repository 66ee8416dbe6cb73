"""Names and options of all commands in a file, so that completing them in a shell imports no command.

`make setup` writes it: `python -m chorale.tuner.cli.completion_index`. One that is missing, or older than the
commands, is passed over: completion then imports the command, which takes three times as long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

FOLDER = Path(__file__).parent
INDEX = FOLDER / "completion.json"
Description = dict[str, Any]
Load = Callable[[], Any]
"""Returns the command itself."""


def digest() -> str:
    """Return the SHA-256 of the modules of all commands."""
    result = hashlib.sha256()
    for file in sorted(FOLDER.glob("*.py")):
        text = file.read_bytes()
        result.update(f"{file.name} {len(text)}\n".encode() + text)
    return result.hexdigest()


def described(command: Any) -> Description:
    """Return what completion needs to know of `command`: its parameters, and the commands below it."""
    below = getattr(command, "commands", {})
    return {
        "help": command.help,
        "parameters": [_parameter(each) for each in command.params],
        "commands": {name: described(each) for name, each in below.items()},
    }


def _parameter(parameter: Any) -> Description:
    return {
        "name": parameter.name,
        "is_option": isinstance(parameter, TyperOption),
        "declarations": [parameter.name, *_flags(parameter)],
        "is_flag": getattr(parameter, "is_flag", False),
        "nargs": parameter.nargs,
        "multiple": parameter.multiple,
        "hidden": getattr(parameter, "hidden", False),
        "help": getattr(parameter, "help", None),
    }


def _flags(parameter: Any) -> list[str]:
    if not isinstance(parameter, TyperOption):
        return []
    if not parameter.secondary_opts:
        return list(parameter.opts)
    return [f"{'/'.join(pair)}" for pair in zip(parameter.opts, parameter.secondary_opts, strict=False)]


def write_index(load: Callable[[str], Any], names: list[str], file: Path = INDEX) -> None:
    """Write what completion needs to know of the commands with these names."""
    commands = {name: described(load(name)) for name in names}
    file.write_text(json.dumps({"digest": digest(), "commands": commands}), encoding="utf-8")


def indexed(name: str, load: Load, file: Path = INDEX) -> Any:
    """Return the command `name` for completion: as the index has it, `load` gives the values of its parameters; all
    of it by `load` where there is no index of these commands."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return load()
    if index["digest"] != digest() or name not in index["commands"]:
        return load()
    return _command(name, index["commands"][name], load)


def _command(name: str, description: Description, load: Load) -> Any:
    parameters = [_parameter_of(each, load) for each in description["parameters"]]
    if not description["commands"]:
        return TyperCommand(name, params=parameters, help=description["help"])
    below = {
        each: _command(each, of_it, lambda each=each: load().commands[each])  # type: ignore[misc]
        for each, of_it in description["commands"].items()
    }
    return TyperGroup(name=name, commands=below, params=parameters, help=description["help"])


class IndexedOption(TyperOption):
    """An option of the index, whose values the command itself completes."""

    load: Load

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return _completed_by(self.load(), self.name, ctx, incomplete)


class IndexedArgument(TyperArgument):
    """An argument of the index, whose values the command itself completes."""

    load: Load

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return _completed_by(self.load(), self.name, ctx, incomplete)


def _completed_by(command: Any, parameter: str | None, ctx: Any, incomplete: str) -> Any:
    return next(each for each in command.params if each.name == parameter).shell_complete(ctx, incomplete)


def _parameter_of(description: Description, load: Load) -> Any:
    attributes: Description = {"param_decls": description["declarations"], "help": description["help"]}
    attributes |= {"hidden": description["hidden"], "nargs": description["nargs"]}
    parameter: IndexedOption | IndexedArgument
    if not description["is_option"]:
        parameter = IndexedArgument(**attributes)
    elif description["is_flag"]:
        parameter = IndexedOption(**attributes, is_flag=True)
    else:
        parameter = IndexedOption(**attributes, multiple=description["multiple"])
    parameter.load = load
    return parameter


if __name__ == "__main__":
    from chorale.tuner.cli.commands import COMMANDS, load_command

    write_index(load_command, list(COMMANDS))
