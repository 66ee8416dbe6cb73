"""What a campaign would do, before it does anything."""

from __future__ import annotations

from typing import Any

from chorale.runners.api.base import LIBRARY
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import METHODS
from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.campaign import Campaign
from chorale.tuner.campaigns.combinations import search_space
from chorale.tuner.campaigns.dialect import lowering_target
from chorale.tuner.campaigns.duration import min_launches, min_measuring_s


def check_methods(campaign: Campaign) -> None:
    """Raise InvalidInput for a method or baseline that does not exist; what a library has only its runner knows."""
    for key, methods in (("search.methods", campaign.search.methods), ("baselines", campaign.baselines)):
        for method in methods:
            is_library = key == "baselines" and method.startswith(LIBRARY)
            if method not in METHODS and not is_library:
                rule = f"campaign key `{key}`: every method must be known"
                raise InvalidInput(rule, method, f"choose from {', '.join(METHODS)}")


def check_runner(campaign: Campaign, topology: Topology) -> None:
    """Raise InvalidInput where the runner of `campaign` cannot have the ranks of `topology`."""
    campaign.runner.config.check_plan(campaign.runner.measurers, topology)


def campaign_plan(campaign: Campaign, topology: Topology) -> dict[str, Any]:
    """Return the plan that `chorale tune --dry-run` shows."""
    space = search_space(campaign, topology)
    trials = min(campaign.budget.trials, len(space))
    return {
        "campaign": campaign.name,
        "topology": {"spec": topology.spec, "id": topology.id, "nodes": topology.compute_count},
        "collective": campaign.collective,
        "target": lowering_target(campaign.runner).name,
        "node_to_measure_on": str(campaign.runner.config.resources(campaign.runner.measurers, topology)),
        "sizes_bytes": list(campaign.sizes),
        "points": len(space),
        "pruned_beforehand": sum(space.refused.values()),
        "reasons": dict(space.refused),
        "sampler": campaign.resolved_sampler,
        "trials": trials,
        "least_measuring_seconds": min_measuring_s(campaign, topology, trials),
        "least_launches": min_launches(campaign, trials),
        "first": [candidate.parameters for candidate in space.starts()],
        "resolved": campaign.model_dump(by_alias=True, mode="json"),
    }
