"""Experiments with recorded runs on MI250 GPUs: comparisons of tuning strategies, and tests of the cost model."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.experiments.framework.experiment import Column, Experiment, Row, columns
from chorale.experiments.framework.plots import SIZE, Chart, Point, all_points, line_points
from chorale.runners.recorded.table import MI250_SOURCE, RecordedConfiguration, mi250_table
from chorale.runners.simulated.calibration import Calibration, Observation, TimeTerms, calibrate
from chorale.runners.simulated.runner import buffer_splits
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.replay.campaign import LIBRARY, NOISES, Noise, ReplayOptions, prior_from, task_row
from chorale.tuner.replay.tasks import LARGEST_BYTES, GridTask, candidates_of, replay_tasks
from chorale.tuner.search.search import Search, SearchPlan
from chorale.tuner.trials.records import MIN_SPEEDUP, Candidate, CompleteTrial, SizeResult

Floats = NDArray[np.float64]

REPEATS = 5
REPLAYED_TUNER_SEEDS, REPLAYED_TUNER_QUICK_SEEDS = 50, 2
TRIALS = 30
REPLAYED_TUNER_STRATEGIES = ("sizes-gp", "sizes-gp, prior", "tpe", "random", "halving", "forest", "gp")
TORCH_STRATEGIES = ("gp",)
MAX_WRONG, MAX_FALSE_WINS, MIN_COVERAGE = 0.03, 0.01, 0.93
Case = tuple[str, str, str, int]


@dataclass(frozen=True, eq=False)
class RecordedTask(GridTask):
    """A tuning task with recorded times: the in-place configurations of one collective on one fabric.

    sizes_bytes: sizes at which all configurations were measured and none fell back to the library
    drawn:       seed -> result of `measured_s`
    """

    fabric: str = ""
    configurations: tuple[RecordedConfiguration, ...] = ()
    drawn: dict[int, tuple[list[Floats], Floats]] = field(default_factory=dict)

    @staticmethod
    def of(fabric: str, collective: str) -> RecordedTask:
        """Return the task from the runs on MI250 GPUs that are shipped with Chorale."""
        table = mi250_table()
        [library] = [one for one in table.libraries(fabric, collective) if one.in_place]
        made = [one for one in table.configurations(fabric, collective) if one.in_place]
        sizes = tuple(
            size
            for size in table.sizes_bytes(library)
            if size <= LARGEST_BYTES and not any(table.fell_back(one, size) for one in made)
        )
        whole = [one for one in made if set(sizes) <= set(table.sizes_bytes(one))]
        library_s, *times_s = ([min(table.times_s(one, size)) for size in sizes] for one in (library, *whole))
        name = f"{collective} {fabric.removeprefix('mi250_')}"
        times = np.array(times_s), np.array(library_s), 0.0
        made_of = (replace(one, chunks=one.chunks or 1) if one.k is None else one for one in candidates_of(whole))
        return RecordedTask(name, collective, tuple(made_of), sizes, *times, fabric, (library, *whole))

    def measured_s(self, seed: int) -> tuple[list[Floats], Floats]:
        """Return randomly drawn repetitions, float64[sizes, repeats], for every configuration and for the library."""
        if seed not in self.drawn:
            table = mi250_table()
            draws = (
                np.array([table.draw_s(one, size, REPEATS, seed) for size in self.sizes_bytes])
                for one in self.configurations
            )
            library_s, *own_s = draws
            self.drawn[seed] = own_s, library_s
        return self.drawn[seed]


def replay_search(
    task: RecordedTask, strategy: str, seed: int, max_trials: int, start_candidates: Sequence[Candidate] = ()
) -> Floats:
    """Replay a search on recorded times; return the slowdown after each trial at each size, float64[trials, sizes].

    A slowdown is a choice's true time divided by the best time. The choice is the candidate with the shortest measured
    time, or the library if no candidate clearly beats it. `start_candidates` are tried first.
    """
    draws, library = task.measured_s(seed)
    number = {candidate: place for place, candidate in enumerate(task.candidates)}
    plan = SearchPlan(
        task.space(seed), "recorded", strategy, seed, lambda one: one.id, task.sizes_bytes, starts=start_candidates
    )
    search = Search(plan)
    history: list[Floats] = []
    best, answer = np.median(library, axis=1) / MIN_SPEEDUP, task.library_s
    while len(history) < max_trials and (suggestion := search.ask()) is not None:
        place = number[suggestion.candidate]
        columns = zip(task.sizes_bytes, draws[place], library, strict=True)
        sizes = tuple(SizeResult(size, size, tuple(own), {LIBRARY: tuple(other)}) for size, own, other in columns)
        tried = suggestion.candidate
        search.tell(suggestion.ticket, CompleteTrial(tried.id, 0, tried, 0.0, 0.0, "", tried.id, sizes))
        own = np.median(draws[place], axis=1)
        answer = np.where(own < best, task.times_s[place], answer)
        best = np.minimum(own, best)
        history.append(answer)
    return np.asarray(np.array(history) / task.best_s)


@cache
def _tasks() -> tuple[GridTask, ...]:
    return tuple(replay_tasks(mi250_table()))


def _replays(names: Sequence[str], noises: Sequence[str], seeds: int) -> list[Case]:
    """Return the cases of the replay experiment: (task name, noise, strategy, number of seeds)."""
    has_torch = find_spec("torch") is not None  # required by Optuna's gp sampler
    strategies = [name for name in REPLAYED_TUNER_STRATEGIES if has_torch or name not in TORCH_STRATEGIES]
    return [(name, noise, strategy, seeds) for name in names for noise in noises for strategy in strategies]


def _replayed_tuner_rows(case: Case) -> list[Row]:
    name, noise, strategy, seeds = case
    [task] = [task for task in _tasks() if task.name == name]
    sampler, _, prior = strategy.partition(", ")
    options = ReplayOptions(min(TRIALS, len(task.candidates)), Noise.parse(noise), sampler)
    row: dict[str, Any] = task_row(task, options, seeds, prior_from(_tasks(), task) if prior else None)
    missed = []
    if row["wrong_entries"] > (0 if noise == "none" else MAX_WRONG):
        missed.append(f"{row['wrong_entries']:.1%} wrong")
    if row["false_wins"] > MAX_FALSE_WINS:
        missed.append(f"{row['false_wins']:.1%} false wins")
    if row["coverage"] is not None and row["coverage"] < MIN_COVERAGE:
        missed.append(f"{row['coverage']:.1%} covered")
    facts = {"noise": noise, "strategy": strategy, "seeds": seeds}
    return [{**row, **facts, "holds": not missed, "reason": ", ".join(missed) or None}]


REPLAYED_TUNER = Experiment(
    name="replayed-tuner",
    question="How soon is the mean over sizes within 5 %, and how often is an entry of the table wrong, under noise?",
    source=MI250_SOURCE,
    columns=columns(
        "task | noise | search=strategy | trials to mean=trials_to_5pct_mean:.1f | to all=trials_to_5pct_all:.1f",
        "seconds=seconds_ratio:.2f | wrong=wrong_entries:.1% | undecided=undecided:.1% | false wins=false_wins:.1%",
        "coverage=coverage:.1% | reason",
    ),
    cases=_replays([task.name for task in _tasks()], NOISES, REPLAYED_TUNER_SEEDS),
    quick=_replays([_tasks()[-1].name], ("none", "launch"), REPLAYED_TUNER_QUICK_SEEDS),
    evaluate=_replayed_tuner_rows,
)


DEVELOPED_ON = ("allgather 8+8", "reduce_scatter 8+8")
"""The tasks on which the strategies were developed. The other tasks are only used to test the strategies."""

TASKS = tuple(
    (fabric, collective)
    for fabric in ("mi250_8+8", "mi250_16+16")
    for collective in ("allgather", "reduce_scatter", "allreduce")
)
WARM_START = "sizes-gp, warm"
TUNING_STRATEGIES_STRATEGIES = ("sizes-gp", WARM_START, "tpe", "random", "grid")
TUNING_STRATEGIES_SEEDS, TUNING_STRATEGIES_QUICK_SEEDS = 50, 3
GOAL, STRICT = 1.05, 1.02
SHARE = 0.15  # fraction of the grid that is searched
MAX_OVER_LIBRARY = 1.03
"""Maximum ratio of the true time of a strategy's choice to the library's time, at any size and after any trial. It is
above 1 because choices depend on randomly drawn repetitions, and launches of a program differ by this much."""
TRIALS_FACTOR = 4  # replayed trials, as a multiple of the allowed number
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def _searches(tasks: Sequence[tuple[str, str]], seeds: int) -> list[tuple[str, str, str, int]]:
    """Return the cases of a search experiment: (fabric, collective, strategy, number of seeds)."""
    return [(*task, strategy, seeds) for task in tasks for strategy in TUNING_STRATEGIES_STRATEGIES]


@cache
def _task(fabric: str, collective: str) -> RecordedTask:
    """Return the task for a fabric and a collective. The task is cached, so that all strategies use the same draws."""
    return RecordedTask.of(fabric, collective)


def _strategy_row(task: RecordedTask, strategy: str, seeds: int) -> Row:
    count = len(task.candidates)
    allowed = math.ceil(SHARE * count)
    name, starts = ("sizes-gp", best_on_other_fabric(task)) if strategy == WARM_START else (strategy, ())
    runs = [replay_search(task, name, seed, min(count, TRIALS_FACTOR * allowed), starts) for seed in range(seeds)]

    def trials(measure: Callable[[Floats], Floats], goal: float) -> list[float]:
        """Return quantiles, over seeds, of the number of trials until `measure(run)` is at most `goal`."""
        return quantiles([trials_until(measure(run) <= goal) for run in runs])

    def largest(run: Floats) -> Floats:
        return np.asarray(run.max(axis=1))

    def at_size(index: int) -> dict[str, list[float]]:
        measure = lambda run: run[:, index]  # noqa: E731
        return {"trials_5_percent": trials(measure, GOAL), "trials_2_percent": trials(measure, STRICT)}

    over_library = max(float((run * task.best_s / task.library_s).max()) for run in runs)
    by_size: list[dict[str, Any]] = [
        {"size_bytes": size, **at_size(index)} for index, size in enumerate(task.sizes_bytes)
    ]
    reached = sum(size["trials_5_percent"][2] <= allowed for size in by_size)
    return {
        "task": task.name,
        "developed_on": task.name in DEVELOPED_ON,
        "strategy": strategy,
        "grid": count,
        "allowed": allowed,
        "seeds": seeds,
        "all_sizes_5_percent": trials(largest, GOAL),
        "all_sizes_2_percent": trials(largest, STRICT),
        "mean_5_percent": trials(mean_over_sizes, GOAL),
        "mean_2_percent": trials(mean_over_sizes, STRICT),
        "sizes_reached": reached,
        "by_size": by_size,
        "mean_after": [quantiles(column) for column in np.array([mean_over_sizes(run) for run in runs]).T],
        "over_library": over_library,
        "holds": over_library <= MAX_OVER_LIBRARY,
        "reason": None if reached == len(by_size) else f"{len(by_size) - reached} sizes take more trials than allowed",
    }


def best_on_other_fabric(task: RecordedTask) -> list[Candidate]:
    """Return the candidates that are the best at some size on the other fabric, the most frequent one first."""
    [fabric] = {one for one, _ in TASKS} - {task.fabric}
    other = _task(fabric, task.collective)
    best = [other.candidates[place] for place in other.times_s.argmin(axis=0)]
    return sorted(dict.fromkeys(best), key=lambda candidate: -best.count(candidate))


def trials_until(reached: NDArray[np.bool_]) -> float:
    """Return the number of trials until `reached` is first true, or one more than the total if it never is."""
    return float(np.argmax(reached)) + 1 if reached.any() else len(reached) + 1.0


def quantiles(values: Sequence[float] | Floats) -> list[float]:
    """Return the quantiles of `values` at `QUANTILES`, without interpolation: each is one of the values."""
    return [float(one) for one in np.quantile(np.asarray(values), QUANTILES, method="inverted_cdf")]


def mean_over_sizes(run: Floats) -> Floats:
    """Return the geometric mean of `run` over all sizes, after each trial."""
    return np.asarray(np.exp(np.log(run).mean(axis=1)))


def _strategy_points(rows: Sequence[Row]) -> Iterator[Point]:
    for row in rows:
        title, most = f"{row['task']}, {row['grid']} points", TRIALS_FACTOR * row["allowed"]
        yield from (
            (title, row["strategy"], trials, after[2]) for trials, after in enumerate(row["mean_after"][:most], 1)
        )


def _middle(key: str) -> Column:
    def text(row: Row) -> str:
        low, middle, high = row[key][1:4]
        return f"{middle:g} ({low:g} to {high:g})"

    return Column(key.replace("_", " ").replace(" percent", " %"), text)


TUNING_STRATEGIES = Experiment(
    name="tuning-strategies",
    question="After how many trials is the table of answers within 5 % and 2 % of the best configuration at each size?",
    source=MI250_SOURCE,
    columns=columns(
        "task | search=strategy",
        Column("grid", lambda row: f"{row['grid']}, 15 %: {row['allowed']}"),
        _middle("mean_5_percent"),
        _middle("mean_2_percent"),
        _middle("all_sizes_5_percent"),
        _middle("all_sizes_2_percent"),
        Column("sizes within 5 % at 15 %", lambda row: f"{row['sizes_reached']} of {len(row['by_size'])}"),
        "reason",
    ),
    cases=_searches(TASKS, TUNING_STRATEGIES_SEEDS),
    quick=_searches(TASKS[1:], TUNING_STRATEGIES_QUICK_SEEDS),  # without the first task, which is the largest
    evaluate=lambda case: [_strategy_row(_task(*case[:2]), *case[2:])],
    plot=Chart(_strategy_points, "trials", "time over the best, mean over sizes", log=""),
)


_DATA = files("chorale.experiments") / "data"
FABRIC = "mi250half:2"
MI250_PROGRAMS = {
    "mi250-allgather": "amd_allgather_half_split_k1_inst1",
    "mi250-allreduce": "amd_allreduce_half_split_k1_inst2",
    "mi250-reduce-scatter": "amd_reduceScatter_half_split_k2_inst1",
}
"""Our name for a program -> name of its schedule in the record."""

BUFFERS_BYTES = (2**20, 2**18, 2**23)
SIZES_BYTES = tuple(4**power for power in range(6, 16))


@dataclass(frozen=True, slots=True)
class Mi250Run:
    """A recorded run of an in-place program, with the vector size, the size of connection buffers, and the time."""

    program: str
    buffer_bytes: int
    size_bytes: int
    time_us: float


def mi250_runs() -> tuple[Mi250Run, ...]:
    """Return recorded runs of our programs with three buffer sizes, at every other size from 4 KiB to 1 GiB."""
    table = mi250_table()
    made = {
        (one.origin.schedule, one.buffer_bytes): one
        for collective in table.collectives("mi250_8+8")
        for one in table.configurations("mi250_8+8", collective)
        if one.in_place
    }
    return tuple(
        Mi250Run(program, buffer_bytes, size_bytes, table.times_s(made[schedule, buffer_bytes], size_bytes)[0] * 1e6)
        for program, schedule in MI250_PROGRAMS.items()
        for buffer_bytes in BUFFERS_BYTES
        for size_bytes in SIZES_BYTES
    )


def mi250_program(name: str) -> Program:
    return lift(gzip.decompress((_DATA / f"{name}.xml.gz").read_bytes()))


FITTED_BUFFER_BYTES = 2**20
"""The model is fitted to runs with this buffer size only. Other runs test its predictions for other sizes."""
MAX_ERROR = 0.4
LARGE_BYTES, MAX_LARGE_ERROR = 2**28, 0.25

NOTICEABLE_ERROR = 0.1
SHORT_PIPELINE = "blind: few slices flow, and what a GPU does between receiving and sending is not in the model"
OTHER_BUFFERS = "blind: the cost of a loop over a buffer is taken as alpha, whatever the buffer"
SIMILAR_PROGRAMS = "the other two programs have equally many messages: they cannot tell overhead from the constant"


def _rows(fitted_only: bool) -> list[Row]:
    runs = [run for run in mi250_runs() if not fitted_only or run.buffer_bytes == FITTED_BUFFER_BYTES]
    observations = _observations(runs)
    fitted = [one for run, one in zip(runs, observations, strict=True) if run.buffer_bytes == FITTED_BUFFER_BYTES]
    everything = calibrate(fitted, "GB/s")
    without = {
        name: calibrate([one for one in fitted if one.program != name], "GB/s")
        for name in {run.program for run in runs}
    }
    return [_row(run, one, everything, without[run.program]) for run, one in zip(runs, observations, strict=True)]


def _observations(runs: Sequence[Mi250Run]) -> list[Observation]:
    topology = parse_topology(FABRIC)
    programs = {name: mi250_program(name) for name in sorted({run.program for run in runs})}
    known: dict[tuple[str, int], TimeTerms] = {}
    found = []
    for run in runs:
        program = programs[run.program]
        chunk_bytes = run.size_bytes / program.chunks
        loops, slices = buffer_splits(chunk_bytes, run.buffer_bytes)
        if (run.program, loops) not in known:
            known[run.program, loops] = TimeTerms.of(program, topology, loops, slices)
        found.append(Observation(run.program, known[run.program, loops], chunk_bytes, run.time_us / 1e6))
    return found


def _row(run: Mi250Run, one: Observation, everything: Calibration, without: Calibration) -> Row:
    """Return a row for `run` with the errors of two models: one fitted to all programs, one without this program."""
    predicted_us = everything.seconds(one) * 1e6
    error, unseen = predicted_us / run.time_us - 1, without.seconds(one) * 1e6 / run.time_us - 1
    is_large, reason = run.size_bytes >= LARGE_BYTES, None
    if abs(unseen) > MAX_ERROR >= abs(error):
        reason = SIMILAR_PROGRAMS
    elif abs(error) > NOTICEABLE_ERROR:
        reason = OTHER_BUFFERS if is_large else SHORT_PIPELINE
    return {
        "program": run.program,
        "buffer_bytes": run.buffer_bytes,
        "size_bytes": run.size_bytes,
        "measured_us": run.time_us,
        "predicted_us": predicted_us,
        "error": error,
        "unseen_error": unseen,
        "holds": abs(error) <= (MAX_LARGE_ERROR if is_large else MAX_ERROR),
        "reason": reason,
    }


MI250_PREDICTION = Experiment(
    name="mi250-prediction",
    question="How far are simulated times from those that MI250 GPUs took, with alpha, overhead and bandwidth fitted?",
    source=MI250_SOURCE,
    columns=columns(
        "program | buffer=buffer_bytes:bytes | size=size_bytes:bytes | measured us=measured_us:.1f",
        "predicted us=predicted_us:.1f | error=error:+.0% | not in the fit=unseen_error:+.0% | reason",
    ),
    cases=[False],  # whether to evaluate only the runs to which the model is fitted
    quick=[True],
    evaluate=_rows,
    plot=Chart(
        all_points(
            line_points("{program}", "buffer of {buffer_bytes} B, measured", "size_bytes", "measured_us"),
            line_points("{program}", "buffer of {buffer_bytes} B, predicted", "size_bytes", "predicted_us"),
        ),
        SIZE,
        "us",
    ),
)
