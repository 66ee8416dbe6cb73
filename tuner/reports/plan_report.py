"""What a campaign would do and how long it would take, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chorale.runners.api.units import format_size
from chorale.tuner.campaigns.records import Candidate

_MOST_STARTS = 6


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that `chorale tune --dry-run` prints of what its JSON document holds."""
    campaign = plan["resolved"]
    network = f"{plan['topology']['spec']} ({plan['topology']['nodes']} ranks)"
    yield f"{plan['campaign']}: {plan['collective']} on {network}, {campaign['runner']['kind']} runner"
    sizes = ", ".join(format_size(size) for size in plan["sizes_bytes"])
    yield f"sizes {sizes}; beside {', '.join(campaign['baselines'])}; {campaign['repeats']} repetitions"
    yield f"{plan['points']} points to choose from, {plan['pruned_beforehand']} left out beforehand"
    for reason, count in plan["reasons"].items():
        yield f"  {count}: {reason}"
    first = [str(Candidate(**parameters)) for parameters in plan["first"]]
    more = ", …" if len(first) > _MOST_STARTS else ""
    yield f"{plan['trials']} trials by {plan['sampler']}, the first: {', '.join(first[:_MOST_STARTS])}{more}"
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
