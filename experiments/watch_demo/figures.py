"""What the demo writes, from the log of the job's steps and the events of the watch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Step = Mapping[str, Any]

_LEAST_STEPS = 5


def figures(
    steps: Sequence[Step],
    events: Sequence[Json],
    fault_s: float,
    link_mbps: int,
    size_bytes: int,
    publication: Json | None = None,
) -> Json:
    """Return the figures of one fault.

    publication: of the table that the fault led to; None for the first one after it
    detected_s, published_s, first_step_s: seconds from the fault until the first state of a link changed, until the
        new table was published, and until the first step ended that ran it
    steps_lost: that failed or had to be made again, by gaps in the numbers of steps
    bandwidth_of_bound_*: of the checked allreduce, the least time that the links allow over the median that it took;
        before the fault, between it and the new table, and on the new table
    """
    plans = [event for event in events if event["event"] == "replan" and "costs" in event]
    later = [event for event in events if event["event"] == "publish" and event["time_s"] > fault_s]
    published = publication or later[0]
    changes = [event for event in events if event["event"] == "state" and event["time_s"] > fault_s]
    after = [step for step in steps if step["table"] == published["table"]]
    before = [step for step in steps if step["end_s"] <= fault_s][1:]
    between = [step for step in steps if step["end_s"] > fault_s and step["table"] != published["table"]]
    bounds = {plan["spec"]: Fraction(plan["costs"]["allreduce"]["lower_bound"]) for plan in plans}
    healthy, left = next(iter(bounds.values())), bounds[published["spec"]]
    least_s = {name: float(bound) * size_bytes * 8 / (link_mbps * 1e6) for name, bound in _named(healthy, left)}
    return {
        "detected_s": changes[0]["time_s"] - fault_s,
        "published_s": published["time_s"] - fault_s,
        "stages_s": published["stages"],
        "first_step_s": after[0]["end_s"] - fault_s,
        "longest_step_s": max(step["step_s"] + step["sum_s"] for step in steps if step["end_s"] > fault_s),
        "steps_lost": max(step["step"] for step in steps) + 1 - len(steps),
        "steps": {"before": len(before), "between": len(between), "after": len(after)},
        "wrong_sums": sum(step["wrong"] > 0 for step in steps),
        "allreduce_s": {"before": median_s(before), "between": median_s(between), "after": median_s(after[1:])},
        "least_s": least_s,
        "bandwidth_of_bound_before": _share(least_s["before"], before),
        "bandwidth_of_bound_between": _share(least_s["after"], between),
        "bandwidth_of_bound_after": _share(least_s["after"], after[1:]),
        "tables": {"before": before[-1]["table"], "after": published["table"]},
    }


def has_enough(steps: Sequence[Step], table: str | None) -> bool:
    """Return whether enough steps ran `table` for a median."""
    return [step["table"] for step in steps].count(table) > _LEAST_STEPS


def _named(healthy: Fraction, left: Fraction) -> Sequence[tuple[str, Fraction]]:
    return ("before", healthy), ("after", left)


def median_s(steps: Sequence[Step]) -> float | None:
    """Return the median seconds of the checked allreduce, None without steps."""
    return statistics.median(step["sum_s"] for step in steps) if steps else None


def _share(least_s: float, steps: Sequence[Step]) -> float | None:
    seconds = median_s(steps)
    return None if seconds is None else least_s / seconds
