"""ForestColl's table 2: what MI250 GPUs took, by the record of the runs, and what our model predicts for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from chorale.experiments.framework.comparison import Interval, judge
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.references import fit_two_points, predicted_gbps
from chorale.runners.api.units import format_size
from chorale.runners.recorded.table import MI250_SOURCE, mi250_table
from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.congestion import Congestion, congestion_of
from chorale.synth.topology.spec import parse_topology

SIZES = (2**20, 2**24, 2**27, 2**30)
FABRICS = {"mi250_8+8": "mi250half:2", "mi250_16+16": "mi250:2"}
_PRINTED: Mapping[tuple[str, str, str], tuple[str, ...]] = {
    ("mi250_8+8", "allgather", "ForestColl"): ("12.8", "70.8", "111", "121"),
    ("mi250_8+8", "allgather", "TACCL"): ("10.7", "54.9", "78.8", "84.7"),
    ("mi250_8+8", "reduce_scatter", "ForestColl"): ("12.9", "64.8", "99.5", "109"),
    ("mi250_8+8", "allreduce", "ForestColl"): ("7.46", "39.5", "57.7", "61.4"),
    ("mi250_16+16", "allgather", "ForestColl"): ("9.3", "69.8", "152", "174"),
    ("mi250_16+16", "allgather", "TACCL"): ("9.73", "54.4", "96.5", "108"),
    ("mi250_16+16", "reduce_scatter", "ForestColl"): ("9.75", "68.8", "146", "177"),
    ("mi250_16+16", "allreduce", "ForestColl"): ("5.26", "42.3", "78.3", "87.4"),
}
"""GB/s at each of `SIZES`. RCCL's lines are of its best algorithm by hand, which the record does not tell apart."""
_TREES_PER_ROOT = 2
_WITHIN = 0.15
_BLIND = (
    "only alpha and efficiency are fitted, to two runs of allgather with two trees per root: what a chunk costs on its "
    "way through a GPU, what reduction costs, and the best of several numbers of trees are not in the model"
)


def _cases(_quick: bool) -> Sequence[tuple[str, str, str]]:
    """Return fabrics, collectives and generators."""
    return tuple(_PRINTED)


def _rows(case: tuple[str, str, str]) -> list[Row]:
    fabric, collective, generator = case
    recorded = {size: _recorded_gbps(*case, size) for size in SIZES}
    predicted = _predictions(fabric, collective) if generator == "ForestColl" else {}
    return [
        _row(case, size, text, recorded[size], predicted.get(size))
        for size, text in zip(SIZES, _PRINTED[case], strict=True)
    ]


def _recorded_gbps(fabric: str, collective: str, generator: str, size: int) -> Fraction:
    """Return the algorithmic bandwidth of the fastest configuration, which is what the paper prints."""
    table = mi250_table()
    times = (
        table.times_s(one, size)[0]
        for one in table.configurations(fabric, collective)
        if one.origin.generator == generator and one.in_place and size in table.sizes_bytes(one)
    )
    return Fraction(size) / Fraction(min(times)) / 10**9


def _predictions(fabric: str, collective: str) -> dict[int, float]:
    """Return GB/s at each size by the model that two runs of allgather, the smallest and the largest, decide."""
    known = {size: float(_recorded_gbps(fabric, "allgather", "ForestColl", size)) for size in (SIZES[0], SIZES[-1])}
    model = fit_two_points(_cost(fabric, "allgather"), known)
    cost = _cost(fabric, collective)
    return {size: predicted_gbps(cost, model, size) for size in SIZES}


def _cost(fabric: str, collective: str) -> Congestion:
    topology = parse_topology(FABRICS[fabric])
    options = Options(k=_TREES_PER_ROOT)
    method = "forest-phases" if collective == "allreduce" else "forest"  # two phases are what the GPUs ran
    made = synthesize(method, topology, parse_collective(collective), options, SerialExecutor())
    return congestion_of(traffic_of(made.schedule))


def _row(key: tuple[str, str, str], size: int, printed: str, recorded: Fraction, predicted: float | None) -> Row:
    fabric, collective, generator = key
    verdict = judge(printed, Interval.exactly(recorded), smaller_is_better=False)
    error = None if predicted is None else predicted / float(recorded) - 1
    far = error is not None and abs(error) > _WITHIN
    return {
        "nodes": parse_topology(FABRICS[fabric]).compute_count,
        "spec": FABRICS[fabric],
        "collective": collective,
        "generator": generator,
        "size_bytes": size,
        "printed": printed,
        "recorded_gb_per_s": float(recorded),
        "predicted_gb_per_s": predicted,
        "error": error,
        "verdict": verdict,
        "reason": _BLIND if far else None,
        "holds": verdict != "worse",
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.forestcoll.plots import plot_bandwidths  # noqa: PLC0415 (matplotlib is slow)

    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row['collective']}, {row['spec']}", []).append(row)
    plot_bandwidths(panels, path)


EXPERIMENT = Experiment(
    name="forestcoll-table-2",
    question="Are printed bandwidths of MI250 GPUs those of the record, and how far off does our model predict them?",
    source=f"Zhao et al., ForestColl, table 2; {MI250_SOURCE}",
    columns=(
        Column("spec", lambda row: str(row["spec"])),
        Column("collective", lambda row: str(row["collective"])),
        Column("schedules of", lambda row: str(row["generator"])),
        Column("size", lambda row: format_size(row["size_bytes"])),
        Column("printed GB/s", lambda row: str(row["printed"])),
        Column("recorded", lambda row: f"{row['recorded_gb_per_s']:.4g}"),
        Column("predicted", lambda row: f"{row['predicted_gb_per_s']:.4g}" if row["error"] is not None else ""),
        Column("error", lambda row: f"{row['error']:+.0%}" if row["error"] is not None else ""),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
