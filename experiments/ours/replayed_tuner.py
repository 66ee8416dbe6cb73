"""How good the tuner is on recorded runs under noise: `chorale replay` on the shipped record, cold and with a prior."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.runners.recorded.table import MI250_SOURCE, mi250_table
from chorale.tuner.replay.campaign import ReplayOptions
from chorale.tuner.replay.document import task_row
from chorale.tuner.replay.noise import NOISES, Noise
from chorale.tuner.replay.priors import prior_from
from chorale.tuner.replay.tasks import GridTask, replay_tasks

SEEDS, QUICK_SEEDS = 50, 2
TRIALS = 30
STRATEGIES = ("sizes-gp", "sizes-gp, prior", "tpe", "random", "halving", "forest", "gp")
TORCH_STRATEGIES = ("gp",)
MAX_WRONG, MAX_FALSE_WINS, MIN_COVERAGE = 0.03, 0.01, 0.93

Case = tuple[str, str, str, int]


@cache
def _tasks() -> tuple[GridTask, ...]:
    return tuple(replay_tasks(mi250_table()))


def _cases(quick: bool) -> Sequence[Case]:
    """Return names of tasks, noises, ways of searching, and how many seeds are tried."""
    noises, seeds = (("none", "launch"), QUICK_SEEDS) if quick else (NOISES, SEEDS)
    names = [task.name for task in _tasks()][-1 if quick else 0 :]
    has_torch = find_spec("torch") is not None  # Optuna's gp is left out where it is not installed
    strategies = [name for name in STRATEGIES if has_torch or name not in TORCH_STRATEGIES]
    return [(name, noise, strategy, seeds) for name in names for noise in noises for strategy in strategies]


def _rows(case: Case) -> list[Row]:
    name, noise, strategy, seeds = case
    [task] = [task for task in _tasks() if task.name == name]
    sampler, _, prior = strategy.partition(", ")
    options = ReplayOptions(min(TRIALS, len(task.candidates)), Noise.parse(noise), sampler)
    row: dict[str, Any] = task_row(task, options, seeds, prior_from(_tasks(), task) if prior else None)
    missed = [
        text
        for text, is_missed in (
            (f"{row['wrong_entries']:.1%} wrong", row["wrong_entries"] > (0 if noise == "none" else MAX_WRONG)),
            (f"{row['false_wins']:.1%} false wins", row["false_wins"] > MAX_FALSE_WINS),
            (f"{row['coverage'] or 0:.1%} covered", row["coverage"] is not None and row["coverage"] < MIN_COVERAGE),
        )
        if is_missed
    ]
    return [
        row
        | {
            "noise": noise,
            "strategy": strategy,
            "seeds": seeds,
            "holds": not missed,
            "reason": ", ".join(missed) or None,
        }
    ]


def _share(key: str, heading: str) -> Column:
    return Column(heading, lambda row: "" if row[key] is None else f"{row[key]:.1%}")


EXPERIMENT = Experiment(
    name="replayed-tuner",
    question="How soon is the mean over sizes within 5 %, and how often is an entry of the table wrong, under noise?",
    source=MI250_SOURCE,
    columns=(
        Column("task", lambda row: str(row["task"])),
        Column("noise", lambda row: str(row["noise"])),
        Column("search", lambda row: str(row["strategy"])),
        Column("trials to mean", lambda row: f"{row['trials_to_5pct_mean']:.1f}"),
        Column("to all", lambda row: f"{row['trials_to_5pct_all']:.1f}"),
        Column("seconds", lambda row: f"{row['seconds_ratio']:.2f}"),
        _share("wrong_entries", "wrong"),
        _share("undecided", "undecided"),
        _share("false_wins", "false wins"),
        _share("coverage", "coverage"),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
)
