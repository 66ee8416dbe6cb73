"""From the `runner` section of a campaign to a recipe of a runner."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from runners.local.runner import LocalRunner
from runners.ray_workers import RunnerFactory
from tuner.campaign import RunnerSection


def runner_factory(section: RunnerSection, home: Path) -> RunnerFactory:
    """Return a picklable recipe; `home` is where a runner keeps what it finds out about the machine."""
    return partial(LocalRunner, section.link_mbps, home=home)
