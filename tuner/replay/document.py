"""Campaigns replayed on recorded runs: requests, priors, results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.recorded.table import RecordedTable
from chorale.synth.errors import InvalidInput
from chorale.synth.names import unknown_name
from chorale.tuner.replay.campaign import Noise, ReplayedCampaign, ReplayOptions, mean_behind
from chorale.tuner.replay.files import read_records
from chorale.tuner.replay.tasks import GridTask, named_tasks, replay_tasks
from chorale.tuner.search.size_model import Prior, nearest_sizes


def prior_from(tasks: Sequence[GridTask], target: GridTask) -> Prior | None:
    """Return what `tasks`, without `target` itself, say about the points of `target`; None if that is nothing.

    The same points of the same collective count, at the nearest size; several tasks by their mean.
    """
    others = [task for task in tasks if task.name != target.name and task.collective == target.collective]
    gains: dict[object, list[np.ndarray]] = {}
    for task in others:
        nearest = nearest_sizes(task.sizes_bytes, target.sizes_bytes)
        for candidate, times in zip(task.candidates, task.times_s, strict=True):
            gains.setdefault(candidate, []).append(np.log(task.library_s / times)[nearest])
    known = {one: np.mean(gains[one], axis=0) for one in target.candidates if one in gains}
    return Prior(known) if known else None


GOAL, WRONG = 1.05, 1.05


def replayed(task: GridTask, options: ReplayOptions, seed: int, prior: Prior | None = None) -> dict[str, float]:
    """Return what one campaign on `task` comes to; shares are of the entries of the table.

    trials_mean, trials_all: until the mean over the sizes, and every size, is within 5 %; one more than all if never
    seconds, full_seconds: until the mean is, thriftily and measuring all of every trial
    final_seconds: of the comparisons at the end
    coverage: share of intervals that hold the true ratio
    """
    campaign = ReplayedCampaign(task, options, seed, prior)
    campaign.search()
    searched_s = campaign.seconds
    near = [mean_behind(behind) <= GOAL for behind in campaign.behind]
    first = [*near, True].index(True)
    full = ReplayedCampaign(task, replace(options, thrifty=False), seed)
    full.search(until=GOAL)
    judged = []
    for index, verdict in enumerate(campaign.verdicts()):
        library_s = task.library_s[index]
        best_s = min(library_s, task.times_s[campaign.tried, index].min())
        runs_s = library_s if verdict.name is None else task.times_s[int(verdict.name), index]
        truth = library_s / task.times_s[int(verdict.leader), index]
        wrong = verdict.is_decided and runs_s > WRONG * best_s
        false_win = verdict.name is not None and runs_s >= library_s
        covered = verdict.speedup_low <= truth <= verdict.speedup_high
        judged.append((wrong, not verdict.is_decided, false_win, covered))
    shares = np.array(judged, dtype=float).mean(axis=0).tolist()
    return {
        "trials_mean": first + 1.0,
        "trials_all": [*(bool(np.all(behind <= GOAL)) for behind in campaign.behind), True].index(True) + 1.0,
        "seconds": campaign.spent_s[min(first, len(near) - 1)],
        "full_seconds": full.seconds,
        "final_seconds": campaign.seconds - searched_s,
        **dict(zip(("wrong_entries", "undecided", "false_wins", "coverage"), shares, strict=True)),
    }


SAMPLERS = ("sizes-gp", "tpe", "random", "gp", "nsga2", "qmc", "grid", "forest", "halving")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The arguments of the command; `prior` names tasks to learn from, None for none."""

    records: tuple[Path, ...]
    trials: int
    seeds: int
    noise: str
    sampler: str
    prior: str | None


def replay_document(request: ReplayRequest, begin: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Replay all tasks of the records; `begin` is called with the name of each. Raises InvalidInput for
    unknown names.
    """
    started_s = time.monotonic()
    if request.sampler not in SAMPLERS:
        raise unknown_name("sampler", request.sampler, SAMPLERS)
    noise = Noise.parse(request.noise)
    tasks = replay_tasks(RecordedTable(read_records(request.records)))
    if request.prior is not None and not named_tasks(tasks, request.prior):
        names = ", ".join(task.name for task in tasks)
        raise InvalidInput("a prior must be among the recorded tasks", request.prior, f"name one of {names}, or a part")
    rows = []
    for task in tasks:
        begin(task.name)
        options = ReplayOptions(min(request.trials, len(task.candidates)), noise, request.sampler)
        prior = None if request.prior is None else prior_from(named_tasks(tasks, request.prior), task)
        rows.append(task_row(task, options, request.seeds, prior))
    return {"tasks": rows, "seconds": round(time.monotonic() - started_s, 3)}


def task_row(task: GridTask, options: ReplayOptions, seeds: int, prior: Prior | None = None) -> dict[str, Any]:
    """Return the row of a task, means over `seeds` campaigns."""
    replays = [replayed(task, options, seed, prior) for seed in range(seeds)]
    mean = {key: float(np.mean([each[key] for each in replays])) for key in replays[0]}
    return {
        "task": task.name,
        "candidates": len(task.candidates),
        "sizes": len(task.sizes_bytes),
        "trials": options.trials,
        "prior": prior is not None,
        "unchecked": task.unchecked,
        "trials_to_5pct_mean": mean["trials_mean"],
        "trials_to_5pct_all": mean["trials_all"],
        "seconds_ratio": mean["seconds"] / mean["full_seconds"],
        "seconds_to_5pct_mean": mean["seconds"],
        "final_seconds": mean["final_seconds"],
        "wrong_entries": mean["wrong_entries"],
        "undecided": mean["undecided"],
        "false_wins": mean["false_wins"],
        "coverage": None if options.noise.kind == "none" else mean["coverage"],
    }
