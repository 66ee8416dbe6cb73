"""What MSCCL's own scanner demands of a file beyond XML: rules of blanks, quotes and sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chorale.synth.lowering.violation import ProgramViolation

MAX_ATTRIBUTES = 16
LONGEST_VALUE = 255

_TAG = re.compile(r"<!--.*?-->|<(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.DOTALL)
_STRICT_TAG = re.compile(r'</\w+>|<\w+(?: \w+="[^"\r\n]*")*/?>')
_VALUE = re.compile(r'"([^"]*)"')
_FIRST_WORD_WITH_EQUALS = re.compile(r"<!--\s*[^\s=]*=")


def text_findings(text: str) -> tuple[ProgramViolation, ...]:
    """Return how `text`, which is well-formed XML, breaks the scanner's rules; one finding per rule. O(characters)."""
    found: dict[str, ProgramViolation] = {}
    for message, offset in _faults(text):
        if message not in found:
            line = text.count("\n", 0, offset) + 1
            found[message] = ProgramViolation.at("text", f"line {line}: {message}")
    return tuple(found.values())


def _faults(text: str) -> Iterator[tuple[str, int]]:
    if not text.startswith("<algo"):
        yield "the file must begin with <algo, without declaration or byte order mark", 0
    end = 0
    for match in _TAG.finditer(text):
        tag = match.group()
        if text[end : match.start()].strip(" \r\n"):
            yield "only blanks and line ends may stand between elements", end
        end = match.end()
        for message in _tag_faults(tag):
            yield message, match.start()


def _tag_faults(tag: str) -> Iterator[str]:
    if tag.startswith("<!--"):
        if _FIRST_WORD_WITH_EQUALS.match(tag):
            yield "the first word of a comment must not contain ="
        return
    if not _STRICT_TAG.fullmatch(tag):
        yield 'attributes must be written as name="value" with exactly one space before each'
    values = _VALUE.findall(tag)
    if len(values) > MAX_ATTRIBUTES:
        yield f"an element must have at most {MAX_ATTRIBUTES} attributes"
    if any(len(value) > LONGEST_VALUE for value in values):
        yield f"a value must have at most {LONGEST_VALUE} characters"
    if any("&" in value for value in values):
        yield "values must hold no entities"
