"""Documents as lines of text over the standard streams of an MPI job, which carry other people's lines as well.

Launchers give up when the input of a job comes faster than rank 0 reads it, so a document comes in pieces, each of
which rank 0 asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

PIECE_CHARACTERS = 8192
READY_FOR_MORE: Message = {"answer": "more"}
"""What rank 0 says when it is ready for the next piece."""

DIED = "died"
"""The answer of the shell of a rank that has died: `rank`, and `code` as a shell has it."""

_MARK = "@chorale "


def encode_line(document: Message) -> bytes:
    """Return the line that says `document`."""
    return f"{_MARK}{json.dumps(document, separators=(',', ':'))}\n".encode()


def decode_line(line: bytes) -> Message | None:
    """Return the document of a line of `encode_line`, None for a line of somebody else."""
    text = line.decode(errors="replace")
    return dict(json.loads(text.removeprefix(_MARK))) if text.startswith(_MARK) else None


def encode_pieces(document: Message) -> Iterator[bytes]:
    """Return the lines that `MessageAssembler` puts together; the last one begins with `=`, those before with `+`."""
    text = json.dumps(document, separators=(",", ":"))
    for start in range(0, len(text), PIECE_CHARACTERS):
        sign = "=" if start + PIECE_CHARACTERS >= len(text) else "+"
        yield f"{sign}{text[start : start + PIECE_CHARACTERS]}\n".encode()


class MessageAssembler:
    """Puts the pieces of a document together."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, line: bytes) -> Message | None:
        """Return the document that `line` completes, None if there is more to come."""
        text = line.decode().rstrip("\n")
        self._parts.append(text[1:])
        if text[0] == "+":
            return None
        whole = "".join(self._parts)
        self._parts.clear()
        return dict(json.loads(whole))
