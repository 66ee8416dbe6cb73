"""From the `runner` section of a campaign to a picklable factory of its runner, and to the workers that use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chorale.runners.api.workers import Workers
from chorale.runners.ray.interim import InterimWorkers
from chorale.runners.ray.runner_holder import RunnerFactory
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.build_cache import shared_builder
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner import RunnerSection

WAIT_VARIABLE = "CHORALE_WAIT_FOR_RAY"
"""Environment variable: campaigns with a cluster of their own begin when it has started."""


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], Workers]:
    """Return a function that starts the workers of a campaign.

    They are on the Ray cluster at `address` or at RAY_ADDRESS, or that this process has joined. Without one they are
    in this process until a cluster of its own has started, which short campaigns never need; see `InterimWorkers`.
    Campaigns that need resources of nodes wait for it, and all do with `WAIT_VARIABLE`.
    """
    if address or os.environ.get("RAY_ADDRESS") or os.environ.get(WAIT_VARIABLE) or _is_in_ray():
        return _prepared(campaign, topology, home, address)
    return make_workers_at_once(campaign, topology, home)


def make_workers_at_once(campaign: Campaign, topology: Topology, home: Path) -> Callable[[], Workers]:
    """Return a function that starts workers in this process, until a cluster of its own has started."""
    section = campaign.runner
    needs = section.config.resources(section.measurers, topology)
    if section.config.uses_cluster or section.at_once > 1 or needs.gpus or needs.resources or needs.labels:
        return _prepared(campaign, topology, home, None)
    return partial(
        InterimWorkers,
        partial(_prepared, campaign, topology, home, None, attempts=1),  # it tries again itself
        runner_factory(section, topology, home),
        partial(shared_builder, home),
        alone=section.capabilities.is_live,
    )


def _prepared(
    campaign: Campaign, topology: Topology, home: Path, address: str | None, **options: Any
) -> Callable[[], Workers]:
    """Import Ray; return a function that starts it and the workers of a campaign on it."""
    from chorale.runners.ray.workers import RayWorkers  # noqa: PLC0415 - a second, for launches that go on long enough

    section = campaign.runner
    return partial(
        RayWorkers,
        runner_factory(section, topology, home),
        campaign.parallel,
        address,
        needs=section.config.resources(section.measurers, topology),
        measurers=section.at_once,
        alone=section.capabilities.is_live,
        make_builder=partial(shared_builder, home),
        **options,
    )


def _is_in_ray() -> bool:
    """Whether this process has a connection to a cluster."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable function that creates the runner; runners store what they measure of the machine in `home`."""
    return partial(section.config.for_network(topology).create, home, section.measurers)
