"""Pictures of a launch: a PNG of bandwidths by method and of the search, and SVG elements for its HTML report."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.runners.api.units import format_size
from chorale.runners.measurement.driver import LinkLimit
from chorale.runners.measurement.precision import MedianInterval
from chorale.tuner.trials.records import CompleteTrial


def campaign_png(trials: Sequence[CompleteTrial], title: str, limit: LinkLimit | None = None) -> bytes:
    """Return a PNG of the complete `trials` of one launch (at least one); `limit` is drawn as the roof."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    bandwidth, history = figure.subplots(1, 2)
    figure.suptitle(title)
    _draw_bandwidth(bandwidth, trials, limit)
    _draw_history(history, trials)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()


def _draw_bandwidth(axes: Axes, trials: Sequence[CompleteTrial], limit: LinkLimit | None) -> None:
    """Draw algbw against size, for each method the best trial of each size, the baselines, and what links allow."""
    sizes = [size.size_bytes for size in trials[0].sizes]
    for method in sorted({trial.candidate.method for trial in trials}):
        of_method = [trial for trial in trials if trial.candidate.method == method]
        best = [max(trial.sizes[index].algbw_gb_per_s for trial in of_method) for index in range(len(sizes))]
        axes.plot(sizes, best, marker="o", label=method)
    baseline = [
        max(trial.sizes[index].algbw_gb_per_s / trial.sizes[index].speedup for trial in trials)
        for index in range(len(sizes))
    ]
    axes.plot(sizes, baseline, marker="s", linestyle="--", color="grey", label="baseline")
    if limit is not None:
        axes.axhline(1e-9 / limit.seconds_per_byte, linestyle=":", color="black", label="the links allow")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="size of the vector", ylabel="algbw (GB/s)", title="best of each method")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")


def _draw_history(axes: Axes, trials: Sequence[CompleteTrial]) -> None:
    """Draw the objective of every trial and the best so far."""
    trials = sorted(trials, key=lambda trial: trial.number)
    numbers = [trial.number for trial in trials]
    speedups = [trial.speedup for trial in trials]
    best = [max(speedups[: index + 1]) for index in range(len(speedups))]
    axes.scatter(numbers, speedups, s=18, label="trial")
    axes.step(numbers, best, where="post", color="tab:green", label="best so far")
    axes.axhline(1, linestyle="--", color="grey", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="trial", ylabel="speed-up over the baseline", title="geometric mean over sizes")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


Speedups = Mapping[int, MedianInterval]
"""Size in bytes -> speed-up over the fastest baseline, with its interval."""


def speedup_svg(speedups: Speedups) -> str:
    """Return the speed-up of the tuning table at each size, with intervals."""
    figure, axes = _figure()
    sizes = list(speedups)
    medians = [interval.median for interval in speedups.values()]
    below = [max(0.0, interval.median - interval.low) for interval in speedups.values()]
    above = [max(0.0, interval.high - interval.median) for interval in speedups.values()]
    axes.errorbar(sizes, medians, yerr=[below, above], marker="o", capsize=4)
    axes.axhline(1, linestyle="--", color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_size(size) for size in sizes], rotation=30)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="size of the vector", ylabel="times faster than the best baseline")
    return _svg(figure, "speedup")


def history_svg(trials: Sequence[CompleteTrial], started_unix_s: float) -> str:
    """Return the speed-up of every trial over the minutes since the launch began, and the best so far."""
    figure, axes = _figure()
    ended = sorted(trials, key=lambda trial: trial.started_unix_s + trial.seconds)
    minutes = [(trial.started_unix_s + trial.seconds - started_unix_s) / 60 for trial in ended]
    speedups = [trial.speedup for trial in ended]
    best = [max(speedups[: index + 1]) for index in range(len(speedups))]
    axes.scatter(minutes, speedups, s=18, label="trial")
    axes.step(minutes, best, where="post", color="tab:green", label="best so far")
    axes.axhline(1, linestyle="--", color="grey", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="minutes since the launch", ylabel="speed-up, geometric mean over sizes")
    axes.legend(loc="lower right")
    return _svg(figure, "history")


def importance_svg(importances: Mapping[str, float]) -> str:
    """Return how much each parameter mattered, the most important on top."""
    figure, axes = _figure()
    names = list(importances)[::-1]
    axes.barh(names, [importances[name] for name in names])
    axes.set(xlabel="how much it decides whether a trial is among the best", xlim=(0, 1))
    return _svg(figure, "importance")


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _svg(figure: Figure, salt: str) -> str:
    """Return the element without the head of an XML file; `salt` keeps ids of several pictures in a page apart."""
    content = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    return text[text.index("<svg") :]
