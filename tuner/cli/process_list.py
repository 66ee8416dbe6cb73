"""Passwords that were typed into the command line, hidden from the list of processes that every user sees."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from chorale.synth.redaction import redacted

_ARGUMENTS_START, _ARGUMENTS_END = 47, 48
"""Fields of /proc/self/stat, the first of them 0, between which the system reads what `ps` shows."""


def hide_passwords() -> None:
    """Overwrite passwords of addresses in this process's own arguments; what Python has read of them stays.

    Linux only. Other users saw them until now, for the tenths of a second in which Python started: MLFLOW_TRACKING_URI
    and CHORALE_STORAGE, or the campaign file, are never seen.
    """
    with suppress(OSError, ValueError, IndexError):
        shown = Path("/proc/self/cmdline").read_bytes()
        hidden = b"\0".join(_masked(word) for word in shown.split(b"\0"))
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARGUMENTS_START - 2]), int(fields[_ARGUMENTS_END - 2])
        if hidden != shown and start and end - start == len(shown) == len(hidden):
            ctypes.memmove(start, hidden, len(hidden))


def _masked(word: bytes) -> bytes:
    """Return an argument with its password masked, as long as it was: filled up with `*`."""
    text = os.fsdecode(word)
    clean = os.fsencode(redacted(text))
    if clean == word:
        return word
    head, _, tail = clean.partition(b"***")
    room = len(word) - len(head) - len(tail)
    return head + b"*" * room + tail if room >= 0 else b"*" * len(word)
