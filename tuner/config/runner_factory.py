"""From the `runner` section of a campaign to a picklable factory of its runner, and to the workers that use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from chorale.runners.api.workers import Workers
from chorale.runners.ray.actors import RunnerFactory
from chorale.runners.ray.interim import InterimWorkers
from chorale.runners.ray.workers import RayWorkers
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.build_cache import shared_builder
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner import RunnerSection


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], RayWorkers]:
    """Return a function that starts the workers of a campaign on the cluster at `address`; see `RayWorkers`."""
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
    )


def make_workers_at_once(campaign: Campaign, topology: Topology, home: Path) -> Callable[[], Workers]:
    """Return a function that starts workers on a cluster of this process; work goes on here until that has started.

    Live runners wait for it: what starts beside them would show in their times.
    """
    start = make_workers(campaign, topology, home)
    if campaign.runner.capabilities.is_live:
        return start
    return partial(
        InterimWorkers, start, runner_factory(campaign.runner, topology, home), partial(shared_builder, home)
    )


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable function that creates the runner; runners store what they measure of the machine in `home`."""
    return partial(section.config.for_network(topology).create, home, section.measurers)
