"""An execution as a timeline, beside what the simulation predicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from chorale.runners.api.base import ExecutionTrace
from chorale.runners.api.units import format_size
from chorale.runners.measurement.critical_path import CriticalPath, PathSegment
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.programs.program import Op, Program
from chorale.tuner.plots.charts import write_figure
from chorale.tuner.plots.program_plot import draw_lanes, lanes_of

_COLOURS = {
    "sends": "#2563eb",
    "receives": "#16a34a",
    "works on memory": "#9333ea",
    "waits for its first byte": "#cbd5e1",
}
_CRITICAL = "#dc2626"


def plot_execution(program: Program, measured: ExecutionTrace, predicted: ProgramTrace | None, path: Path) -> None:
    """Draw `measured` above `predicted`, if there is any, into `path` (.png, .svg or .pdf), on one axis of time.

    Each block of each rank has a lane; a red line is the critical path. The same arguments give the same bytes.
    Raises InvalidInput for another extension.
    """
    lanes = [(rank, block) for rank, part in enumerate(program.ranks) for block in range(len(part.blocks))]
    panels = 1 if predicted is None else 2
    figure = Figure(figsize=(14, panels * float(np.clip(0.09 * len(lanes), 3.5, 12)) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, *below = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _draw_measured(above, program, measured, {lane: row for row, lane in enumerate(lanes)})
    above.set_title(f"measured: {measured.time_s * 1e6:.5g} us", loc="left")
    for axes in below:
        assert predicted is not None
        draw_lanes(axes, predicted, lanes_of(predicted))
        axes.set_title(f"predicted, links alone: {predicted.end_s * 1e6:.5g} us", loc="left")
    (above, *below)[-1].set_xlabel("us")
    above.set_xlim(0, max(measured.time_s, 0.0 if predicted is None else predicted.end_s) * 1e6)
    figure.suptitle(f"{program.name}: {format_size(measured.size_bytes)}", fontsize=13)
    write_figure(figure, path, program.origin or program.name)


def _draw_measured(axes: Any, program: Program, trace: ExecutionTrace, lanes: dict[tuple[int, int], int]) -> None:
    boxes: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in _COLOURS}
    for name, lane, begin_s, end_s in _boxes(program, trace):
        low, left, right = lanes[lane] + 0.14, begin_s * 1e6, end_s * 1e6
        boxes[name].append([(left, low), (right, low), (right, low + 0.72), (left, low + 0.72)])
    for name, corners in boxes.items():
        axes.add_collection(PolyCollection(corners, facecolors=_COLOURS[name], linewidths=0, zorder=3))
    for one in CriticalPath(program, trace).segments():
        _draw_segment(axes, one, lanes)
    handles = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
    handles.append(Patch(color=_CRITICAL, label="critical path"))
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=5, frameon=False, fontsize=9)
    first = {rank: min(row for (one, _), row in lanes.items() if one == rank) for rank, _ in lanes}
    axes.set_yticks(list(first.values()), [f"rank {rank}" for rank in first], fontsize=8)
    axes.set_ylim(len(lanes), 0)
    axes.spines[["top", "right"]].set_visible(False)


def _boxes(program: Program, trace: ExecutionTrace) -> Iterator[tuple[str, tuple[int, int], float, float]]:
    """Yield (what, lane, begin, end) of what each block did."""
    for rank, rank_trace in enumerate(trace.ranks):
        for span in rank_trace.steps:
            moved_s = max(span.start_s or span.ready_s, span.ready_s)
            yield "waits for its first byte", (rank, span.block), span.ready_s, moved_s
            op = program.ranks[rank].blocks[span.block].instructions[span.step].op
            yield _kind(op), (rank, span.block), moved_s, span.end_s


def _kind(op: Op) -> str:
    if op.receives:
        return "receives"
    return "sends" if op.sends else "works on memory"


def _draw_segment(axes: Any, one: PathSegment, lanes: dict[tuple[int, int], int]) -> None:
    row = lanes[one.rank, one.block] + 0.5
    axes.plot([one.begin_s * 1e6, one.end_s * 1e6], [row, row], color=_CRITICAL, linewidth=1.2, zorder=4)
