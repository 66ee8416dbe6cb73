"""Where a search should begin, replayed on whole search spaces that were measured live with oneCCL."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.experiment import Column, Experiment, Report, Row
from experiments.live_grids import LiveGrid, live_grids
from experiments.recorded_tuning import Floats, tune
from experiments.tuning_strategies import GOAL, QUICK_SEEDS, SEEDS, SHARE, mean_over_sizes, quantiles, trials_until
from runners.api import RunRequest
from runners.preparation import Recipe, prepare
from runners.workshop import Finished
from tuner.campaigns.campaign import ScreeningSection
from tuner.campaigns.records import Candidate
from tuner.screening import screened
from tuner.specs import load_topology

COLD, SCREENED, WARM, BOTH = "cold", "screened", "warm", "warm, screened"
BEGINNINGS = (COLD, SCREENED, WARM, BOTH)
MOST_WORSE = 1
"""Trials by which a beginning may be behind the cold one in the median and still count as not worse."""


def _run(report: Report, quick: bool) -> Sequence[Row]:
    grids = live_grids()
    rows: list[Row] = []
    for grid in grids:
        began_s = time.monotonic()
        guessed = guesses(grid)
        screening_s = time.monotonic() - began_s
        won = similar_to(grid, grids).winners()
        starts = {COLD: [], SCREENED: guessed, WARM: won, BOTH: list(dict.fromkeys([*won, *guessed]))}
        cold: Row | None = None
        for beginning in BEGINNINGS:
            report(f"{grid.name}, {beginning}", len(rows), len(BEGINNINGS) * len(grids))
            spent_s = screening_s if beginning in (SCREENED, BOTH) else 0.0
            row = _row(grid, beginning, starts[beginning], spent_s, QUICK_SEEDS if quick else SEEDS)
            cold = cold or row
            rows.append({**row, **_verdict(row, cold)})
    return rows


def similar_to(grid: LiveGrid, grids: Sequence[LiveGrid]) -> LiveGrid:
    """Return the other grid of the family: the one that a registry would know beforehand."""
    family = grid.campaign.topology.partition(":")[0]
    [other] = [one for one in grids if one is not grid and one.campaign.topology.startswith(f"{family}:")]
    return other


def guesses(grid: LiveGrid) -> list[Candidate]:
    """Return what screening of all points says to begin with."""
    points = len(grid.candidates)
    campaign = grid.campaign.model_copy(update={"screening": ScreeningSection(candidates=points)})
    return screened(campaign, load_topology(campaign.topology), grid.space(0), _OneByOne())


@dataclass
class _OneByOne:
    """A Workshop that prepares in this process and measures nothing."""

    orders: deque[tuple[str, Recipe]] = field(default_factory=deque)

    def prepare(self, key: str, recipe: Recipe) -> None:
        self.orders.append((key, recipe))

    def measure(self, key: str, request: RunRequest) -> None:
        raise RuntimeError(f"nothing is measured here, and {key} was to be")

    def wait(self, timeout_s: float) -> list[Finished]:
        key, recipe = self.orders.popleft()
        began_s = time.monotonic()
        return [Finished(key, prepare(recipe), time.monotonic() - began_s)]

    def close(self) -> None:
        self.orders.clear()


def _row(grid: LiveGrid, beginning: str, starts: Sequence[Candidate], spent_s: float, seeds: int) -> Row:
    count = len(grid.candidates)
    allowed = math.ceil(SHARE * count)
    runs = [tune(grid, "sizes-gp", seed, count, starts) for seed in range(seeds)]
    by_size = [quantiles([trials_until(run[:, place] <= GOAL) for run in runs])[2] for place in range(runs[0].shape[1])]
    means = [trials_until(mean_over_sizes(run) <= GOAL) for run in runs]
    per_trial_s = float(np.mean(grid.seconds))
    return {
        "grid": grid.name,
        "points": count,
        "load": list(grid.load),
        "beginning": beginning,
        "starts": len(starts),
        "allowed": allowed,
        "seeds": seeds,
        "mean_5_percent": quantiles(means),
        "all_sizes_5_percent": quantiles([trials_until(run.max(axis=1) <= GOAL) for run in runs]),
        "by_size_5_percent": by_size,
        "sizes_reached": sum(trials <= allowed for trials in by_size),
        "minutes_to_mean": (quantiles(means)[2] * per_trial_s + spent_s) / 60,
        "screening_seconds": spent_s,
        "mean_after": [quantiles(column) for column in _columns(runs)],
    }


def _columns(runs: Sequence[Floats]) -> Floats:
    return np.array([mean_over_sizes(run) for run in runs]).T


def _verdict(row: Row, cold: Row) -> Row:
    late = [key for key in ("mean_5_percent", "all_sizes_5_percent") if row[key][2] > cold[key][2] + MOST_WORSE]
    return {"holds": True, "reason": f"behind the cold search: {', '.join(late)}" if late else None}


def _middle(key: str, heading: str) -> Column:
    def text(row: Row) -> str:
        low, middle, high = row[key][1:4]
        return f"{middle:g} ({low:g} to {high:g})"

    return Column(heading, text)


EXPERIMENT = Experiment(
    name="search-starts",
    question="What do screening and a warm start save, in trials and minutes to within 5 % of the best of a live grid?",
    source="grids of our own, measured with oneCCL over emulated fabrics; in docs/decisions/0034",
    columns=(
        Column("grid", lambda row: f"{row['grid']}, {row['points']} points"),
        Column("begins", lambda row: str(row["beginning"])),
        _middle("mean_5_percent", "mean over sizes"),
        _middle("all_sizes_5_percent", "all sizes"),
        Column("sizes at 15 %", lambda row: f"{row['sizes_reached']} of {len(row['by_size_5_percent'])}"),
        Column("minutes to the mean", lambda row: f"{row['minutes_to_mean']:.1f}"),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    run=_run,
)
