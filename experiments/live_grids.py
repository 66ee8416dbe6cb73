"""Whole search spaces that were measured live, beside a baseline, and what a search in them would have seen.

`python -m experiments.live_grids LAUNCH… > FILE` writes the document from folders of launches that tried every point
(`sampler: grid`); the shipped one is `data/live-grids.json.gz`, uncompressed by its reader.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from experiments.recorded_tuning import REPEATS, Floats
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.combinations import search_space
from tuner.campaigns.records import Candidate, CompleteTrial
from tuner.campaigns.space import SearchSpace
from tuner.campaigns.store import Store
from tuner.specs import load_topology

FORMAT = "chorale-live-grids/1"


@dataclass(frozen=True)
class LiveGrid:
    """Every point of a campaign that could be made, with its repetitions. What failed is in no grid.

    ratios:     time over the baseline's of the same repetition, (points, sizes, repetitions)
    baseline_s: median time of the baseline at each size over all trials
    seconds:    from the end of the trial before to the end of each
    load:       load averages of the machine over a minute, least and most over the trials
    """

    campaign: Campaign
    candidates: tuple[Candidate, ...]
    ratios: Floats
    baseline_s: Floats
    seconds: Floats
    load: tuple[float, float]

    @property
    def name(self) -> str:
        return f"{self.campaign.collective} {self.campaign.topology}"

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        return tuple(self.campaign.sizes)

    @cached_property
    def times_s(self) -> Floats:
        """Median time of each point at each size, as if the baseline had always taken the same."""
        return np.asarray(np.median(self.ratios, axis=2) * self.baseline_s)

    @property
    def library_s(self) -> Floats:
        return self.baseline_s

    def space(self, seed: int) -> SearchSpace:
        """Return the search space of the campaign, in its order whatever the seed, without what failed."""
        whole = search_space(self.campaign, load_topology(self.campaign.topology))
        return SearchSpace(whole.dimensions, _Measured(whole, frozenset(self.candidates)))

    def measured_s(self, seed: int) -> tuple[list[Floats], Floats]:
        """Return drawn repetitions of every point (sizes, repetitions), with replacement, and of the baseline."""
        random = np.random.default_rng(seed)
        drawn = random.integers(self.ratios.shape[2], size=(*self.ratios.shape[:2], REPEATS))
        times = np.take_along_axis(self.ratios, drawn, axis=2) * self.baseline_s[:, None]
        return list(times), np.repeat(self.baseline_s[:, None], REPEATS, axis=1)

    def winners(self) -> list[Candidate]:
        """Return what was best at some size, the largest size first, as a registry would offer them elsewhere."""
        return list(dict.fromkeys(self.candidates[place] for place in self.times_s.argmin(axis=0)[::-1]))


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is known beforehand: what the campaign's own space knows, and what failed."""

    whole: SearchSpace
    candidates: frozenset[Candidate]

    def matters(self, parameter: str, method: str) -> bool:
        return self.whole.matters(parameter, method)

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        return None if candidate in self.candidates else "it was not measured"


def live_grids() -> tuple[LiveGrid, ...]:
    """Return the shipped grids."""
    document = json.loads(gzip.decompress((files("experiments") / "data" / "live-grids.json.gz").read_bytes()))
    return tuple(map(_grid, document["grids"]))


def _grid(document: Mapping[str, Any]) -> LiveGrid:
    points = document["points"]
    own, baseline = (np.array([point[key] for point in points]) for key in ("times_us", "baseline_us"))
    return LiveGrid(
        Campaign.model_validate(document["campaign"]),
        tuple(Candidate(**point["parameters"]) for point in points),
        own / baseline,
        np.median(baseline, axis=(0, 2)) / 1e6,
        np.array([point["seconds"] for point in points]),
        (document["load"][0], document["load"][1]),
    )


def grid_document(folder: Path) -> dict[str, Any]:
    """Return what is kept of the launch in `folder`, whose campaign has one baseline."""
    store = Store(folder)
    store.close()
    trials = [trial for trial in store.trials if isinstance(trial, CompleteTrial)]
    loads = [float(trial.environment["load_average"]) for trial in trials]
    ends_s = [trial.started_unix_s + trial.seconds for trial in trials]
    begins_s = [trials[0].started_unix_s, *ends_s[:-1]]  # in the order in which they ended: one is measured at a time
    return {
        "campaign": store.launch.campaign,
        "load": [min(loads), max(loads)],
        "points": [_point(trial, end - begin) for trial, begin, end in zip(trials, begins_s, ends_s, strict=True)],
    }


def _point(trial: CompleteTrial, seconds: float) -> dict[str, Any]:
    def rounded(times_s: Sequence[float]) -> list[float]:
        return [round(time * 1e6, 1) for time in times_s]

    [name] = trial.sizes[0].baseline_times_s
    return {
        "parameters": trial.candidate.parameters,
        "seconds": round(seconds, 2),
        "times_us": [rounded(size.times_s) for size in trial.sizes],
        "baseline_us": [rounded(size.baseline_times_s[name]) for size in trial.sizes],
    }


if __name__ == "__main__":
    print(json.dumps({"format": FORMAT, "grids": [grid_document(Path(folder)) for folder in sys.argv[1:]]}))
