"""Native code that all tests share: most need some, and to build it takes ten seconds of processor time."""

from __future__ import annotations

from pathlib import Path

from chorale.runners.engine.build import native_home

SHARED = native_home().absolute() / "native"
"""Of the data folder that was there before any test chose its own: also for later runs and for other workers."""


def share_native_code(home: Path) -> None:
    """Let data folder `home` have what other tests built; sources, flags and compiler choose what serves it."""
    SHARED.mkdir(parents=True, exist_ok=True)
    (home / SHARED.name).symlink_to(SHARED)
