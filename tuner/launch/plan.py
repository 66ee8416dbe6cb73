"""What a campaign would do and how long it would take, before it begins: `chorale tune --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from chorale.runners.api.base import LIBRARY
from chorale.runners.api.units import format_size
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.methods.catalog import METHODS
from chorale.synth.names import unknown_name
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.adopted import is_program_file_name
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.launch.forecast import estimate_lines, format_duration
from chorale.tuner.search.prior import Prior
from chorale.tuner.search.space import lowering_target, search_space
from chorale.tuner.trials.records import Candidate

WARM_UPS = 1


def min_measuring_s(campaign: Campaign, topology: Topology, trials: int) -> float | None:
    """Return the seconds that `trials` trials spend on links if every program met the lower bound of its collective.

    Candidates and baselines run in turns, warm-up and all repetitions; a ring takes longer by the
    factor of links that it leaves idle, and preparing comes on top. None where no rate is known in advance: without
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
    """Return the number of launches on GPUs if all of `trials` trials run; None on runners without launches.

    Each program has a proof and then, like every baseline, as many launches as there are repetitions. The final and the
    comparison with champions come on top.
    """
    if not campaign.runner.capabilities.launches_repetitions:
        return None
    programs = sum(not name.startswith(LIBRARY) for name in campaign.baselines)
    return programs + trials * (1 + campaign.repeats * (1 + len(campaign.baselines)))


def check_methods(campaign: Campaign, files: bool = False) -> None:
    """Raise InvalidInput for an unknown method or baseline; only its runner knows the algorithms of a library.

    files: whether baselines may be files of this machine, which `adopted_programs` checks
    """
    for key, methods in (("search.methods", campaign.search.methods), ("baselines", campaign.baselines)):
        for method in methods:
            is_library = key == "baselines" and method.startswith(LIBRARY)
            is_file = files and key == "baselines" and is_program_file_name(method)
            if method not in METHODS and not is_library and not is_file:
                raise unknown_name(f"method in campaign key `{key}`:", method, METHODS)


def check_runner(campaign: Campaign, topology: Topology) -> None:
    """Raise InvalidInput if the runner of `campaign` cannot provide the ranks of `topology`."""
    campaign.runner.config.check_plan(campaign.runner.measurers, topology)


def campaign_plan(campaign: Campaign, topology: Topology, priors: Sequence[Prior] = ()) -> dict[str, Any]:
    """Return the plan that `chorale tune --dry-run` shows; `priors` are what the search knows beforehand."""
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
        "prior": [{"name": prior.name, "points": sum(point in space for point in prior.gains)} for prior in priors],
        "first": [candidate.parameters for candidate in space.starts()],
        "resolved": campaign.model_dump(by_alias=True, mode="json"),
    }


_MAX_STARTS = 6


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that `chorale tune --dry-run` prints of its JSON document `plan`."""
    campaign = plan["resolved"]
    network = f"{plan['topology']['spec']} ({plan['topology']['nodes']} ranks)"
    yield f"{plan['campaign']}: {plan['collective']} on {network}, {campaign['runner']['kind']} runner"
    sizes = ", ".join(format_size(size) for size in plan["sizes_bytes"])
    yield f"sizes {sizes}; beside {', '.join(campaign['baselines'])}; {campaign['repeats']} repetitions"
    yield f"{plan['points']} configurations, {plan['pruned_beforehand']} infeasible"
    for reason, count in plan["reasons"].items():
        yield f"  {count}: {reason}"
    first = [str(Candidate(**parameters)) for parameters in plan["first"]]
    more = ", …" if len(first) > _MAX_STARTS else ""
    yield f"{plan['trials']} trials by {plan['sampler']}, the first: {', '.join(first[:_MAX_STARTS])}{more}"
    for prior in plan["prior"]:
        yield f"  prior from {prior['name']}, {prior['points']} points; dropped if it does not predict the trials"
    yield from estimate_lines(plan["estimate"])
    if plan["least_measuring_seconds"] is not None:
        least = format_duration(plan["least_measuring_seconds"])
        yield f"no program could measure that in less than {least} on these links"
