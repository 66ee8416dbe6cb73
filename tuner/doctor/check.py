"""One finding about this machine."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    required: without it the quickstart campaign cannot run; else it only opens up `needed_for`
    way_out:  what helps, for a person
    command:  what to type, where one command does it
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    way_out: str
    required: bool = False
    command: str = ""


def installed(distribution: str, purpose: str, command: str, required: bool = False) -> Check:
    """Return whether a distribution of Python is installed, and which version."""
    way_out = f"run `{command}`"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Check(distribution, False, "not installed", purpose, way_out, required, command)
    return Check(distribution, True, version, purpose, way_out, required, command)
