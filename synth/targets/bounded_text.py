"""Writes the largest size at which a program cannot hang into its text, and leaves the rest of the text as it is."""

from __future__ import annotations

import re

from chorale.synth.errors import InvalidInput
from chorale.synth.targets.lift import read_xml
from chorale.synth.targets.msccl_document import MAX_ATTRIBUTES, tags_of

_BOUND = re.compile(r'(?<= maxBytes=")[^"]*(?=")')
_END = re.compile(r" */?>\Z")


def with_max_bytes(text: bytes, max_bytes: int) -> bytes:
    """Return `text`, an XML program, with the attribute that keeps its runtime from vectors above `max_bytes`.

    Of several documents the first <algo> gets it. InvalidInput where the text is no program, or has no room for a
    further attribute. O(bytes).
    """
    document = read_xml(text)
    characters = text.decode()
    first, tag = next((at, tag) for at, tag in tags_of(characters) if re.match(r"<algo\b", tag))
    value = document.target.stated_max_bytes(max_bytes)
    changed, count = _BOUND.subn(str(value), tag, count=1)
    if count == 0:
        if tag.count('="') >= MAX_ATTRIBUTES:
            rule = f"<algo> must have fewer than {MAX_ATTRIBUTES} attributes to be given maxBytes"
            raise InvalidInput(rule, MAX_ATTRIBUTES, "remove one that no runtime reads")
        end = _END.search(tag)
        assert end is not None
        changed = f'{tag[: end.start()]} maxBytes="{value}"{end.group().strip()}'
    return (characters[:first] + changed + characters[first + len(tag) :]).encode()
