"""A picture of what the finder found: steps against bandwidth time, and what no topology can reach."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from chorale.synth.finder.find import FinderResult, FrontierPoint
from chorale.tuner.plots.figure_file import write_figure

_SHADE = "0.88"


def plot_frontier(findings: FinderResult, path: Path) -> None:
    """Write the frontier of `findings` to `path` (.png, .svg or .pdf), the impossible region in grey.

    The same findings give the same bytes. Raises InvalidInput for another extension.
    """
    write_figure(_figure(findings), path, "frontier")


def _figure(findings: FinderResult) -> Figure:
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    query = findings.query
    kind = "bidirectional, " if query.bidirectional else ""
    axes.set_title(f"{query.nodes} nodes, {kind}degree {query.degree}: Pareto frontier")
    _draw_rows(axes, findings.frontier)
    _shade_bounds(axes, query.least_steps, float(query.least_bandwidth_factor))
    axes.set(xlabel="steps T_L", ylabel="bandwidth time T_B in M/B")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    return figure


def _draw_rows(axes: Axes, rows: tuple[FrontierPoint, ...]) -> None:
    steps = [row.candidate.steps for row in rows]
    factors = [float(row.candidate.bandwidth_factor) for row in rows]
    axes.step(steps, factors, where="post", color="tab:blue", linewidth=1, zorder=2)
    axes.scatter(steps, factors, color="tab:blue", zorder=3, label="found")
    for row, x, y in zip(rows, steps, factors, strict=True):
        label = f"{row.candidate.method} {row.candidate.spec}"
        axes.annotate(label, (x, y), xytext=(6, 6), textcoords="offset points", fontsize=8)


def _shade_bounds(axes: Axes, least_steps: int, least_factor: float) -> None:
    """Shade what lies left of the Moore bound and below the bandwidth bound, with room around the points."""
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    width, height = max(right - left, 4), max(top - bottom, 0.2)
    left, right = least_steps - 0.15 * width, max(right, least_steps) + 0.6 * width
    bottom, top = least_factor - 0.15 * height, max(top, least_factor) + 0.25 * height
    axes.axvspan(left, least_steps, color=_SHADE, zorder=0)
    axes.axhspan(bottom, least_factor, color=_SHADE, zorder=0, label="impossible")
    axes.scatter([least_steps], [least_factor], marker="*", color="black", s=110, zorder=4, label="both bounds")
    axes.set(xlim=(left, right), ylim=(bottom, top))
