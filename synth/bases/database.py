"""The base graphs that ship with this package, by name.

This file alone in `synth` reads files: data of the package itself, as constant as its code.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from chorale.synth.bases.entry import BaseEntry, read_entries
from chorale.synth.errors import InvalidInput

BASE_FILES = ("special.json", "cayley.json", "searched.json")


@cache
def load_bases() -> Mapping[str, BaseEntry]:
    """Return all shipped entries by name, read once and checked against their content ids."""
    entries: dict[str, BaseEntry] = {}
    for file_name in BASE_FILES:
        entries |= read_entries(base_file_content(file_name), file_name)
    return entries


def base_names() -> tuple[str, ...]:
    """Return the names of all shipped entries, in the order of the files."""
    return tuple(load_bases())


def base_entry(name: str) -> BaseEntry:
    """Return the entry called `name`; raises InvalidInput with the names that come close."""
    entries = load_bases()
    if name in entries:
        return entries[name]
    close = difflib.get_close_matches(name, entries, n=3)
    suggestion = f"did you mean {' or '.join(close)}" if close else f"choose from {', '.join(list(entries)[:8])}, …"
    raise InvalidInput("a base must be one that is known", name or '""', suggestion)


def base_file_content(file_name: str) -> bytes:
    """Return the bytes of a file of the database."""
    return resources.files("chorale.synth.bases").joinpath(file_name).read_bytes()
