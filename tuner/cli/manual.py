"""Manual pages and completion scripts, made from the table of the command line when the wheel is built.

Uses nothing but the standard library: builds run where neither typer nor anything else is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BASH = """\
# bash completion for chorale
_chorale() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
    COMPREPLY=($(_CHORALE_COMPLETE=complete_line _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null))
    # bash takes what stands before the last colon of a word for a word of its own
    local word="${line##* }"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
    fi
}
complete -o default -F _chorale chorale
"""
ZSH = """\
#compdef chorale
_chorale() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _CHORALE_COMPLETE=complete_zsh chorale)
}
_chorale "$@"
"""
FISH = """\
complete --command chorale --no-files --arguments \\
"(env _CHORALE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
_TYPER_COMPLETE_ARGS=(commandline -cp) chorale)" --condition \\
"env _CHORALE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args \\
_TYPER_COMPLETE_ARGS=(commandline -cp) chorale"
"""

COMPLETIONS: Mapping[str, str] = {
    "share/bash-completion/completions/chorale": BASH,
    "share/zsh/site-functions/_chorale": ZSH,
    "share/fish/vendor_completions.d/chorale.fish": FISH,
}
"""Where shells look, below the prefix of an installation, and what they find there."""


def shared_files(table: Mapping[str, Any], version: str) -> dict[str, str]:
    """Return every file below the prefix: completions, and a manual page of the command and of each command in it."""
    pages = {f"share/man/man1/{name}.1": text for name, text in manual_pages(table, version)}
    return {**COMPLETIONS, **pages}


def manual_pages(table: Mapping[str, Any], version: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each page: `chorale`, `chorale-synth`, …, groups with the commands in them."""
    names = [f"chorale-{name}" for name in table["commands"]]
    yield "chorale", _page("chorale", table, version, names)
    for name, command in table["commands"].items():
        yield f"chorale-{name}", _page(f"chorale {name}", command, version, ["chorale"])


def _page(words: str, command: Mapping[str, Any], version: str, others: list[str]) -> str:
    title = words.replace(" ", "-")
    lines = [f'.TH "{title.upper()}" "1" "" "chorale {version}" "Chorale"', ".SH NAME"]
    lines.append(f"{_text(title)} \\- {_text(command['help'])}")
    lines += [".SH SYNOPSIS", *_synopsis(words, command)]
    lines += [".SH DESCRIPTION", *_paragraphs(command["text"])]
    lines += _arguments(command)
    lines += _options(command)
    for name, inner in command.get("commands", {}).items():
        lines += [f'.SH "{_text(f"{words} {name}".upper())}"', *_synopsis(f"{words} {name}", inner)]
        lines += [".PP", *_paragraphs(inner["text"])]
        if words != "chorale":
            lines += _arguments(inner, ".SS")
            lines += _options(inner, ".SS")
    see = ", ".join(f"\\fB{_text(name)}\\fR(1)" for name in others)
    return "\n".join([*lines, ".SH EXIT STATUS", *_EXIT, ".SH SEE ALSO", see, ""])


_EXIT = (
    "0: done. 1: the thing asked about is false. 2: wrong usage or bad input. 3: something outside is missing.",
    "130: interrupted, state kept.",
)


def _synopsis(words: str, command: Mapping[str, Any]) -> list[str]:
    parts = ["[OPTIONS]"] if command.get("options") else []
    if "commands" in command:
        parts.append("COMMAND [ARGUMENTS]")
    for argument in command.get("arguments", ()):
        name = argument["name"] + ("..." if argument["many"] else "")
        parts.append(name if argument["required"] else f"[{name}]")
    return [f"\\fB{_text(words)}\\fR {_text(' '.join(parts))}"]


def _arguments(command: Mapping[str, Any], heading: str = ".SH") -> list[str]:
    lines: list[str] = []
    for argument in command.get("arguments", ()):
        lines += [".TP", f"\\fI{_text(argument['name'])}\\fR", _text(argument["text"]) or "\\&"]
    return [f"{heading} ARGUMENTS", *lines] if lines else []


def _options(command: Mapping[str, Any], heading: str = ".SH") -> list[str]:
    lines: list[str] = []
    for option in command.get("options", ()):
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in option["names"])
        value = f" \\fI{_text(option['metavar'])}\\fR" if option["metavar"] else ""
        lines += [".TP", names + value, _text(option["text"]) or "\\&"]
    return [f"{heading} OPTIONS", *lines] if lines else []


def _paragraphs(text: str) -> Iterator[str]:
    for index, paragraph in enumerate(text.split("\n\n")):
        if index:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Return text that roff shows as it is."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
