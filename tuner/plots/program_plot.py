"""Timelines of programs: predicted, executed, and with marked faults."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from chorale.runners.api.base import ExecutionTrace
from chorale.runners.api.units import format_size
from chorale.runners.measurement.critical_path import CriticalPath
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.programs.explanation import Explanation, Position
from chorale.synth.programs.plain_execution import logical_times
from chorale.synth.programs.plans.explanation import OperationTurn, PlanHistory, pieces_moved
from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Op, Program, ProgramViolation, chunks_moved
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.tuner.plots.charts import write_figure

MAX_LANES = 150
_BINS = 400
_COLOURS = {True: "#ea580c", False: "#2563eb"}
_MEANING = {True: "receiver adds it", False: "receiver stores it"}
_BAND_COLOURS = ("#f1f5f9", "white")
_NEVER = "#cbd5e1"
Painted = TypeVar("Painted", Patch, PolyCollection)
_KIND_COLOURS = {
    "sends": "#2563eb",
    "receives": "#16a34a",
    "receives and sends": "#0891b2",
    "works on memory": "#9333ea",
}


def _boxes(axes: Any, left: Any, right: Any, row: Any, colour: str | None, **style: Any) -> None:
    """Draw a box from each of `left` to each of `right` in its row; hatched without a colour, for what never happens.

    Boxes of one colour are one object of matplotlib, which takes milliseconds for each.
    """
    low = np.asarray(row) + 0.14
    corners = np.stack([left, low, right, low, right, low + 0.72, left, low + 0.72], axis=1).reshape(-1, 4, 2)
    axes.add_collection(_fill(PolyCollection(list(corners), zorder=3, **style), colour))


def _fill(patch: Painted, colour: str | None) -> Painted:
    """Fill `patch` with a colour, or hatch it if its instruction never completes."""
    patch.set_facecolor(colour or "white")
    if colour is None:
        patch.set_edgecolor(_NEVER)
        patch.set_hatch("///")
    return patch


def _name_ranks(axes: Any, places: Any, ranks: Iterable[int], fontsize: int = 8) -> None:
    axes.set_yticks(places, [f"rank {rank}" for rank in ranks], fontsize=fontsize)
    axes.spines[["top", "right"]].set_visible(False)


def lanes_of(trace: ProgramTrace) -> NDArray[np.int64]:
    """Return int64[lanes, 2], sorted: each rank and each of its blocks that sends."""
    return np.asarray(np.unique(np.stack([trace.src, trace.block], axis=1), axis=0), dtype=np.int64)


def draw_lanes(axes: Any, trace: ProgramTrace, lanes: NDArray[np.int64]) -> None:
    """Draw the messages of `trace` over microseconds, each in the lane of its block; `lanes` as of `lanes_of`."""
    most = lanes[:, 1].max(initial=0) + 1
    lane = np.searchsorted(lanes[:, 0] * most + lanes[:, 1], trace.src * most + trace.block)
    for adds, colour in _COLOURS.items():
        rows = np.flatnonzero(trace.adds == adds)
        start, left = trace.start_s[rows] * 1e6, trace.left_s[rows] * 1e6
        _boxes(axes, start, left, lane[rows], colour, edgecolors="white", linewidths=0.4)
    # Tell ranks apart by shade, and lanes by whom they send to
    ranks, first, count = np.unique(lanes[:, 0], return_index=True, return_counts=True)
    for index, (top, height) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        axes.axhspan(top, top + height, color=_BAND_COLOURS[index % 2], zorder=0)
    _name_ranks(axes, first + count / 2, ranks.tolist())
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(lanes), 0)
    if len(lanes) <= MAX_LANES // 2:
        _, example = np.unique(lane, return_index=True)
        for row, message in enumerate(example.tolist()):
            target = f"to {trace.dst[message]}"
            axes.annotate(target, (1.005, row + 0.5), xycoords=("axes fraction", "data"), fontsize=6, va="center")
    handles = [Patch(color=_COLOURS[adds], label=_MEANING[adds]) for adds in np.unique(trace.adds).tolist()]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)


def _used_bandwidth(
    trace: ProgramTrace, topology: Topology, unit_bytes_per_s: float, chunk_bytes: float
) -> NDArray[np.float64]:
    """Return float64[ranks, bins]: bytes that leave over bytes that could; messages are taken to leave evenly."""
    ranks, links = topology.compute_count, topology.links
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class]
    leaving = (links.src < ranks) & (links.src != links.dst)
    out = np.bincount(links.src[leaving], bandwidth[leaving], minlength=ranks) * unit_bytes_per_s
    edges = np.linspace(0, trace.end_s, _BINS + 1)
    begun, length = trace.start_s, np.maximum(trace.left_s - trace.start_s, 1e-15)
    sent = np.zeros((ranks, _BINS + 1))
    for column, edge in enumerate(edges.tolist()):
        part = np.clip((edge - begun) / length, 0, 1) * trace.chunks * chunk_bytes
        sent[:, column] = np.bincount(trace.src, part, minlength=ranks)
    return np.asarray(np.diff(sent, axis=1) / (out[:, None] * np.diff(edges)), dtype=np.float64)


_WRITTEN_NODES = 16
_NAMED_NODES = 40


def plot_program(
    program: AnyProgram, topology: Topology, network: NetworkModel, size_bytes: int, trace: ProgramTrace, path: Path
) -> None:
    """Draw `trace`, the simulation of `program` at `size_bytes`, into `path` (.png, .svg or .pdf).

    The same arguments give the same bytes. Raises InvalidInput for another extension.
    """
    lanes = len(lanes_of(trace))
    height = float(np.clip(0.14 * lanes, 4.5, 14)) if lanes <= MAX_LANES else 6.5
    figure = Figure(figsize=(15, height + 1), layout="constrained")
    time_us = trace.end_s * 1e6
    figure.suptitle(f"{program.name}: {format_size(size_bytes)} in {time_us:.5g} us (flow model)", fontsize=13)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    unit = float(network.unit_bytes_per_s(topology))
    left.set_xlim(0, max(time_us, 1e-9))
    left.set_xlabel("us")
    if lanes <= MAX_LANES:  # each sending block has a lane, labelled with where it sends
        draw_lanes(left, trace, lanes_of(trace))
    else:  # each rank has a row
        used = _used_bandwidth(trace, topology, unit, size_bytes / program.chunks)
        shape = (0, time_us, len(used), 0)
        image = left.imshow(used, aspect="auto", extent=shape, vmin=0, vmax=1, cmap="viridis", interpolation="none")
        ranks = np.arange(0, len(used), -(-len(used) // 32))
        _name_ranks(left, ranks + 0.5, ranks.tolist(), 7)
        scale = figure.colorbar(image, ax=left, location="bottom", shrink=0.6, aspect=40)
        scale.set_label("part of a rank's outgoing bandwidth in use")
    links, routes = topology.links, trace.routes
    of_route = np.bincount(trace.route, trace.chunks, minlength=len(routes))
    carried = np.bincount(routes.link_ids, np.repeat(of_route, np.diff(routes.offsets)), minlength=len(links))
    bandwidth = np.array([float(value) for value in links.bandwidths])[links.bandwidth_class] * unit
    _draw_heat(figure, right, topology, carried * size_bytes / program.chunks / bandwidth / trace.end_s)
    write_figure(figure, path, program.origin or program.name)


def _draw_heat(figure: Figure, axes: Any, topology: Topology, busy: NDArray[np.float64]) -> None:
    """Draw a cell for each pair of linked nodes: the busiest of their links."""
    links, nodes = topology.links, topology.node_count
    cells = np.full((nodes, nodes), np.nan)
    real = links.src != links.dst
    cells[links.src[real], links.dst[real]] = 0.0
    np.maximum.at(cells, (links.src[real], links.dst[real]), busy[real])
    image = axes.imshow(cells, vmin=0, vmax=1, cmap="YlOrRd", interpolation="none")
    axes.set(xlabel="to", ylabel="from")
    axes.set_anchor("N")
    if nodes <= _NAMED_NODES:
        turn = 90 if max(map(len, topology.node_ids)) > 2 else 0
        axes.set_xticks(range(nodes), topology.node_ids, rotation=turn, fontsize=7)
        axes.set_yticks(range(nodes), topology.node_ids, fontsize=7)
    if nodes <= _WRITTEN_NODES:
        for src, dst in np.argwhere(~np.isnan(cells)).tolist():
            colour = "white" if cells[src, dst] > 0.6 else "black"
            axes.text(dst, src, f"{cells[src, dst]:.2f}", ha="center", va="center", fontsize=7, color=colour)
    bar = figure.colorbar(image, ax=axes, location="top", shrink=0.6, aspect=30)
    bar.set_label("links: part of the time in use")


_WAITS, _WAIT_COLOUR = "waits for its first byte", "#cbd5e1"
_CRITICAL = "#dc2626"


def plot_execution(program: Program, measured: ExecutionTrace, predicted: ProgramTrace | None, path: Path) -> None:
    """Draw `measured` above `predicted` (if given) into `path` (.png, .svg or .pdf) with a common time axis.

    Each block of each rank has a lane; a red line is the critical path. The same arguments give the same bytes.
    Raises InvalidInput for another extension.
    """
    lanes = [(rank, block) for rank, part in enumerate(program.ranks) for block in range(len(part.blocks))]
    panels = 1 if predicted is None else 2
    figure = Figure(figsize=(14, panels * float(np.clip(0.09 * len(lanes), 3.5, 12)) + 1.5), layout="constrained")
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
    colours = {**_KIND_COLOURS, _WAITS: _WAIT_COLOUR}
    boxes: dict[str, list[tuple[float, float, int]]] = {name: [] for name in colours}
    for rank, rank_trace in enumerate(trace.ranks):
        for span in rank_trace.steps:
            row, moved_s = lanes[rank, span.block], max(span.start_s or span.ready_s, span.ready_s)
            boxes[_WAITS].append((span.ready_s * 1e6, moved_s * 1e6, row))
            kind = _instruction_kind(program.ranks[rank].blocks[span.block].instructions[span.step].op)
            boxes[kind].append((moved_s * 1e6, span.end_s * 1e6, row))
    for name, some in boxes.items():
        if some:
            begin, end, row_of = np.array(some).T
            _boxes(axes, begin, end, row_of, colours[name], linewidths=0)
    for one in CriticalPath(program, trace).segments():
        row = lanes[one.rank, one.block]
        axes.plot([one.begin_s * 1e6, one.end_s * 1e6], [row + 0.5] * 2, color=_CRITICAL, linewidth=1.2, zorder=4)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items() if boxes[name]]
    handles.append(Patch(color=_CRITICAL, label="critical path"))
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=6, frameon=False, fontsize=9)
    first = {rank: min(row for (one, _), row in lanes.items() if one == rank) for rank, _ in lanes}
    _name_ranks(axes, list(first.values()), first)
    axes.set_ylim(len(lanes), 0)


Lane = tuple[int, int]
"""Rank and block."""
Kind = Literal["sends", "receives", "receives and sends", "works on memory", "tells or waits"]

MAX_MOVES = 2**22
"""Chunks moved by all instructions, beyond which their turns are not worked out: some ten seconds."""


class InstructionBox(NamedTuple):
    """An instruction: number in its block, kind, and earliest turn (None if it is never reached)."""

    step: int
    kind: Kind
    turn: int | None


def timeline(program: AnyProgram, lanes: Sequence[Lane]) -> Mapping[Lane, list[InstructionBox]]:
    """Return the instructions of `lanes` in their order. For programs that move very many chunks, the position is the
    number in the block. O(chunks moved).
    """
    if isinstance(program, ExecutionPlan):
        if pieces_moved(program) <= MAX_MOVES:
            history = PlanHistory(program)
            history.run()
            turns = history.turns()
        else:
            turns = {}
            for rank, block in lanes:
                operations = enumerate(program.ranks[rank].blocks[block].operations)
                every = [(step, each) for step, operation in operations for each in operation.body or (operation,)]
                turns[rank, block] = [OperationTurn(step, each, at) for at, (step, each) in enumerate(every)]
        return {
            (rank, block): [InstructionBox(each.step, _kind_of(each.operation), each.at) for each in turns[rank, block]]
            for rank, block in lanes
        }
    assert isinstance(program, Program)
    times = logical_times(program) if chunks_moved(program) <= MAX_MOVES else {}
    found = {}
    for rank, block in lanes:
        items = program.ranks[rank].blocks[block].instructions
        done = times.get((rank, block), range(len(items)) if not times else ())
        found[rank, block] = [
            InstructionBox(k, _instruction_kind(each.op), done[k] if k < len(done) else None)
            for k, each in enumerate(items)
        ]
    return found


def _instruction_kind(op: Op) -> Kind:
    if op.sends and op.receives:
        return "receives and sends"
    return "sends" if op.sends else "receives" if op.receives else "works on memory"


def _kind_of(operation: Operation) -> Kind:
    """Return the kind of a plan's operation: one that writes to others sends, and one that reads from others or takes
    packets receives.
    """
    if not operation.action.moves:
        return "tells or waits"
    sends = any(each.buffer is None for each in operation.targets)
    receives = any(each.buffer is None for each in operation.sources)
    receives |= operation.action.takes_packets
    if sends and receives:
        return "receives and sends"
    return "sends" if sends else "receives" if receives else "works on memory"


MAX_DRAWN_LANES = 120
MAX_BOXES = 400  # of a lane
MAX_LISTED = 6
_PLAN_COLOURS = {**_KIND_COLOURS, "tells or waits": "#94a3b8"}
_FAULT, _BEHIND = "#dc2626", "#ea580c"


def plot_judged(
    program: AnyProgram,
    violations: Sequence[ProgramViolation],
    explained: Sequence[Explanation | None],
    title: str,
    path: Path,
) -> None:
    """Draw `program` into `path` (.png, .svg or .pdf), with numbered marks for `violations`.

    A red frame shows where a violation appears, an orange one what its explanation refers to. For programs with many
    blocks, only the affected ranks are drawn. The same arguments give the same bytes. Raises InvalidInput for another
    extension.
    """
    lanes = _lanes(program, violations, explained)
    lines = []
    for number, (violation, item) in enumerate(zip(violations[:MAX_LISTED], explained, strict=False), 1):
        text = violation.message if item is None else f"{violation.message}: {item.text}"
        lines += textwrap.wrap(f"{number} {violation.rule}: {text}", 170, subsequent_indent="    ")
    if len(violations) > MAX_LISTED:
        lines.append(f"and {len(violations) - MAX_LISTED} more")
    height = float(np.clip(0.22 * len(lanes), 2.5, 14))
    figure = Figure(figsize=(14, height + 1.4 + 0.2 * len(lines)), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots()
    boxes = timeline(program, lanes)
    last = _draw_instructions(axes, lanes, boxes)
    _draw_marks(axes, lanes, boxes, violations, explained)
    axes.set_xlim(-0.2, last + 1.2)
    axes.set_ylim(len(lanes), 0)
    names = [f"rank {rank} block {block}" for rank, block in lanes]
    axes.set_yticks(np.arange(len(lanes)) + 0.5, names, fontsize=7)
    axes.set_xlabel("earliest turn of an instruction", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour, label=name) for name, colour in _PLAN_COLOURS.items()]
    handles.append(_fill(Patch(label="never done"), None))
    handles += [
        Patch(facecolor="none", edgecolor=colour, linewidth=2, label=name)
        for colour, name in ((_FAULT, "wrong here"), (_BEHIND, "behind it"))
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(handles), frameon=False, fontsize=8
    )
    if lines:
        axes.set_xlabel("earliest turn of an instruction\n\n" + "\n".join(lines), loc="left", fontsize=9)
    write_figure(figure, path, program.name)


def _lanes(
    program: AnyProgram, violations: Sequence[ProgramViolation], explained: Sequence[Explanation | None]
) -> list[Lane]:
    """Return (rank, block) of each lane: all, or those of the affected ranks, as many as can be drawn."""
    lanes = [(rank, block) for rank, body in enumerate(program.ranks) for block in range(len(body.blocks))]
    if len(lanes) <= MAX_DRAWN_LANES:
        return lanes
    named = {violation.rank for violation in violations}
    named |= {position[0] for item in explained if item is not None for position in item.positions}
    return ([lane for lane in lanes if lane[0] in named] or lanes)[:MAX_DRAWN_LANES]


def _draw_instructions(axes: Any, lanes: Sequence[Lane], boxes: Mapping[Lane, list[InstructionBox]]) -> int:
    """Draw a box for each instruction of `lanes`, those that never come to their turn hatched; return the last turn."""
    places: dict[str | None, list[tuple[int, int]]] = {}
    for row, lane in enumerate(lanes):
        for number, box in enumerate(boxes[lane][:MAX_BOXES]):
            colour = None if box.turn is None else _PLAN_COLOURS[box.kind]
            places.setdefault(colour, []).append((_turn(boxes[lane], number), row))
    for colour, some in places.items():
        turns, rows = np.array(some).T
        _boxes(axes, turns, turns + 0.9, rows, colour, linewidths=0.5)
    return max((turn for some in places.values() for turn, _ in some), default=0)


def _turn(boxes: Sequence[InstructionBox], number: int) -> int:
    """Return when instruction `number` completes; if it never does, where to draw it after the completed ones of its
    block.
    """
    turn = boxes[number].turn
    if turn is not None:
        return turn
    done = [box.turn for box in boxes if box.turn is not None]
    return (done[-1] if done else -1) + 1 + number - len(done)


def _draw_marks(
    axes: Any,
    lanes: Sequence[Lane],
    boxes: Mapping[Lane, list[InstructionBox]],
    violations: Sequence[ProgramViolation],
    explained: Sequence[Explanation | None],
) -> None:
    row_of = {lane: row for row, lane in enumerate(lanes)}
    numbers: dict[Position, list[int]] = {}
    wrong: set[Position] = set()
    for number, (violation, item) in enumerate(zip(violations[:MAX_LISTED], explained, strict=False), 1):
        behind = list(item.positions) if item is not None else []
        named = violation.rank, violation.block, violation.step
        shown = [named] if None not in named else behind[:1]  # the instruction that it names, if it names one
        wrong |= set(shown)  # type: ignore[arg-type]  # none of them is None, as just checked
        for position in dict.fromkeys([*behind, *shown]):
            numbers.setdefault(position, []).append(number)
    for position, listed in numbers.items():
        rank, block, step = position
        drawn = [number for number, box in enumerate(boxes.get((rank, block), ())[:MAX_BOXES]) if box.step == step]
        if drawn:
            turn, row = _turn(boxes[rank, block], drawn[0]), row_of[rank, block]
            colour = _FAULT if position in wrong else _BEHIND
            corner = (turn, row + 0.06)
            axes.add_patch(Rectangle(corner, 0.9, 0.88, facecolor="none", edgecolor=colour, linewidth=2.2, zorder=4))
            text = ", ".join(map(str, listed))
            axes.annotate(text, (turn + 0.45, row + 0.5), ha="center", va="center", fontsize=8, color="black", zorder=5)
