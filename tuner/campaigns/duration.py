"""How long a campaign must measure at least, before it begins."""

from __future__ import annotations

from fractions import Fraction

from chorale.runners.api.base import LIBRARY
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.campaign import Campaign

WARM_UPS = 1


def min_measuring_s(campaign: Campaign, topology: Topology, trials: int) -> float | None:
    """Return the seconds that `trials` trials spend on links if every program met the lower bound of its collective.

    Candidates and baselines run in turns, warm-up and all repetitions; a ring takes as many times longer as the network
    has links to spare, and preparing comes on top. None where no rate is known beforehand: without
    `runner.link_mbps`, on networks with bandwidths of their own, and on runners that execute nothing.
    """
    rate_mbps = campaign.runner.config.link_rate_mbps
    if rate_mbps is None or not campaign.runner.capabilities.is_live or topology.bandwidth_unit != "link":
        return None
    bytes_per_s = Fraction(rate_mbps) * 10**6 / 8
    bound = lower_bound(topology, parse_collective(campaign.collective)).value
    runs = trials * (campaign.repeats + WARM_UPS) * (1 + len(campaign.baselines))
    return float(runs * sum(campaign.sizes) * bound / bytes_per_s)


def min_launches(campaign: Campaign, trials: int) -> int | None:
    """Return how often GPUs are launched on for `trials` trials that all run; None on runners without launches.

    Each program has a proof and then, like every baseline, as many launches as there are repetitions. The final and the
    comparison with champions come on top.
    """
    if not campaign.runner.capabilities.launches_repetitions:
        return None
    programs = sum(not name.startswith(LIBRARY) for name in campaign.baselines)
    return programs + trials * (1 + campaign.repeats * (1 + len(campaign.baselines)))
