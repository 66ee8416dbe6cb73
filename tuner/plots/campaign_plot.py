"""A picture of a campaign: what each method reached per size, and how the search went."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chorale.runners.api.units import format_size
from chorale.tuner.campaigns.records import CompleteTrial


def campaign_png(trials: Sequence[CompleteTrial], title: str) -> bytes:
    """Return a PNG of the complete `trials` of one launch (at least one)."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    bandwidth, history = figure.subplots(1, 2)
    figure.suptitle(title)
    _draw_bandwidth(bandwidth, trials)
    _draw_history(history, trials)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()


def _draw_bandwidth(axes: Axes, trials: Sequence[CompleteTrial]) -> None:
    """Draw algbw against size, for each method the best trial of each size, and the baselines beside it."""
    sizes = [size.size_bytes for size in trials[0].sizes]
    for method in sorted({trial.candidate.method for trial in trials}):
        own = [trial for trial in trials if trial.candidate.method == method]
        best = [max(trial.sizes[index].algbw_gb_per_s for trial in own) for index in range(len(sizes))]
        axes.plot(sizes, best, marker="o", label=method)
    baseline = [
        max(trial.sizes[index].algbw_gb_per_s / trial.sizes[index].speedup for trial in trials)
        for index in range(len(sizes))
    ]
    axes.plot(sizes, baseline, marker="s", linestyle="--", color="grey", label="baseline")
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
