"""What a campaign would do and how long it would take, before it begins: `chorale tune --dry-run`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from chorale.runners.api.base import LIBRARY
from chorale.runners.api.units import format_size
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import parse_collective
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.methods.catalog import METHODS
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.launch.progress import trial_intervals_s
from chorale.tuner.search.prior import Prior
from chorale.tuner.search.space import lowering_target, search_space
from chorale.tuner.trials.journal import conditions_of
from chorale.tuner.trials.open_launch import read_snapshot
from chorale.tuner.trials.records import Candidate
from chorale.tuner.trials.store import is_begun, read_launch

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


def check_methods(campaign: Campaign) -> None:
    """Raise InvalidInput for an unknown method or baseline; only its runner knows the algorithms of a library."""
    for key, methods in (("search.methods", campaign.search.methods), ("baselines", campaign.baselines)):
        for method in methods:
            is_library = key == "baselines" and method.startswith(LIBRARY)
            if method not in METHODS and not is_library:
                rule = f"campaign key `{key}`: every method must be known"
                raise InvalidInput(rule, method, f"choose from {', '.join(METHODS)}")


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
    yield f"{plan['points']} points to choose from, {plan['pruned_beforehand']} left out beforehand"
    for reason, count in plan["reasons"].items():
        yield f"  {count}: {reason}"
    first = [str(Candidate(**parameters)) for parameters in plan["first"]]
    more = ", …" if len(first) > _MAX_STARTS else ""
    yield f"{plan['trials']} trials by {plan['sampler']}, the first: {', '.join(first[:_MAX_STARTS])}{more}"
    for prior in plan["prior"]:
        yield f"  prior from {prior['name']}, {prior['points']} points; dropped if it does not predict the trials"
    yield from _estimate_lines(plan["estimate"])
    if plan["least_measuring_seconds"] is not None:
        least = format_duration(plan["least_measuring_seconds"])
        yield f"no program could measure that in less than {least} on these links"


def format_duration(seconds: float) -> str:
    """Return seconds for people: `0.4 s`, `35 s`, `4:05 min`, `2:10 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


def _estimate_lines(estimate: Mapping[str, Any]) -> Iterator[str]:
    if estimate["seconds"] is None:
        yield f"ends by {estimate['stopped_by']}; how long that takes is {estimate['basis']}"
        return
    search, trial = format_duration(estimate["seconds"]), format_duration(estimate["trial_seconds"])
    yield f"the search takes about {search}, {trial} a trial, and ends by {estimate['stopped_by']}"
    yield f"  by the {estimate['basis']}; starting, final and promotion come on top"


NOT_KNOWN = "not known yet: no launch in this data folder measured under the same conditions"


def forecast(campaign: Campaign, topology: Topology, home: Home) -> dict[str, Any]:
    """Return the `estimate` of `chorale tune --dry-run`: how many trials there will be at most, and how long they take.

    `trial_seconds` is the mean of all launches in the data folder under the same conditions; `seconds` is that times
    the trials, at most `budget.minutes`, for the search alone. Both are None before the first such launch.
    """
    points = len(search_space(campaign, topology))
    trials = min(campaign.budget.trials, points)
    limit_s = math.inf if campaign.budget.minutes is None else 60 * campaign.budget.minutes
    stopped_by = "budget.trials" if campaign.budget.trials <= points else "the search space"
    estimate: dict[str, Any] = {"trials": trials, "seconds": None, "trial_seconds": None}
    intervals_s, launches = _earlier_trials(campaign, topology, home)
    if not intervals_s:
        suffix = "" if limit_s == math.inf else " or budget.minutes"
        return estimate | {"stopped_by": stopped_by + suffix, "basis": NOT_KNOWN}
    trial_s = statistics.fmean(intervals_s)
    return estimate | {
        "seconds": round(min(trials * trial_s, limit_s), 2),
        "trial_seconds": round(trial_s, 4),
        "stopped_by": stopped_by if trials * trial_s <= limit_s else "budget.minutes",
        "basis": f"mean of {launches} under the same conditions",
    }


def _earlier_trials(campaign: Campaign, topology: Topology, home: Home) -> tuple[list[float], str]:
    """Return the seconds from one finished trial to the next in comparable launches, and the names of these."""
    conditions = conditions_of(campaign, topology)
    intervals_s: list[float] = []
    names = []
    for folder in sorted(home.campaigns.glob("*/[0-9]*")):
        try:
            if not is_begun(folder) or read_launch(folder).conditions != conditions:
                continue
            trials = read_snapshot(folder).trials
        except (OSError, ChoraleError):  # not a folder of a launch, of an older format, or damaged: left out
            continue
        if trials:
            intervals_s += trial_intervals_s(trials) or [trials[0].seconds]
            names.append(f"{folder.parent.name} launch {folder.name}")
    return intervals_s, ", ".join(names)
