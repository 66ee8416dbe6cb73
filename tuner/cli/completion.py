"""What the shell completes, from a table beside this file: no command, and no library, is imported for it.

The shells call `chorale` with the variables of the scripts that `chorale --show-completion` prints.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "_CHORALE_COMPLETE"
TABLE = Path(__file__).with_name("command_line.json")
CAMPAIGNS = "campaigns"
"""Stands in the table for names that are looked up: those of the campaigns in the data folder."""

Offer = tuple[str, str]
"""A word, and what it is for."""


def completion_output(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return what the shell that set `environment` reads, and the exit code."""
    shell = environment[VARIABLE].removeprefix("complete_")
    words, incomplete = _words(shell, environment)
    offers = list(offered(json.loads(TABLE.read_text()), words, incomplete))
    if shell == "zsh":
        listed = "\n".join(_zsh(offer) for offer in offers)
        return (f"_arguments '*: :(({listed}))'" if offers else "_files"), 0
    if shell == "fish" and environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if offers else 1
    if shell == "fish":
        return "\n".join(f"{word}\t{text}" if text else word for word, text in offers), 0
    if shell in ("powershell", "pwsh"):
        return "\n".join(f"{word}:::{text or ' '}" for word, text in offers), 0
    return "\n".join(word for word, _ in offers), 0


def offered(table: Mapping[str, Any], words: Sequence[str], incomplete: str) -> Iterator[Offer]:
    """Yield what may stand for `incomplete` after `words`, which come after the name of the program."""
    level, top, position, option = table, table, 0, None
    for word in words:
        if option is not None:
            option = None
        elif word.startswith("-"):
            described = _option(level, word) or _option(top, word)
            option = described if described is not None and described["value"] and "=" not in word else None
        elif "commands" in level:
            level = level["commands"].get(word, {})
        else:
            position += 1
    if option is not None:
        yield from _values(option["values"], incomplete)
    elif incomplete.startswith("-"):
        yield from _options(level, incomplete)
        if level is not top:
            yield from _options(top, incomplete)
    elif "commands" in level:
        yield from ((name, item["help"]) for name, item in level["commands"].items() if name.startswith(incomplete))
    else:
        arguments = level.get("arguments", [])
        if arguments:
            yield from _values(_at(arguments, position), incomplete)


def _at(arguments: Sequence[Mapping[str, Any]], position: int) -> Any:
    """Return the values of the argument at `position`; one that may be left out offers those of the next, too."""
    chosen = arguments[min(position, len(arguments) - 1)]
    if position < len(arguments) - 1 and not chosen["required"] and isinstance(chosen["values"], list):
        return [*chosen["values"], *(arguments[position + 1]["values"] or [])]
    return chosen["values"]


def _option(level: Mapping[str, Any], word: str) -> Mapping[str, Any] | None:
    name = word.partition("=")[0]
    return next((option for option in level.get("options", []) if name in option["names"]), None)


def _options(level: Mapping[str, Any], incomplete: str) -> Iterator[Offer]:
    name, equals, begun = incomplete.partition("=")
    if equals:
        option = _option(level, name)
        yield from ((f"{name}={value}", text) for value, text in _values(option["values"] if option else None, begun))
        return
    for option in level.get("options", []):
        yield from ((name, option["help"]) for name in option["names"] if name.startswith(incomplete))


def _values(values: Any, incomplete: str) -> Iterator[Offer]:
    if values == CAMPAIGNS:
        folder = Path(os.environ.get("CHORALE_HOME") or "chorale-data") / CAMPAIGNS
        values = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    yield from ((value, "") for value in values or [] if value.lower().startswith(incomplete.lower()))


def _words(shell: str, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the words before the one that is completed, and that one."""
    if shell == "bash":
        words, index = _split(environment["COMP_WORDS"]), int(environment["COMP_CWORD"])
        return words[1:index], words[index] if index < len(words) else ""
    text = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)[1:]
    if shell in ("powershell", "pwsh"):
        incomplete = environment.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return (words[:-1] if incomplete else words), incomplete
    return (words[:-1], words[-1]) if words and not text.endswith(" ") else (words, "")


def _split(text: str) -> list[str]:
    """Return the words of a line that may end within quotes."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # of an open quote: what stands after it is the last word
        words.append(lexer.token or "")
    return words


def _zsh(offer: Offer) -> str:
    word, text = (part.replace('"', '""').replace("'", "''").replace("$", "\\$").replace("`", "\\`") for part in offer)
    word, text = word.replace(":", r"\\:"), text.replace(":", r"\\:")
    return f'"{word}":"{text}"' if text else f'"{word}"'
