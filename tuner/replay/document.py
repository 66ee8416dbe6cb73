"""The document of `chorale replay --json`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.recorded.table import RecordedTable
from chorale.synth.errors import InvalidInput
from chorale.synth.names import unknown_name
from chorale.tuner.replay.campaign import ReplayOptions
from chorale.tuner.replay.files import read_records
from chorale.tuner.replay.noise import Noise
from chorale.tuner.replay.priors import prior_from
from chorale.tuner.replay.summary import Replay, replay
from chorale.tuner.replay.tasks import GridTask, named_tasks, replay_tasks
from chorale.tuner.search.prior import Prior

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
    """Replay all tasks of the records; `begin` is called with the name of each. InvalidInput for what is unknown."""
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
    replays = [replay(task, options, seed, prior) for seed in range(seeds)]
    return {
        "task": task.name,
        "candidates": len(task.candidates),
        "sizes": len(task.sizes_bytes),
        "trials": options.trials,
        "prior": prior is not None,
        "unchecked": task.unchecked,
        "trials_to_5pct_mean": _mean(replays, "trials_mean"),
        "trials_to_5pct_all": _mean(replays, "trials_all"),
        "seconds_ratio": _mean(replays, "seconds") / _mean(replays, "full_seconds"),
        "seconds_to_5pct_mean": _mean(replays, "seconds"),
        "final_seconds": _mean(replays, "final_seconds"),
        "wrong_entries": _mean(replays, "wrong"),
        "undecided": _mean(replays, "undecided"),
        "false_wins": _mean(replays, "false_wins"),
        "coverage": None if options.noise.kind == "none" else _mean(replays, "covered"),
    }


def _mean(replays: Sequence[Replay], key: str) -> float:
    return float(np.mean([getattr(one, key) for one in replays]))
