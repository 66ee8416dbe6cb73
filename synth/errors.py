"""Defines the error classes, and finds the name that a user means.

Each message says what is wrong with a value and what to do about it. Common spellings of names are accepted; unknown
names are refused with suggestions.
"""

import re
from collections.abc import Iterable, Mapping

from chorale.synth.redaction import redacted


class ChoraleError(Exception):
    """Base class of all errors that Chorale raises intentionally.

    Args:
        rule: what is wrong. `{}` is replaced by the value: "the folder {} does not exist". Without `{}`, the value
            follows the text: "--k must be at least 1" becomes "--k must be at least 1, got 0".
        value: the invalid value; empty if the rule needs none.
        way_out: what to do about it.

    The message is one line, so that a command can print it as it is. Passwords in addresses are replaced by `***`.
    """

    exit_code = 2

    def __init__(self, rule: str, value: object, way_out: str) -> None:
        # Exceptions raised by libraries may contain secrets too.
        text, rule, way_out = str(value), redacted(rule), redacted(way_out)
        value = value if redacted(text) == text else redacted(text)
        super().__init__(rule, value, way_out)
        self.rule = rule
        self.value = value
        self.way_out = way_out

    @property
    def problem(self) -> str:
        """The part of the message that says which value is wrong and why, in one line. `way_out` says what to do."""
        is_of_user = isinstance(self, InvalidInput) and not isinstance(self.value, BaseException)
        value = _one_line(self.value, _VALUE_CHARACTERS if is_of_user else _CAUSE_CHARACTERS)
        if "{}" in self.rule:
            text = self.rule.replace("{}", value, 1)
        else:
            text = f"{self.rule}, got {value}" if value else self.rule
        return " ".join(text.splitlines())  # the rule may contain a key from a file, with line breaks

    def __str__(self) -> str:
        return printable(f"{self.problem}; {self.way_out}")


def printable(text: str) -> str:
    """Return `text` with control characters and characters that change the text direction replaced by a placeholder.

    This is necessary because names may come from untrusted files. Line breaks and tabs are kept.
    """
    return re.sub(_UNPRINTABLE, "\N{REPLACEMENT CHARACTER}", text)


class InvalidInput(ChoraleError):
    """Raised if a spec, file, parameter or schedule is invalid (exit code 2)."""


class UnknownName(InvalidInput):
    """Raised for an unknown name. `kind` says what was looked up, for example `method`."""

    def __init__(self, kind: str, value: object, way_out: str) -> None:
        super().__init__(kind, value, way_out)
        self.rule = f"unknown {self.rule}"

    @property
    def problem(self) -> str:
        return " ".join(f"{self.rule} {_one_line(str(self.value))!r}".split())


class CheckFailed(ChoraleError):
    """Raised if a check fails, for example if a schedule is found to be wrong (exit code 1)."""

    exit_code = 1


class Unavailable(ChoraleError):
    """Raised if something outside Chorale, such as a library or server, is missing or unreachable (exit code 3)."""

    exit_code = 3


_VALUE_CHARACTERS, _CAUSE_CHARACTERS = 200, 1500
# Compiled on first use, because jobs import this module at every start and rarely show an error.
_UNPRINTABLE = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
_COLOURS = "\x1b\\[[0-9;]*m"
_RAISED = r"^[ \t]*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Timeout|NotFound)\b(?::.*)?)$"
_BACKGROUND = r"\s*\(Background on this error at: \S+\)"


def fault_in(error: BaseException) -> str:
    """Describe an error that occurred while reading a document. For a KeyError, the description is "no key 'name'"."""
    return f"no key {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__


def cause_in(text: str) -> str:
    """Return the cause in a library's error text: the last error of a traceback or, without one, the complete text."""
    text = re.sub(_BACKGROUND, "", re.sub(_COLOURS, "", text))
    trace = re.search(r"^\s*File \".*\", line \d+", text, re.MULTILINE)
    raised = [
        match
        for match in re.finditer(_RAISED, text, re.MULTILINE)
        if trace is not None and match.start() > trace.start()
    ]
    return text[raised[-1].start(1) :] if raised else text


def _one_line(value: object, limit: int = _VALUE_CHARACTERS) -> str:
    text = " ".join(cause_in(str(value)).split())
    if isinstance(value, BaseException):
        text = text or type(value).__name__
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {text[5 - limit // 2 :]}"  # keep the end too, because it may name the cause


def plain(name: str) -> str:
    """Return `name` in lower case without hyphens, underscores or blanks, for example `allreduce` for `All-Reduce`."""
    return "".join(character for character in name.lower() if character not in "-_ ")


def name_among(kind: str, text: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the element of `names` that a user means by `text`. Raises UnknownName, with suggestions, if none fits.

    aliases: maps alternative names, in the form that `plain` returns, to elements of `names`

    >>> name_among("collective", "AllReduce", ["allgather", "allreduce"])
    'allreduce'
    """
    text, choices = str(text), tuple(map(str, names))
    if text in choices:
        return text
    known = {**(aliases or {}), **{plain(name): name for name in choices}}
    name = known.get(plain(text))
    if name is None:
        raise unknown_name(kind, text, choices)
    return name


def unknown_name(kind: str, text: str, names: Iterable[str], all_names: str | None = None) -> UnknownName:
    """Return the error for a name that is not in `names`, with suggestions.

    all_names: text for the error message that says where to find all names; if None, the message lists them
    """
    import difflib  # noqa: PLC0415 - only needed for errors

    choices = tuple(map(str, names))
    by_plain = {plain(name): name for name in reversed(choices)}
    close = [by_plain[name] for name in difflib.get_close_matches(plain(text), by_plain, n=2)]
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return UnknownName(kind, text, meant + (all_names or f"choose from {', '.join(choices)}"))
