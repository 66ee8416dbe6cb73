"""A program with its faults: every instruction at its earliest turn, and marks on those that a verdict names."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from chorale.synth.programs.explanation import Explanation, Position
from chorale.synth.programs.plain_execution import logical_times
from chorale.synth.programs.plans.explanation import OperationTurn, PlanHistory, pieces_moved
from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Op, Program, ProgramViolation, chunks_moved
from chorale.tuner.plots.charts import write_figure

Lane = tuple[int, int]
"""Rank and block."""
Kind = Literal["sends", "receives", "receives and sends", "works on memory", "tells or waits"]

MAX_MOVES = 2**22
"""Chunks moved by all instructions, beyond which their turns are not worked out: some ten seconds."""


class InstructionBox(NamedTuple):
    """An instruction: its number in the block, what it does, and its earliest turn, None where it never comes to it."""

    step: int
    kind: Kind
    turn: int | None


def timeline(program: AnyProgram, lanes: Sequence[Lane]) -> Mapping[Lane, list[InstructionBox]]:
    """Return the instructions of `lanes` in their order. Of programs that move very many chunks each stands at its
    place in its block. O(chunks moved)."""
    if isinstance(program, ExecutionPlan):
        return _of_plan(program, lanes)
    assert isinstance(program, Program)
    times = logical_times(program) if chunks_moved(program) <= MAX_MOVES else {}
    found = {}
    for rank, block in lanes:
        items = program.ranks[rank].blocks[block].instructions
        done = times.get((rank, block), range(len(items)) if not times else ())
        found[rank, block] = [
            InstructionBox(k, _kind(each.op), done[k] if k < len(done) else None) for k, each in enumerate(items)
        ]
    return found


def _of_plan(plan: ExecutionPlan, lanes: Sequence[Lane]) -> Mapping[Lane, list[InstructionBox]]:
    if pieces_moved(plan) <= MAX_MOVES:
        history = PlanHistory(plan)
        history.run()
        turns = history.turns()
    else:
        turns = {lane: list(_in_order(plan, lane)) for lane in lanes}
    return {
        (rank, block): [InstructionBox(each.step, _kind_of(each.operation), each.at) for each in turns[rank, block]]
        for rank, block in lanes
    }


def _in_order(plan: ExecutionPlan, lane: Lane) -> Iterator[OperationTurn]:
    operations = plan.ranks[lane[0]].blocks[lane[1]].operations
    every = ((step, each) for step, operation in enumerate(operations) for each in operation.body or (operation,))
    return (OperationTurn(step, each, at) for at, (step, each) in enumerate(every))


def _kind(op: Op) -> Kind:
    if op.sends and op.receives:
        return "receives and sends"
    return "sends" if op.sends else "receives" if op.receives else "works on memory"


def _kind_of(operation: Operation) -> Kind:
    """Return what an operation of a plan does: it sends where it writes to others, and receives where it reads of them,
    or takes packets."""
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
_COLOURS = {"sends": "#2563eb", "receives": "#16a34a", "receives and sends": "#0891b2", "works on memory": "#9333ea"}
_COLOURS["tells or waits"] = "#94a3b8"
_NEVER = "#cbd5e1"
Painted = TypeVar("Painted", Patch, PolyCollection)
_FAULT, _BEHIND = "#dc2626", "#ea580c"


def plot_judged(
    program: AnyProgram,
    violations: Sequence[ProgramViolation],
    explained: Sequence[Explanation | None],
    title: str,
    path: Path,
) -> None:
    """Draw `program` into `path` (.png, .svg or .pdf), with numbered marks where `violations` say that it is wrong.

    A red frame is where a violation shows, an orange one what else its explanation names. Of programs with many blocks
    the ranks that are named are drawn. The same arguments give the same bytes. InvalidInput for another extension.
    """
    lanes = _lanes(program, violations, explained)
    lines = _listed(violations, explained)
    height = float(np.clip(0.22 * len(lanes), 2.5, 14))
    figure = Figure(figsize=(14, height + 1.4 + 0.2 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots()
    boxes = timeline(program, lanes)
    last = _draw_instructions(axes, lanes, boxes)
    _draw_marks(axes, lanes, boxes, violations, explained)
    _label(axes, lanes, last)
    if lines:
        axes.set_xlabel("earliest turn of an instruction\n\n" + "\n".join(lines), loc="left", fontsize=9)
    write_figure(figure, path, program.name)


def _lanes(
    program: AnyProgram, violations: Sequence[ProgramViolation], explained: Sequence[Explanation | None]
) -> list[Lane]:
    """Return rank and block of each lane: all, or those of the ranks that matter, as many as can be drawn."""
    lanes = [(rank, block) for rank, body in enumerate(program.ranks) for block in range(len(body.blocks))]
    if len(lanes) <= MAX_DRAWN_LANES:
        return lanes
    named = {violation.rank for violation in violations}
    named |= {position[0] for item in explained if item is not None for position in item.positions}
    return ([lane for lane in lanes if lane[0] in named] or lanes)[:MAX_DRAWN_LANES]


def _draw_instructions(axes: Any, lanes: Sequence[Lane], boxes: Mapping[Lane, list[InstructionBox]]) -> int:
    """Draw a box for each instruction of `lanes`, those that never come to their turn hatched; return the last turn.

    Boxes of one colour are one object of matplotlib, which takes milliseconds for each."""
    corners: dict[str | None, list[tuple[int, int]]] = {}
    for row, lane in enumerate(lanes):
        for number, box in enumerate(boxes[lane][:MAX_BOXES]):
            colour = None if box.turn is None else _COLOURS[box.kind]
            corners.setdefault(colour, []).append((_turn(boxes[lane], number), row))
    for colour, some in corners.items():
        outlines = [[(x, y + 0.12), (x + 0.9, y + 0.12), (x + 0.9, y + 0.88), (x, y + 0.88)] for x, y in some]
        axes.add_collection(_fill(PolyCollection(outlines, linewidths=0.5), colour))
    return max((turn for some in corners.values() for turn, _ in some), default=0)


def _fill(patch: Painted, colour: str | None) -> Painted:
    """Paint `patch`: in one colour, or hatched where its instruction is never done."""
    patch.set_facecolor(colour or "white")
    if colour is None:
        patch.set_edgecolor(_NEVER)
        patch.set_hatch("///")
    return patch


def _turn(boxes: Sequence[InstructionBox], number: int) -> int:
    """Return when instruction `number` is done, or where to draw it after those of its block that are done."""
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
        at = _position(violation) or (behind[0] if behind else None)
        wrong |= set() if at is None else {at}
        for position in dict.fromkeys([*behind, *([] if at is None else [at])]):
            numbers.setdefault(position, []).append(number)
    for (rank, block, step), named in numbers.items():
        drawn = [number for number, box in enumerate(boxes.get((rank, block), ())[:MAX_BOXES]) if box.step == step]
        if drawn:
            at_turn = _turn(boxes[rank, block], drawn[0]), row_of[rank, block]
            _mark(axes, at_turn, named, _FAULT if (rank, block, step) in wrong else _BEHIND)


def _position(violation: ProgramViolation) -> Position | None:
    """Return the instruction that `violation` names, if it names one."""
    if violation.rank is None or violation.block is None or violation.step is None:
        return None
    return violation.rank, violation.block, violation.step


def _mark(axes: Any, corner: tuple[int, int], numbers: Sequence[int], colour: str) -> None:
    turn, row = corner
    frame = Rectangle((turn, row + 0.06), 0.9, 0.88, facecolor="none", edgecolor=colour, linewidth=2.2, zorder=4)
    axes.add_patch(frame)
    text = ", ".join(map(str, numbers))
    axes.annotate(text, (turn + 0.45, row + 0.5), ha="center", va="center", fontsize=8, color="black", zorder=5)


def _label(axes: Any, lanes: Sequence[Lane], last: int) -> None:
    axes.set_xlim(-0.2, last + 1.2)
    axes.set_ylim(len(lanes), 0)
    names = [f"rank {rank} block {block}" for rank, block in lanes]
    axes.set_yticks(np.arange(len(lanes)) + 0.5, names, fontsize=7)
    axes.set_xlabel("earliest turn of an instruction", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
    handles.append(_fill(Patch(label="never done"), None))
    handles += [
        Patch(facecolor="none", edgecolor=colour, linewidth=2, label=name)
        for colour, name in ((_FAULT, "wrong here"), (_BEHIND, "behind it"))
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(handles), frameon=False, fontsize=8
    )


def _listed(violations: Sequence[ProgramViolation], explained: Sequence[Explanation | None]) -> list[str]:
    lines = []
    for number, (violation, item) in enumerate(zip(violations[:MAX_LISTED], explained, strict=False), 1):
        text = violation.message if item is None else f"{violation.message}: {item.text}"
        lines += textwrap.wrap(f"{number} {violation.rule}: {text}", 170, subsequent_indent="    ")
    if len(violations) > MAX_LISTED:
        lines.append(f"and {len(violations) - MAX_LISTED} more")
    return lines
