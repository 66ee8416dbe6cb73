"""Errors that state the rule, the offending value and the way out."""

from __future__ import annotations

from chorale.synth.redaction import redacted


class ChoraleError(Exception):
    """Base of every error that Chorale raises on purpose.

    `rule` says what must hold, `value` what does not, `way_out` what to do about it.
    The text is one line, so that a command can print it as it is; passwords in addresses are `***` in all of it.
    """

    exit_code = 2

    def __init__(self, rule: str, value: object, way_out: str) -> None:
        rule, value, way_out = redacted(rule), _without_secrets(value), redacted(way_out)
        super().__init__(rule, value, way_out)
        self.rule = rule
        self.value = value
        self.way_out = way_out

    def __str__(self) -> str:
        text = f"{self.rule}; got {_one_line(self.value)}; {self.way_out}"
        return " ".join(text.splitlines())  # a rule may name a key of a file


class InvalidInput(ChoraleError):
    """A spec, file, parameter or schedule breaks a rule (exit code 2)."""


class UnknownName(InvalidInput):
    """A name is none of those that there are; `kind` says of what, such as `method`."""

    def __init__(self, kind: str, value: object, way_out: str) -> None:
        super().__init__(kind, value, way_out)
        self.rule = f"unknown {self.rule}"

    def __str__(self) -> str:
        value = str(self.value)
        return " ".join(f"{self.rule} {_one_line(value)!r}; {self.way_out}".split())


class CheckFailed(ChoraleError):
    """A check had a negative result, for example a schedule that does not verify (exit code 1)."""

    exit_code = 1


class Unavailable(ChoraleError):
    """Something outside Chorale is missing or cannot be reached (exit code 3)."""

    exit_code = 3


def _without_secrets(value: object) -> object:
    """Return `value`, or its text where that holds secrets; values may be errors of libraries."""
    text = str(value)
    clean = redacted(text)
    return value if clean == text else clean


def _one_line(value: object, limit: int = 200) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
