"""Damage to inputs that keeps most of their structure, so that parsers are met behind their first check."""

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

NUMBERS = (0, -1, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 10**30, 0.5, -0.0, 1e-320, 1e308)
TEXTS = ("", " ", "nan", "inf", "-1", "0", "1e999", "\x00", "\ud7ff", "é" * 50, "9" * 400, "a" * 3000, "../../x", "\n")
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, *NUMBERS, *TEXTS)
SPECS = ("ring:4", "torus:0x4", "torus:99999x99999", "line(" * 60, "ring:" + "9" * 50, "union(ring:4,ring:4)", "file:/")
RAW = (b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b"<", b"&", b'"', b"{", b"[", b"}", b"9" * 40, b"-", b"e9")

Mutation = Callable[[bytes, random.Random], bytes]


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        until = min(len(data), at + draw.choice((1, 1, 4, 64, 1024)))
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at:until]
        elif kind == 2:
            data[at:at] = data[at:until] * draw.choice((1, 2, 20))
        elif kind == 3:
            data[at:at] = draw.choice(RAW)
        elif kind == 4:
            data[at:until] = draw.choice(RAW)
        else:
            del data[at:]
    return bytes(data)


def damage_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        lines[first:first] = [lines[second]] * draw.choice((1, 3))
    elif kind == 1:
        del lines[first]
    elif kind == 2:
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == 3:
        lines[first : first + 2] = [b"".join(lines[first : first + 2])]
    else:
        lines[first] = damage_bytes(lines[first], draw)
    return b"\n".join(lines)


def damage_words(content: bytes, draw: random.Random) -> bytes:
    """Replace a number or a word of a text by another of the same text, or by a nasty one."""
    words = list(re.finditer(rb"[A-Za-z_]+|-?\d+(?:\.\d+)?", content))
    if not words:
        return damage_bytes(content, draw)
    for _ in range(draw.choice((1, 1, 2))):
        word = draw.choice(words)
        nasty = str(draw.choice((*NUMBERS, *TEXTS, *SPECS))).encode(errors="surrogatepass")
        other = draw.choice((draw.choice(words)[0], nasty))
        content = content[: word.start()] + other + content[word.end() :]
        words = list(re.finditer(rb"[A-Za-z_]+|-?\d+(?:\.\d+)?", content))
        if not words:
            break
    return content


def damage_json(content: bytes, draw: random.Random) -> bytes:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return damage_bytes(content, draw)
    for _ in range(draw.choice((1, 1, 1, 3))):
        document = damaged_value(document, draw)
    return json.dumps(document).encode(errors="surrogatepass")


def damaged_value(document: Any, draw: random.Random) -> Any:
    """Return a JSON document of which one value is another; `document` itself may be changed."""
    holders = [(None, None), *_holders(document)]
    holder, key = draw.choice(holders)
    if holder is None:
        return deepcopy(draw.choice(VALUES)) if draw.random() < 0.05 else document
    kind = draw.randrange(6)
    value = holder[key]
    if kind <= 1:
        holder[key] = deepcopy(_near(value, draw))  # else later damage could put it into itself
    elif kind == 2:
        del holder[key]
    elif kind == 3 and isinstance(holder, list):
        holder.insert(key, value)
    elif kind == 3:
        holder[str(draw.choice(TEXTS))] = value
    elif kind == 4:
        other, name = draw.choice(holders[1:])
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = [value] * draw.choice((1, 2, 50))
    return document


def _near(value: Any, draw: random.Random) -> Any:
    """Return another value of the same type half of the time."""
    if draw.random() < 0.5:
        return draw.choice(VALUES)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return draw.choice(VALUES)
    if isinstance(value, str):
        return draw.choice((*TEXTS, *SPECS, value * 2, value[:-1], value.upper()))
    return draw.choice((*NUMBERS, value + 1, value - 1, -value, value * 1000))


def _holders(document: Any, most: int = 5000) -> list[tuple[Any, Any]]:
    """Return (list or dict, key) of every value in `document`, up to `most`."""
    holders: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting and len(holders) < most:
        value = waiting.pop()
        keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        holders += [(value, key) for key in keys]
        waiting += [value[key] for key in keys]
    return holders


def damage_tags(content: bytes, draw: random.Random) -> bytes:
    tags = list(re.finditer(rb"<[^>]*>", content))
    attributes = list(re.finditer(rb'[A-Za-z_]+="([^"]*)"', content))
    kind = draw.randrange(5)
    if not tags or not attributes:
        return damage_bytes(content, draw)
    if kind <= 2:
        match = draw.choice(attributes)
        nasty = str(draw.choice((*NUMBERS, *TEXTS))).replace("\ud7ff", "?").encode(errors="replace")
        value = draw.choice((nasty, draw.choice(attributes)[1]))
        return content[: match.start(1)] + value.replace(b'"', b"'") + content[match.end(1) :]
    tag = draw.choice(tags)
    if kind == 3:
        return content[: tag.start()] + content[tag.end() :]
    at = draw.choice(tags).start()
    return content[:at] + tag[0] * draw.choice((1, 2, 30)) + content[at:]
