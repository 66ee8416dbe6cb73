"""How many trials each way of searching needs, replayed on measurements of MI250 GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.ours.recorded_tuning import RecordedTask, replay_search
from chorale.runners.recorded.table import MI250_SOURCE
from chorale.tuner.trials.records import Candidate

DEVELOPED_ON = ("allgather 8+8", "reduce_scatter 8+8")
"""The tasks that the model's expectations were set on; the others were only looked at."""

TASKS = tuple(
    (fabric, collective)
    for fabric in ("mi250_8+8", "mi250_16+16")
    for collective in ("allgather", "reduce_scatter", "allreduce")
)
WARM_START = "sizes-gp, warm"
STRATEGIES = ("sizes-gp", WARM_START, "tpe", "random", "grid")
SEEDS, QUICK_SEEDS = 50, 3
GOAL, STRICT = 1.05, 1.02
SHARE = 0.15  # of the grid
MAX_OVER_LIBRARY = 1.03
"""True time of an answer over the library's, at any size and moment: drawn repetitions decide, and launches of one and
the same thing differ by as much."""
TRIALS_FACTOR = 4  # times as many trials as allowed are looked at
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

Floats = NDArray[np.float64]


def _cases(quick: bool) -> Sequence[tuple[str, str, str, int]]:
    """Return fabrics, collectives, ways of searching, and how many seeds are tried."""
    tasks, seeds = (TASKS[1:], QUICK_SEEDS) if quick else (TASKS, SEEDS)  # the first is the largest
    return [(*task, strategy, seeds) for task in tasks for strategy in STRATEGIES]


def _rows(case: tuple[str, str, str, int]) -> list[Row]:
    fabric, collective, strategy, seeds = case
    return [_row(_task(fabric, collective), strategy, seeds)]


@cache
def _task(fabric: str, collective: str) -> RecordedTask:
    """Return the task with what it has drawn, which is the same for every strategy."""
    return RecordedTask.of(fabric, collective)


def _row(task: RecordedTask, strategy: str, seeds: int) -> Row:
    count = len(task.candidates)
    allowed = math.ceil(SHARE * count)
    name, starts = ("sizes-gp", best_on_other_fabric(task)) if strategy == WARM_START else (strategy, ())
    runs = [replay_search(task, name, seed, min(count, TRIALS_FACTOR * allowed), starts) for seed in range(seeds)]
    library = task.library_s / np.minimum(task.times_s.min(axis=0), task.library_s)
    over_library = max(float((run / library).max()) for run in runs)
    every = [trials_until(run.max(axis=1) <= GOAL) for run in runs]
    by_size = [_by_size(task, runs, place) for place in range(len(task.sizes_bytes))]
    reached = sum(size["trials_5_percent"][2] <= allowed for size in by_size)
    return {
        "task": task.name,
        "developed_on": task.name in DEVELOPED_ON,
        "strategy": strategy,
        "grid": count,
        "allowed": allowed,
        "seeds": seeds,
        "all_sizes_5_percent": quantiles(every),
        "all_sizes_2_percent": quantiles([trials_until(run.max(axis=1) <= STRICT) for run in runs]),
        "mean_5_percent": quantiles([trials_until(mean_over_sizes(run) <= GOAL) for run in runs]),
        "mean_2_percent": quantiles([trials_until(mean_over_sizes(run) <= STRICT) for run in runs]),
        "sizes_reached": reached,
        "by_size": by_size,
        "mean_after": [quantiles(column) for column in np.array([mean_over_sizes(run) for run in runs]).T],
        "over_library": over_library,
        "holds": over_library <= MAX_OVER_LIBRARY,
        "reason": None if reached == len(by_size) else f"{len(by_size) - reached} sizes take more trials than allowed",
    }


def best_on_other_fabric(task: RecordedTask) -> list[Candidate]:
    """Return what was best at some size on the other fabric, as a registry would have it, the most frequent first."""
    [fabric] = {one for one, _ in TASKS} - {task.fabric}
    other = _task(fabric, task.collective)
    best = [other.candidates[place] for place in other.times_s.argmin(axis=0)]
    return sorted(dict.fromkeys(best), key=lambda candidate: -best.count(candidate))


def trials_until(reached: NDArray[np.bool_]) -> float:
    """Return after how many trials it holds for the first time, one more than there were if never."""
    return float(np.argmax(reached)) + 1 if reached.any() else len(reached) + 1.0


def quantiles(values: Sequence[float] | Floats) -> list[float]:
    """Return the quantiles `QUANTILES`, each the smallest value that the share of all does not exceed."""
    return [float(one) for one in np.quantile(np.asarray(values), QUANTILES, method="inverted_cdf")]


def mean_over_sizes(run: Floats) -> Floats:
    """Return the geometric mean over the sizes after each trial."""
    return np.asarray(np.exp(np.log(run).mean(axis=1)))


def _by_size(task: RecordedTask, runs: Sequence[Floats], place: int) -> Mapping[str, Any]:
    return {
        "size_bytes": task.sizes_bytes[place],
        "trials_5_percent": quantiles([trials_until(run[:, place] <= GOAL) for run in runs]),
        "trials_2_percent": quantiles([trials_until(run[:, place] <= STRICT) for run in runs]),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.ours.plots import plot_strategies  # noqa: PLC0415 (matplotlib is slow)

    plot_strategies(rows, path)


def _middle(key: str) -> Column:
    def text(row: Row) -> str:
        low, middle, high = row[key][1:4]
        return f"{middle:g} ({low:g} to {high:g})"

    return Column(key.replace("_", " ").replace(" percent", " %"), text)


EXPERIMENT = Experiment(
    name="tuning-strategies",
    question="After how many trials is the table of answers within 5 % and 2 % of the best configuration at each size?",
    source=MI250_SOURCE,
    columns=(
        Column("task", lambda row: str(row["task"])),
        Column("search", lambda row: str(row["strategy"])),
        Column("grid", lambda row: f"{row['grid']}, 15 %: {row['allowed']}"),
        _middle("mean_5_percent"),
        _middle("mean_2_percent"),
        _middle("all_sizes_5_percent"),
        _middle("all_sizes_2_percent"),
        Column("sizes within 5 % at 15 %", lambda row: f"{row['sizes_reached']} of {len(row['by_size'])}"),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
