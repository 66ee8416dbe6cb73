"""Checks program text against the syntax rules of MSCCL's scanner that are stricter than XML."""

import re
from collections.abc import Iterator

from chorale.synth.programs.program import ProgramViolation

MAX_ATTRIBUTES = 16
LONGEST_VALUE = 255
LONGEST_FIRST_WORD = 250  # characters; the scanner treats the first word of a comment as a name

_TAG = re.compile(r"<!--.*?-->|<(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.DOTALL)
_STRICT_TAG = re.compile(r'</\w+>|<\w+(?: (?:\w+="[^"\r\n]*")?)*/?>')
_USUAL_TAG = re.compile(r'</\w+>|<\w+(?: \w+="[^"&\r\n]{0,255}"){0,16}/?>')  # a tag that breaks no rule
_VALUE = re.compile(r'"([^"]*)"')
_FIRST_WORD = re.compile(r"<!--([^ >/\r\n]*)")


def text_findings(text: str) -> tuple[ProgramViolation, ...]:
    """Return one finding for each scanner rule that `text` (well-formed XML) breaks. O(characters)."""
    found: dict[str, ProgramViolation] = {}
    for message, offset in _faults(text):
        if message not in found:
            line = text.count("\n", 0, offset) + 1
            found[message] = ProgramViolation.at("text", f"line {line}: {message}")
    return tuple(found.values())


def tags_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the position and text of each tag and comment in `text`. O(characters)."""
    for match in _TAG.finditer(text):
        yield match.start(), match.group()


def _faults(text: str) -> Iterator[tuple[str, int]]:
    if text.startswith("\ufeff"):
        yield "the file must begin without a byte order mark", 0
    end = 0
    for start, tag in tags_of(text):
        if text[end:start].strip(" \r\n\ufeff"):
            yield "only blanks and line ends may stand between elements", end
        end = start + len(tag)
        for message in _tag_faults(tag):
            yield message, start


def _tag_faults(tag: str) -> Iterator[str]:
    if _USUAL_TAG.fullmatch(tag):
        return
    if tag.startswith("<!--"):
        word = _FIRST_WORD.match(tag)
        if word is not None and "=" in word[1]:
            yield "the first word of a comment must not contain ="
        if word is not None and len(word[1]) > LONGEST_FIRST_WORD:
            yield f"the first word of a comment must have at most {LONGEST_FIRST_WORD} characters"
        return
    if tag.startswith("<?"):
        yield "there must be no declaration"
    elif not _STRICT_TAG.fullmatch(tag):
        yield 'attributes must be written as name="value" with spaces before each'
    values = _VALUE.findall(tag)
    if _VALUE.sub("", tag).count(" ") > MAX_ATTRIBUTES:
        yield f"an element must have at most {MAX_ATTRIBUTES} attributes, where each further space counts as one"
    if any(len(value) > LONGEST_VALUE for value in values):
        yield f"a value must have at most {LONGEST_VALUE} characters"
    if any("&" in value for value in values):
        yield "values must hold no entities"
