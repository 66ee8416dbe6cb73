"""Campaigns for what a job was recorded to call, weighted by the time that it spent there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.job.record import Record, size_clusters, size_weights
from chorale.runners.api.units import format_size
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import campaign_with

TUNED = ("allreduce", "allgather", "reduce_scatter")
"""Collectives that campaigns can tune."""

MAX_SIZES = 8
_SEARCH = {"methods": ["bfb", "ring", "biring"], "chunks": [None, 1, 2, 4], "channels": [1, 2]}


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A record as work for campaigns: one for each collective that all ranks call together.

    seconds: collective -> size in bytes -> time spent, of the calls that campaigns cover
    left:    time spent in other calls, by why none covers them
    timed:   False if the record has no times, as traces of others: then gigabytes stand for seconds
    """

    ranks: int
    seconds: Mapping[str, Mapping[int, float]]
    left: Mapping[str, float]
    timed: bool = True

    @staticmethod
    def of(record: Record) -> RecordedJob:
        """Return the work in `record`. Trials move bytes, so that types of elements are put together."""
        seconds: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        left: dict[str, float] = defaultdict(float)
        timed = record.seconds > 0
        for key, count in record.calls.items():
            spent = count.seconds if timed else count.calls * key.size_bytes / 1e9
            if key.collective not in TUNED:
                left[f"{key.collective} is not tuned"] += spent
            elif key.group is not None:
                left[f"a group of {len(key.group)} ranks"] += spent
            elif spent > 0 and key.size_bytes > 0:
                seconds[key.collective][key.size_bytes] += spent
        return RecordedJob(record.ranks, seconds, left, timed)

    @property
    def covered_s(self) -> float:
        """Time that campaigns cover."""
        return sum(sum(sizes.values()) for sizes in self.seconds.values())

    @property
    def covered(self) -> float:
        """The share of the recorded time that campaigns cover; 0 where no time was recorded."""
        total = self.covered_s + sum(self.left.values())
        return self.covered_s / total if total else 0.0


def recorded_campaigns(
    job: RecordedJob, name: str, document: Mapping[str, Any], overrides: Sequence[str], most_sizes: int = MAX_SIZES
) -> list[Campaign]:
    """Return a campaign for each collective of `job`, what took most time first.

    name:       of the record; campaigns are named after it and their collective
    document:   keys that the campaigns share; search and baselines have defaults
    overrides:  as on the command line, they come last
    most_sizes: at most so many sizes are measured, each for those around it

    InvalidInput where the record has nothing that campaigns cover, and for keys that do not fit.
    """
    if not job.seconds:
        rule = "a record must have time in collectives of all ranks that can be tuned"
        raise InvalidInput(rule, "; ".join(job.left) or "no calls", f"tuned are {', '.join(TUNED)}")
    order = sorted(job.seconds, key=lambda collective: -sum(job.seconds[collective].values()))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:40] or "job"
    return [
        campaign_with({"search": _SEARCH, **document, **_work(job.seconds[each], plain, each, most_sizes)}, overrides)
        for each in order
    ]


def coverage_lines(job: RecordedJob, campaigns: Sequence[Campaign]) -> Iterator[str]:
    """Yield what the campaigns cover, and what they do not."""
    total = job.covered_s + sum(job.left.values())
    what = "s that the job spent" if job.timed else "GB that the job moved"
    yield f"campaigns cover {job.covered:.0%} of the {total:.4g} {what} in collectives"
    for campaign in campaigns:
        weights = campaign.size_weights or dict.fromkeys(campaign.sizes, 1 / len(campaign.sizes))
        sizes = ", ".join(f"{format_size(size)} {weight:.0%}" for size, weight in weights.items())
        yield f"  {campaign.name}: {sum(job.seconds[campaign.collective].values()) / total:.0%}, by size: {sizes}"
    for reason, seconds in sorted(job.left.items(), key=lambda item: -item[1]):
        yield f"  not covered: {seconds / total if total else 0:.0%}, {reason}"


def _work(seconds: Mapping[int, float], name: str, collective: str, most_sizes: int) -> dict[str, Any]:
    clusters = size_clusters(seconds, most_sizes)
    sizes = [cluster.size_bytes for cluster in clusters]
    return {
        "name": f"{name}-{collective}",
        "collective": collective,
        "sizes": sizes,
        "weights": size_weights(clusters),
    }
