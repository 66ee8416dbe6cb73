"""How fast the links of a live runner are, before it has run."""

from __future__ import annotations

from dataclasses import dataclass

from runners.fabric.fabrics import find_fabric
from runners.local.probe import RATES_MBPS, known_rate
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.home import Home

_CLUSTER_GBPS = (1.0, 400.0)
_BITS = {"GB/s": 8.0, "Gbit/s": 1.0}


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Between what rates, in Gbit/s, a link of bandwidth 1 is; `words` says why.

    Where a network gives bandwidths of its own, 1 Gbit/s stands for these as they are.
    """

    low_gbps: float
    high_gbps: float
    words: str


def link_rates(campaign: Campaign, topology: Topology, home: Home) -> LinkRates:
    """Return the rates of links as the campaign gives them, as the fabric or an earlier probe has them, or a guess."""
    config = campaign.runner.config
    given_mbps = config.link_rate_mbps
    if config.capabilities.probes_links:
        found = known_rate(topology.node_count, len(topology.links), home.root)
        if given_mbps is not None or found is not None:
            rate_mbps = given_mbps or (found.link_mbps if found else 0.0)
            return _paced(topology, rate_mbps, rate_mbps, f"links of {rate_mbps:g} Mbit/s")
        words = "links whose rate is not known yet: a probe will find it"
        return _paced(topology, RATES_MBPS[0], RATES_MBPS[-1], words)
    fabric = find_fabric(topology.id, config.fabric_name)
    if fabric is not None:
        rate = float(fabric.link_mbps)
        return _paced(topology, rate, rate, f"the fabric {fabric.name} at {rate:g} Mbit/s")
    if topology.bandwidth_unit != "link":
        return LinkRates(1.0, 1.0, "the bandwidths of the network")
    low_gbps, high_gbps = _CLUSTER_GBPS
    return LinkRates(low_gbps, high_gbps, f"links of {low_gbps:g} to {high_gbps:g} Gbit/s, as no fabric is up")


def _paced(topology: Topology, low_mbps: float, high_mbps: float, words: str) -> LinkRates:
    """Return rates of the fastest link, which stand for its bandwidth where the network gives one."""
    fastest = 1.0
    if topology.bandwidth_unit != "link":
        fastest = float(max(topology.links.bandwidths)) * _BITS[topology.bandwidth_unit]
    return LinkRates(low_mbps / 1000 / fastest, high_mbps / 1000 / fastest, words)
