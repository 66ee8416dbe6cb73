"""From the `runner` section of a campaign to a recipe of a runner, and to the workers that hold it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from runners.ray.actors import RunnerFactory
from runners.ray.workers import RayWorkers
from runners.registry import create_runner
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.gpu_choice import gpu_runner, measurer_needs
from tuner.campaigns.runner_section import RunnerSection
from tuner.config.build_cache import shared_builder

REPLAYED = ("simulated", "recorded")
"""Runners whose times do not depend on what else the machine does."""

SIMULATED_LINK_MBPS = 1000.0


def make_workers(
    campaign: Campaign, topology: Topology, home: Path, address: str | None = None
) -> Callable[[], RayWorkers]:
    """Return what makes the workers of a campaign, on the cluster at `address`; see `RayWorkers`."""
    section = campaign.runner
    return partial(
        RayWorkers,
        runner_factory(section, topology, home),
        campaign.parallel,
        address,
        measurer_needs(section, topology),
        section.at_once,
        alone=section.kind not in REPLAYED,
        make_builder=partial(shared_builder, home),
    )


def runner_factory(section: RunnerSection, topology: Topology, home: Path) -> RunnerFactory:
    """Return a picklable recipe; `home` is where a runner keeps what it finds out about the machine.

    Simulated links of a network that gives no bandwidths have a round default rate: with no latencies the
    speed-ups do not depend on it.
    """
    if section.kind == "msccl":
        return gpu_runner(section, topology)
    options: dict[str, Any] = {}
    if section.kind == "local":
        options = {"link_mbps": section.link_mbps, "home": home}
    elif section.kind == "simulated":
        unknown = section.link_mbps is None and topology.bandwidth_unit == "link"
        rate = SIMULATED_LINK_MBPS if unknown else section.link_mbps
        options = {"link_mbps": rate, "alpha_us": section.alpha_us, "link_latency_us": section.link_latency_us}
    elif section.kind != "recorded":
        options = {"fabric": section.fabric, "where": section.where}
        options |= {"home": home} if section.kind == "oneccl" else {}
    return partial(create_runner, section.kind, options)
