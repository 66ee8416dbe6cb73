"""Compiles the kernels that a command needs before its clocks run; where they are on disk, nothing is run for it."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from chorale.synth.kernels.compiled import cache_root

_SOURCES = Path(__file__).parents[1]
_PROCESSOR = Path("/proc/cpuinfo")
_TREES = ("auto", "forest", "forest-phases", "blink")


def groups_of_method(method: str) -> tuple[str, ...]:
    """Return the groups of kernels that `chorale synth` needs for `method`."""
    trees = ("warm_packing", "warm_trees") if method in _TREES else ()
    exchange = ("warm_exchange",) if method == "auto" else ()
    return ("warm", "warm_bounds", *trees, *exchange)


FEW_LINKS = 128
"""Networks of so many links need next to no machine code: see `chorale.synth.kernels.compiled`."""


def compile_groups(*groups: str, links: int | None = None) -> int:
    """Compile what the functions of `warm_up` called so run, unless it is on disk; return how many kernels were.

    links: of the network, where it is known: for few nothing is compiled

    A group that ran leaves a mark beside the machine code, which holds for these sources, this processor and these
    versions. Code that was deleted behind its mark is compiled at first use.
    """
    if links is not None and links <= FEW_LINKS:
        return 0
    return sum(_compile(group) for group in groups if not _mark(group).is_file())


def _compile(group: str) -> int:
    compiled: int = getattr(importlib.import_module("chorale.synth.kernels.warm_up"), group)()
    with suppress(OSError):  # in a folder that cannot be written the group runs each time
        _mark(group).touch()
    return compiled


def _mark(group: str) -> Path:
    return cache_root() / f"ready-{group}-{_state()}"


@cache
def _state() -> str:
    """Return a name for what decides the machine code: sources, by time and size, versions and the processor."""
    words = [sys.version, version("numba"), version("numpy"), _processor()]
    for folder, _, names in sorted(os.walk(_SOURCES)):
        files = [os.stat(os.path.join(folder, name)) for name in sorted(names) if name.endswith(".py")]
        words += [f"{status.st_mtime_ns} {status.st_size}" for status in files]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _processor() -> str:
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.is_file() else []
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
