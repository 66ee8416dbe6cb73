"""From the `runner` section of a campaign to a picklable factory of its runner, and to the workers that use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chorale.runners.api.workers import Workers
from chorale.runners.workers.campaign_worker import RunnerFactory
from chorale.runners.workers.local import LocalWorkers
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.build_cache import shared_builder
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner import RunnerSection


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], Workers]:
    """Return a function that starts the workers of a campaign.

    They are on the Ray cluster at `address` or at RAY_ADDRESS, or that this process has joined. Without one they are
    processes of this machine, except for campaigns that need resources of nodes: these start a small cluster here.
    """
    section = campaign.runner
    make_runner = runner_factory(section, topology, home)
    needs = section.config.resources(section.measurers, topology)
    measuring: dict[str, Any] = {
        "measurers": section.at_once,
        "alone": section.capabilities.is_live,
        "make_builder": partial(shared_builder, home),
    }
    has_cluster = address or os.environ.get("RAY_ADDRESS") or _is_in_ray()
    if has_cluster or section.config.uses_cluster or needs.gpus or needs.resources or needs.labels:
        from chorale.runners.ray.workers import RayWorkers  # noqa: PLC0415 - Ray takes a second

        return partial(RayWorkers, make_runner, campaign.parallel, address, needs=needs, **measuring)
    return partial(LocalWorkers, make_runner, min(campaign.parallel, os.cpu_count() or 1), **measuring)


def _is_in_ray() -> bool:
    """Whether this process has a connection to a cluster."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable function that creates the runner; runners store what they measure of the machine in `home`."""
    return partial(section.config.for_network(topology).create, home, section.measurers)
