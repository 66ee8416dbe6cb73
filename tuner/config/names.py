"""Names in campaign files in common spellings; what is none stays as it is, for the checks of the file to refuse."""

from __future__ import annotations

from typing import Any

from chorale.runners.api.registry import runner_named
from chorale.synth.collective import parse_collective
from chorale.synth.errors import UnknownName
from chorale.synth.methods.catalog import method_named


def collective_text(value: Any) -> Any:
    """Return the collective that `value` means."""
    try:
        return parse_collective(value).name.value if isinstance(value, str) else value
    except UnknownName:
        return value


def method_text(value: Any) -> Any:
    """Return the method that `value` means."""
    try:
        return method_named(value).name if isinstance(value, str) else value
    except UnknownName:
        return value


def runner_text(value: Any) -> Any:
    """Return the runner that `value` means."""
    try:
        return runner_named(value) if isinstance(value, str) else value
    except UnknownName:
        return value
