"""Removes colour codes and the labels that logs put before output lines: timestamps, ranks, hosts, quotation marks."""

import re

from chorale.synth.errors import InvalidInput

_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\n]*\x07|\r(?=\n)|\x00|^\s*```\w*[ \t]*$", re.MULTILINE)
_TIME = re.compile(
    r"^[\[(]?(?:\d{4}-\d\d-\d\d[T _])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?"
    r"(?:[ \t]+std(?:out|err) [FP](?= ))?[ \t]?",
    re.MULTILINE,
)
_LEAST_LINES = 3
"""Minimum number of lines with the same label. With fewer, text before a table could be mistaken for a label."""
_MOST_LABELS = 256


def plain_text(text: str) -> str:
    """Return `text` without colour codes, carriage returns and code fences."""
    return _NOISE.sub("", text).replace("\r", "\n")


def labelled_parts(text: str, anchor: re.Pattern[str]) -> list[str]:
    """Split a log into the output of each source, without line labels. Returns [`text`] if there are no labels.

    anchor: pattern at the start of a line in the wanted output; text before a match is a label. Lines without a label
            belong to all parts.

    >>> labelled_parts("one: # size\\none: 8\\none: 16\\ntwo: # size\\ntwo: 9\\ntwo: 18", re.compile("# size"))
    ['# size\\n8\\n16', '# size\\n9\\n18']
    """
    text = plain_text(text)
    lines = text.split("\n")
    begins = [line[: match.start()] for line in lines if (match := anchor.search(line)) is not None]
    if any(_TIME.match(begin) for begin in begins):
        lines = _TIME.sub("", text).split("\n")
        begins = [line[: match.start()] for line in lines if (match := anchor.search(line)) is not None]
    labels = [label for label in dict.fromkeys(begin.strip() for begin in begins) if label]
    if len(labels) > _MOST_LABELS:
        value, way_out = f"{len(labels)} labels of lines", "save what one host or rank printed"
        raise InvalidInput(f"a log must be of at most {_MOST_LABELS} hosts or ranks", value, way_out)
    labels = [label for label in labels if sum(line.lstrip().startswith(label) for line in lines) >= _LEAST_LINES]
    if not labels:
        return ["\n".join(lines)]
    parts: dict[str, list[str]] = {label: [] for label in labels}
    for line in lines:
        fitting = [label for label in labels if line.lstrip().startswith(label)]
        label = max(fitting, key=len, default=None)  # one label may be a prefix of another
        for wanted, part in parts.items():
            if label in (None, wanted):
                plain = line if label is None else line.lstrip()[len(label) :].removeprefix(" ")
                # Some launchers put `[0]` before each piece of output that a rank writes, even within a line
                part.append(plain.replace(label, " ") if label and label[0] == "[" and label[-1] == "]" else plain)
    return ["\n".join(part) for part in parts.values()]
