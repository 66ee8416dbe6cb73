"""ForestColl's figure 9: a tree on two boxes of A100 GPUs, and why a ring, which looks much the same, is slower."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from chorale.experiments.framework.comparison import Interval, judge, short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology

BOXES = (2, 4, 8, 16)
_QUICK_BOXES = 4
GPUS = 8
"""Of a box; rank r is in box r // 8."""
_SHARDS, _TIMES = "shards over InfiniBand each way", "T_B of a ring over T_B of trees"
_PRINTED_OVER, _PRINTED_OF_RING, _PRINTED_OF_TREES = "1.625", "15", "8"
_LOWER = (
    "the figure's trees are two paths, one in each box; ours cross over once too, and are as low as they can be, "
    "which costs nothing where an NVSwitch joins all GPUs of a box"
)
_NOT_PRINTED = "not in the paper: from four boxes on the links between them decide, for both"


def _cases(quick: bool) -> Sequence[tuple[str, int]]:
    """Return what is asked, and of how many boxes."""
    boxes = [count for count in BOXES if not quick or count <= _QUICK_BOXES]
    return [(_SHARDS, BOXES[0]), *((_TIMES, count) for count in boxes)]


def _rows(case: tuple[str, int]) -> list[Row]:
    asked, boxes = case
    spec = f"a100:{boxes}"
    if asked == _SHARDS:
        return _shard_rows(spec)
    return [_row(spec, _TIMES, _over(spec), _PRINTED_OVER if boxes == BOXES[0] else None)]


def _shard_rows(spec: str) -> list[Row]:
    ring, tree = _made(spec, "ring"), _made(spec, "forest", 1)
    return [
        _row(spec, f"{_SHARDS}, ring", _shards_out_of_a_box(ring), _PRINTED_OF_RING),
        {
            **_row(spec, "the same, one tree per root", _shards_out_of_a_box(tree), _PRINTED_OF_TREES),
            "reason": _LOWER,
            "tree": _edges_of_the_first_tree(tree),
        },
    ]


def _made(spec: str, method: str, k: int | None = None) -> Schedule:
    options = Options(k=k)
    return synthesize(method, parse_topology(spec), ALLGATHER, options, SerialExecutor()).schedule.expand()


def _over(spec: str) -> Fraction:
    topology, executor = parse_topology(spec), SerialExecutor()
    ring, trees = (synthesize(method, topology, ALLGATHER, None, executor).cost for method in ("ring", "forest"))
    return ring.time_per_byte / trees.time_per_byte


def _shards_out_of_a_box(schedule: Schedule) -> Fraction:
    """Return how many shards go from a GPU of the first box to one of another, each as often as it does."""
    leave = (schedule.src // GPUS == 0) & (schedule.dst // GPUS != 0)
    rows = schedule.transfers
    length = rows.hi.astype(np.int64) - rows.lo
    return Fraction(int(length[leave].sum()), schedule.chunks_per_shard)


def _edges_of_the_first_tree(schedule: Schedule) -> list[list[int]]:
    """Return [from, to] for every transfer of the shard of rank 0, by level."""
    rows = np.flatnonzero(schedule.transfers.shard == 0)
    rows = rows[np.argsort(schedule.transfers.step[rows], kind="stable")]
    return [[int(schedule.src[row]), int(schedule.dst[row])] for row in rows]


def _row(spec: str, quantity: str, ours: Fraction, printed: str | None) -> Row:
    verdict = None if printed is None else judge(printed, Interval.exactly(ours))
    return {
        "nodes": parse_topology(spec).compute_count,
        "spec": spec,
        "quantity": quantity,
        "printed": printed,
        "ours": str(ours),
        "verdict": verdict,
        "reason": _NOT_PRINTED if printed is None else None,
        "holds": verdict in (None, "match"),
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.forestcoll.plots import plot_tree_and_rings  # noqa: PLC0415 (matplotlib is slow)

    over = [(row["nodes"], float(Fraction(row["ours"]))) for row in rows if "T_B" in row["quantity"]]
    plot_tree_and_rings(next(row["tree"] for row in rows if "tree" in row), GPUS, over, path)


EXPERIMENT = Experiment(
    name="forestcoll-figure-9",
    question="How often do trees and a ring cross between boxes of A100 GPUs, and what does it cost?",
    source="Zhao et al., ForestColl, section 5.3 and figure 9, which draws one tree; all counts and ratios are exact",
    columns=(
        Column("nodes", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("quantity", lambda row: str(row["quantity"])),
        Column("printed", lambda row: row["printed"] or ""),
        Column("ours", lambda row: short_text(Fraction(row["ours"]))),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
