"""Draws networks, and schedules on networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.spatial import KDTree

from chorale.synth import InvalidInput, Topology, traffic_of
from chorale.synth.finder.cabling import Cabling
from chorale.synth.identity import rational_text
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import DataPath, data_paths
from chorale.tuner.files.home import require_plot_format
from chorale.tuner.plots.charts import write_figure
from chorale.tuner.plots.layout import Positions, node_positions

_CURVE_POINTS = 25
MAX_ARCS = 20_000
_WIDEST_UNIT_IN, _NARROWEST_IN = 0.8, 3.0
MAX_DRAWN_LINKS = 50_000
_LINK_COLOURS = ("#8795a8", "#15803d", "#7c3aed", "#db2777", "#0e7490", "#a16207", "#dc2626", "#111827")
_SHAPE = 1.5  # width over height of a picture that fits a screen
_AROUND_IN = 0.5  # space for a panel's title
_LOAD_COLOURS = "plasma_r"
_STEP_COLOURS = ("#1d4ed8", "#c026d3", "#ea580c", "#16a34a", "#0891b2", "#a16207", "#dc2626", "#4b5563")
COMPUTE_COLOUR = "#2b6cb0"
SWITCH_COLOUR = "#c05621"
ABLE_COLOUR = "#7b341e"
BEHIND_TEXT = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
_NODE_SHARE = 0.46  # diameter relative to the distance to the nearest node


@dataclass(frozen=True, slots=True)
class DrawnConnection:
    """A line in a drawing: `count` links of `bandwidth` each from src to dst and, unless `one_way`, as many back."""

    src: int
    dst: int
    bandwidth: Fraction
    count: int
    one_way: bool


def connections_of(topology: Topology) -> list[DrawnConnection]:
    """Return the connections to draw. Two opposite links become one connection; self-loops are left out."""
    counts: dict[tuple[int, int, Fraction], int] = defaultdict(int)
    for link in topology.links:
        if link.src != link.dst:
            counts[link.src, link.dst, link.bandwidth] += 1
    connections: list[DrawnConnection] = []
    for (src, dst, bandwidth), count in counts.items():
        back = counts.get((dst, src, bandwidth), 0)
        if src < dst and back:
            connections.append(DrawnConnection(src, dst, bandwidth, min(count, back), one_way=False))
        if count > back:
            connections.append(DrawnConnection(src, dst, bandwidth, count - back, one_way=True))
    return connections


def curves_of(connections: list[DrawnConnection], positions: Positions) -> list[Positions]:
    """Return float64[points, 2] for each connection, from src to dst.

    A connection is straight unless it must bend around a node or there are several between the same two nodes.
    """
    ends = np.array([(connection.src, connection.dst) for connection in connections])
    share = np.linspace(0.05, 0.95, 40)[None, :, None]
    points = positions[ends[:, 0]][:, None, :] * (1 - share) + positions[ends[:, 1]][:, None, :] * share
    distance, node = KDTree(positions).query(points, k=min(3, len(positions)))
    third = (node != ends[:, 0][:, None, None]) & (node != ends[:, 1][:, None, None])
    blocked: Positions = np.any(third & (distance < 0.25), axis=(1, 2))
    bends = np.where(blocked, 1.0, 0.0)
    groups: dict[frozenset[int], list[int]] = defaultdict(list)
    for index, connection in enumerate(connections):
        groups[frozenset((connection.src, connection.dst))].append(index)
    for members in groups.values():  # positive bends lie left of the line from the lower- to the higher-numbered node
        bends[members] += 0.44 * (np.arange(len(members)) - (len(members) - 1) / 2)
    curves = []
    along_curve = np.linspace(0.0, 1.0, _CURVE_POINTS)[:, None]
    for connection, bend in zip(connections, bends, strict=True):  # parabolas; a bend of 1 clears a row of nodes
        start, end = positions[connection.src], positions[connection.dst]
        along = end - start if connection.src < connection.dst else start - end
        length = float(np.hypot(*along))
        height = bend * min(0.32 + 0.03 * length, 0.4 * length)
        left = np.array([-along[1], along[0]]) / length
        straight = start * (1 - along_curve) + end * along_curve
        curves.append(straight + 4 * along_curve * (1 - along_curve) * height * left)
    return curves


def draw_nodes(axes: Any, topology: Topology, positions: Positions, unit_in: float) -> None:
    """Draw compute nodes as discs and switches as squares, with names if these are readable.

    Switches that can multicast or reduce data are drawn as diamonds. `unit_in`: inches per unit of `positions`.
    """
    diameter_pt = _NODE_SHARE * unit_in * 72
    compute, switches = positions[: topology.compute_count], positions[topology.compute_count :]
    style = {"s": diameter_pt**2, "linewidths": 0.08 * diameter_pt, "edgecolors": "white", "zorder": 4}
    axes.scatter(*compute.T, color=COMPUTE_COLOUR, **style)
    able = np.isin(np.arange(topology.compute_count, topology.node_count), list(topology.abilities))
    axes.scatter(*switches[~able].T, color=SWITCH_COLOUR, marker="s", **style)
    if able.any():
        axes.scatter(*switches[able].T, color=ABLE_COLOUR, marker="D", **style)
    axes.update_datalim(np.concatenate([positions.min(axis=0) - 0.4, positions.max(axis=0) + 0.4]).reshape(2, 2))
    axes.autoscale_view()
    if diameter_pt >= 9:
        # Write short names into the nodes, long ones below
        for name, (x, y) in zip(topology.node_ids, positions, strict=True):
            if len(name) <= 4:
                inside = {"ha": "center", "va": "center_baseline", "color": "white", "in_layout": False, "zorder": 5}
                axes.text(x, y, name, fontsize=min(9.0, diameter_pt * 0.95 / max(2, len(name))), **inside)
            else:
                below = {"ha": "center", "va": "top", "bbox": BEHIND_TEXT, "zorder": 5}
                axes.text(x, y - 0.66 * _NODE_SHARE, name[:14], fontsize=6.5, **below)


@dataclass(frozen=True, slots=True, eq=False)
class NetworkCanvas:
    """A network to draw: positions of nodes, and a curve for each connection.

    curves:  float64[points, 2] for each connection, from src to dst
    unit_in: inches per unit of the positions
    """

    topology: Topology
    connections: Sequence[DrawnConnection]
    positions: Positions
    curves: Sequence[Positions]
    unit_in: float

    @staticmethod
    def of(topology: Topology, connections: list[DrawnConnection], widest_in: float) -> NetworkCanvas:
        """Return a canvas for `topology` whose longer side is at most about `widest_in` inches."""
        places = node_positions(topology)
        curves = curves_of(connections, places)
        spread = np.ptp(np.concatenate([places, *curves]), axis=0) + 1.0
        return NetworkCanvas(
            topology, connections, places, curves, float(np.clip(widest_in / spread.max(), 0.05, _WIDEST_UNIT_IN))
        )

    @property
    def size_in(self) -> tuple[float, float]:
        spread = np.ptp(np.concatenate([self.positions, *self.curves]), axis=0) + 1.0
        width, height = np.clip(spread * self.unit_in, _NARROWEST_IN, None)
        return float(width), float(height)

    def draw(
        self, axes: Any, colours: Sequence[Any], widths: Sequence[float], headed: Sequence[int], head: float
    ) -> None:
        """Draw all connections (those in `headed` on top, with arrow heads of length `head`), then the nodes."""
        axes.set_aspect("equal")
        axes.axis("off")
        last = set(headed)
        order = sorted(range(len(self.curves)), key=last.__contains__)
        lines = LineCollection(
            [self.curves[number] for number in order],
            colors=[colours[number] for number in order],
            linewidths=[widths[number] for number in order],
            zorder=1,
        )
        axes.add_collection(lines, autolim=True)
        heads = []  # triangles at two thirds of the curves
        for number in headed:
            before, tip = self.curves[number][2 * _CURVE_POINTS // 3 - 1 : 2 * _CURVE_POINTS // 3 + 1]
            direction = (tip - before) / np.hypot(*(tip - before)) * head / 2
            side = np.array([-direction[1], direction[0]]) * 0.75
            heads.append(np.stack([tip + direction, tip - direction + side, tip - direction - side]))
        axes.add_collection(
            PolyCollection(heads, facecolors=[colours[number] for number in headed], zorder=2), autolim=False
        )
        draw_nodes(axes, self.topology, self.positions, self.unit_in)


def _arcs(topology: Topology) -> tuple[list[DrawnConnection], NDArray[np.int64]]:
    """Return one arc for each ordered pair of linked nodes, and the index of each link's arc (-1 for a self-loop)."""
    links = topology.links
    key = links.src.astype(np.int64) * topology.node_count + links.dst
    pairs = np.unique(key[links.src != links.dst])
    if len(pairs) > MAX_ARCS:
        value = f"{len(pairs)} in {topology.spec}"
        raise InvalidInput(f"a drawing must have at most {MAX_ARCS} pairs of linked nodes", value, "draw a part")
    of_link = np.where(links.src == links.dst, -1, np.searchsorted(pairs, key))
    ends = (divmod(pair, topology.node_count) for pair in pairs.tolist())
    return [DrawnConnection(src, dst, Fraction(1), 1, one_way=True) for src, dst in ends], of_link


def plot_topology(topology: Topology, path: Path) -> None:
    """Draw `topology`; save the picture to `path`, in the format of its extension. The file is reproducible.

    Raises InvalidInput for another extension, a folder that does not exist, or more than 50,000 links.
    """
    require_plot_format(path)
    if len(topology.links) > MAX_DRAWN_LINKS:
        value = f"{len(topology.links)} in {topology.spec}"
        raise InvalidInput(f"a drawing must have at most {MAX_DRAWN_LINKS} links", value, "draw a smaller network")
    connections = connections_of(topology)
    canvas = NetworkCanvas.of(topology, connections, 15.0)
    width_in, height_in = canvas.size_in
    title_pt = max(10.0, 1.2 * width_in)
    around_in = (3 * title_pt + 16 * (len(_legend(topology)) // 2)) / 72 + 0.3
    figure = Figure(figsize=(width_in, height_in + around_in), layout="constrained")
    axes = figure.add_subplot()
    spec = topology.spec if len(topology.spec) <= 50 else topology.spec[:47] + "…"
    count = topology.switch_count
    switches = f", {count} switch{'es' if count > 1 else ''}" if count else ""
    axes.set_title(f"{spec}\n{topology.compute_count} nodes{switches}, {len(topology.links)} links", fontsize=title_pt)
    colours = _colours(topology)
    thin = float(np.clip(2.0 * canvas.unit_in, 0.3, 1.4))
    canvas.draw(
        axes,
        [colours[connection.bandwidth] for connection in connections],
        [thin * min(connection.count, 5) ** 0.8 for connection in connections],
        [index for index, connection in enumerate(connections) if connection.one_way],
        0.2,
    )
    for connection, curve in zip(connections, canvas.curves, strict=True):
        if canvas.unit_in >= 0.4 and connection.count > 1:
            label, (x, y) = f"{connection.count}\N{MULTIPLICATION SIGN}", curve[_CURVE_POINTS * 3 // 8].tolist()
            axes.text(x, y, label, ha="center", va="center", fontsize=7, bbox=BEHIND_TEXT, zorder=3)
    if entries := _legend(topology):
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2}
        axes.legend(handles=entries, frameon=False, fontsize=8, **place)
    write_figure(figure, path, topology.id, dpi=150)


def plot_cabling(topology: Topology, cabling: Cabling, path: Path) -> None:
    """Draw the cables of `cabling`; save the picture to `path`. If some cables exist already, new ones are coloured."""
    hosts, kept = cabling.hosts, {frozenset(cable) for cable in cabling.kept}
    named = replace(topology, node_ids=hosts)
    canvas = NetworkCanvas.of(named, connections_of(named), 6.0)
    width_in, height_in = canvas.size_in
    figure = Figure(figsize=(width_in, height_in + 0.5), layout="constrained")
    axes = figure.add_subplot()
    stays = [frozenset((hosts[one.src], hosts[one.dst])) in kept for one in canvas.connections]
    counts = f"{len(cabling.kept)} cables stay, {len(cabling.added)} are new, {len(cabling.removed)} go"
    title = counts if kept else f"{len(cabling.added)} cables"
    axes.set_title(f"{topology.spec}: {title}", fontsize=10, wrap=True)
    colours = [_LINK_COLOURS[0] if stay or not kept else _LINK_COLOURS[3] for stay in stays]
    headed = [index for index, one in enumerate(canvas.connections) if one.one_way]
    canvas.draw(axes, colours, [1.2] * len(stays), headed, 0.2)
    write_figure(figure, path, topology.id, dpi=150)


def _legend(topology: Topology) -> list[Line2D]:
    entries = []
    if topology.switch_count:
        entries.append(Line2D([], [], marker="o", ls="none", ms=8, color=COMPUTE_COLOUR, label="compute node"))
        entries.append(Line2D([], [], marker="s", ls="none", ms=8, color=SWITCH_COLOUR, label="switch"))
    if topology.abilities:
        label = "switch that multicasts or adds"
        entries.append(Line2D([], [], marker="D", ls="none", ms=7, color=ABLE_COLOUR, label=label))
    colours = _colours(topology)
    if len(colours) > 1 or topology.bandwidth_unit != "link":
        unit = "link capacities" if topology.bandwidth_unit == "link" else topology.bandwidth_unit
        for bandwidth, colour in list(colours.items())[: len(_LINK_COLOURS)]:
            entries.append(Line2D([], [], color=colour, linewidth=2, label=f"{rational_text(bandwidth)} {unit}"))
    return entries


def _colours(topology: Topology) -> dict[Fraction, str]:
    """Return a colour for each bandwidth. If there are more than eight, the largest ones share a colour."""
    last = len(_LINK_COLOURS) - 1
    return {bandwidth: _LINK_COLOURS[min(index, last)] for index, bandwidth in enumerate(topology.links.bandwidths)}


def plot_schedule(schedule: Schedule, rank: int, path: Path) -> None:
    """Draw link loads, steps and the paths of `rank`'s data in `schedule`; save the picture (.png, .svg or .pdf).

    The file is reproducible byte for byte. Raises InvalidInput for another extension or a network that is too large.
    """
    traffic, links = traffic_of(schedule), schedule.topology.links
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class]
    amounts = np.array([traffic.link_amounts(step) for step in traffic.steps]).reshape(-1, len(links))
    arcs, arc_of_link = _arcs(schedule.topology)
    canvas = NetworkCanvas.of(schedule.topology, arcs, 7.5)
    busy = np.asarray(amounts / (bandwidth * traffic.denominator), dtype=np.float64)
    paths = data_paths(schedule, rank)
    shown = paths[:7]
    has_steps = schedule.kind == "stepped" and len(busy) > 1
    count = 1 + has_steps + len(shown)
    width, height = canvas.size_in
    # Choose the number of columns that gives the picture about the shape of a screen
    shapes = {
        columns: columns * width / (-(-count // columns) * (height + _AROUND_IN)) for columns in range(1, count + 1)
    }
    columns = min(shapes, key=lambda columns: abs(float(np.log(shapes[columns] / _SHAPE))))
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * (height + _AROUND_IN) + 1.5), layout="constrained")
    figure.suptitle(f"{schedule.collective.name.value} {schedule.method} on {schedule.topology.spec}", fontsize=13)
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in all_axes[count:]:
        axes.axis("off")
    _draw_loads(all_axes[0], canvas, arc_of_link, busy.sum(axis=0))
    if has_steps:
        _draw_steps(all_axes[1], busy)
    for axes, data_path, title in zip(all_axes[1 + has_steps :], shown, _titles(schedule, paths, rank), strict=False):
        step = np.full(len(arcs), -1)
        for edge, route in zip(data_path.step.tolist()[::-1], data_path.route.tolist()[::-1], strict=True):
            step[arc_of_link[schedule.routes.path(route)]] = edge
        axes.set_title(title, fontsize=10)
        _draw_used(axes, canvas, [_colour(depth) for depth in step.tolist()], step >= 0)
    # Add a legend for the steps' colours and a colour bar for loads
    scale = ScalarMappable(Normalize(-1 / 9, 1), mpl.colormaps[_LOAD_COLOURS])
    bar = figure.colorbar(scale, ax=all_axes.tolist(), location="bottom", shrink=0.5, aspect=40, pad=0.02)
    bar.ax.set_xlim(0, 1)
    bar.set_label("time for which a link is busy, as a part of that of the busiest", fontsize=9)
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(data_path.step for data_path in shown)])).tolist()
    word = "step" if schedule.kind == "stepped" else "depth"
    lines = [Line2D([], [], color=_colour(step), lw=2, label=f"{word} {step + 1}") for step in used]
    figure.legend(handles=lines[: 2 * len(_STEP_COLOURS)], loc="outside lower center", ncols=8, frameon=False)
    write_figure(figure, path, schedule.id)


def _draw_loads(axes: Any, canvas: NetworkCanvas, arc_of_link: NDArray[np.int64], busy: NDArray[np.float64]) -> None:
    part = busy / max(float(busy.max(initial=0.0)), 1e-300)
    idle = int((part == 0).sum())
    least = float(part[part > 0].min(initial=1.0))
    evenness = (
        "all links equally loaded" if least > 1 - 1e-9 else f"links: the least loaded has {least:.0%} of the most"
    )
    axes.set_title(f"{evenness}{f', {idle} of {len(part)} idle' if idle else ''}", fontsize=10)
    of_arcs = np.zeros(len(canvas.curves))  # each arc shows the busiest of its parallel links
    real = arc_of_link >= 0
    np.maximum.at(of_arcs, arc_of_link[real], part[real])
    _draw_used(axes, canvas, list(mpl.colormaps[_LOAD_COLOURS](0.1 + 0.9 * of_arcs)), of_arcs > 0)


def _draw_steps(axes: Any, busy: NDArray[np.float64]) -> None:
    """Draw two bars per step: how long the step's busiest and its average link are busy, relative to the total time."""
    steps, whole = np.arange(1, len(busy) + 1), busy.max(axis=1).sum()
    axes.bar(steps, busy.max(axis=1) / whole, width=0.75, color="#c7d2fe", label="busiest link")
    axes.bar(steps, busy.mean(axis=1) / whole, width=0.4, color="#3730a3", label="mean of all links")
    axes.set_title("share of each step in the bandwidth time", fontsize=10)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)


def _titles(schedule: Schedule, paths: Sequence[DataPath], rank: int) -> Iterator[str]:
    whose = schedule.collective.root if schedule.collective.is_rooted else rank
    for number, data_path in enumerate(paths, 1):
        what = f"sums for rank {whose}" if data_path.reduces else f"data of rank {whose}"
        if schedule.kind == "stepped":
            yield f"{what}, by step"
        else:
            yield f"tree {number} of {len(paths)}: {'all' if data_path.share == 1 else data_path.share} of the {what}"


def _draw_used(axes: Any, canvas: NetworkCanvas, colours: Sequence[Any], used: NDArray[np.bool_]) -> None:
    wide = float(np.clip(3.2 * canvas.unit_in, 0.6, 2.4))
    shown = [colour if is_used else "0.86" for colour, is_used in zip(colours, used.tolist(), strict=True)]
    widths = np.where(used, wide, 0.5 * wide).tolist()
    canvas.draw(axes, shown, widths, np.flatnonzero(used).tolist(), 0.26)


def _colour(step: int) -> str:
    return _STEP_COLOURS[step % len(_STEP_COLOURS)]
