"""Program files that campaigns use unchanged, as candidates or as baselines."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from chorale.job.files import read_file
from chorale.synth.targets.xml_reading import MAX_TEXT_BYTES

PREFIX = "program:"
"""Prefix of adopted programs among methods, and among the baselines of records."""

SUFFIXES = (".xml", ".json")
_DIGITS = 8
_MAX_NAME = 48
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """name: what candidates and records call it, with the first digits of its digest: a changed file is another one."""

    path: str
    name: str
    text: bytes
    digest: str


def is_program_file_name(text: str) -> bool:
    """Return whether a baseline names a file and not a method; no method has a suffix."""
    return text.endswith(SUFFIXES)


def is_adopted(method: str) -> bool:
    """Return whether a candidate of `method` is a program that was taken from a file."""
    return method.startswith(PREFIX)


def read_program_file(path: str) -> ProgramFile:
    """Read the program file at `path`. Raises InvalidInput if it cannot be read."""
    text = read_file(path, MAX_TEXT_BYTES)
    digest = hashlib.sha256(text).hexdigest()
    plain = _UNUSUAL.sub("_", Path(path).name)[-_MAX_NAME:]  # MLflow takes no other characters in names of metrics
    return ProgramFile(path, f"{PREFIX}{plain}:{digest[:_DIGITS]}", text, digest)
