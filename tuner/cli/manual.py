"""Write manual pages for all commands, and completion scripts: `python -m chorale.tuner.cli.manual FOLDER`."""

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer
from typer._completion_shared import get_completion_script

from chorale.tuner.cli.main import command_line

COMPLETIONS = {
    "bash": "share/bash-completion/completions/chorale",
    "zsh": "share/zsh/site-functions/_chorale",
    "fish": "share/fish/vendor_completions.d/chorale.fish",
}
"""Shell -> folder, below the installation prefix, in which it looks for completions."""
_EXIT = (
    "0: done. 1: the thing asked about is false. 2: wrong usage or bad input. 3: something outside is missing.",
    "130: interrupted, state kept.",
)


def shared_files(release: str) -> dict[str, str]:
    """Return the files to install, by path below the prefix: completions, and a manual page for each command."""
    files = {
        path: get_completion_script(prog_name="chorale", complete_var="_CHORALE_COMPLETE", shell=shell) + "\n"
        for shell, path in COMPLETIONS.items()
    }
    top = command_line()
    names = [f"chorale-{name}" for name in top.commands]
    files["share/man/man1/chorale.1"] = _page("chorale", top, release, names)
    for name, command in top.commands.items():
        files[f"share/man/man1/chorale-{name}.1"] = _page(f"chorale {name}", command, release, ["chorale"])
    return files


def _page(words: str, command: Any, release: str, others: list[str]) -> str:
    title = _text(words.replace(" ", "-"))
    context = typer.Context(command, info_name=words)
    summary = _text((command.help or "").split("\n\n")[0].rstrip("."))
    lines = [f'.TH "{words.replace(" ", "-").upper()}" "1" "" "chorale {release}" "Chorale"', ".SH NAME"]
    lines += [f"{title} \\- {summary}", ".SH SYNOPSIS", *_described(command, context, ".SH", words)]
    for name, inner in getattr(command, "commands", {}).items():
        inside = typer.Context(inner, info_name=f"{words} {name}")
        heading = ".SS" if words != "chorale" else None
        lines += [f'.SH "{_text(f"{words} {name}".upper())}"', *_described(inner, inside, heading, f"{words} {name}")]
    see = ", ".join(f"\\fB{_text(name)}\\fR(1)" for name in others)
    return "\n".join([*lines, ".SH EXIT STATUS", *_EXIT, ".SH SEE ALSO", see, ""])


def _described(command: Any, context: Any, heading: str | None, words: str) -> Iterator[str]:
    yield f"\\fB{_text(words)}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}"
    yield f"{heading} DESCRIPTION" if heading == ".SH" else ".PP"
    for number, paragraph in enumerate((command.help or "").split("\n\n")):
        yield from [".PP"] * (number > 0)
        yield _text(paragraph)
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        parameters = [item for item in command.params if item.param_type_name == kind]
        if heading is not None and parameters:
            yield f"{heading} {title}"
            for parameter in parameters:
                yield from (".TP", _names(parameter), _text(parameter.help or "") or "\\&")


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"\\fI{_text(parameter.human_readable_name)}\\fR"
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in [*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} \\fI{_text(parameter.metavar or 'VALUE')}\\fR"


def _text(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    for name, content in shared_files(version("chorale-collectives") if len(sys.argv) < 3 else sys.argv[2]).items():
        file = Path(sys.argv[1], name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
