"""Table 5: the best bidirectional topologies of degree 4 with 5 to 12 nodes, all bandwidth-optimal."""

from __future__ import annotations

from collections.abc import Sequence

from chorale.experiments.comparison import Quantity, columns_of, compare, with_optimal_factor
from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.measured import measure_schedule
from chorale.experiments.published import PublishedRow, published
from chorale.experiments.verdict import Interval
from chorale.synth.collective import ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps
from chorale.synth.methods.expand.prediction import predict_allgather


def _table_5_cases(_quick: bool) -> Sequence[PublishedRow]:
    return published("5").rows


def _compare_table_5_row(row: PublishedRow) -> Row:
    """Compare the steps of a verified allreduce; the caption says that T_B is optimal, 2 (N - 1) / N."""
    measured = measure_schedule(row.spec, row.method, ALLREDUCE)
    least = 2 * least_steps(row.nodes, 4, bidirectional=True)
    steps = Quantity("steps", Interval.exactly(measured.cost.steps), least, f"{least} is least on any network")
    compared = compare(row, [steps], _table_5_remarks(row.spec, measured.cost.steps))
    return with_optimal_factor(compared, measured.factor, 2 * least_bandwidth_factor(row.nodes))


def _table_5_remarks(spec: str, steps: int) -> list[str]:
    if not spec.startswith("degree("):
        return []
    expanded = 2 * predict_allgather(spec, SerialExecutor()).steps
    if expanded == steps:
        return []
    return [f"expanded as in theorem 11 the schedule would take {expanded}; BFB on the expanded network takes {steps}"]


TABLE_5 = Experiment(
    name="direct-connect-table-5",
    question="Do the best small bidirectional topologies take the steps that the paper printed, at optimal T_B?",
    source=published("5").source,
    columns=columns_of({"steps": "steps of an allreduce", "bandwidth_factor": "T_B (M/B)"}),
    cases=_table_5_cases,
    evaluate=lambda row: [_compare_table_5_row(row)],
)
