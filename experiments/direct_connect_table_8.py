"""Table 8: distance-regular graphs of degree 4, on all of which BFB is bandwidth-optimal."""

from __future__ import annotations

from collections.abc import Sequence

from chorale.experiments.comparison import Quantity, columns_of, compare, with_optimal_factor
from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.measured import measure_schedule
from chorale.experiments.published import PublishedRow, published
from chorale.experiments.verdict import Interval
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps


def _table_8_cases(_quick: bool) -> Sequence[PublishedRow]:
    return published("8").rows


def _compare_table_8_row(row: PublishedRow) -> Row:
    """Compare T_L and both Moore bounds; the text says that T_B is optimal, (N - 1) / N."""
    measured = measure_schedule(row.spec, row.method)
    steps = Interval.exactly(measured.cost.steps)
    compared = compare(
        row,
        [
            Quantity("steps", steps, measured.diameter, "the network has that diameter"),
            Quantity("moore_steps", Interval.exactly(least_steps(row.nodes, 4))),
            Quantity("two_way_moore_steps", Interval.exactly(least_steps(row.nodes, 4, bidirectional=True))),
        ],
    )
    return with_optimal_factor(compared, measured.factor, least_bandwidth_factor(row.nodes))


TABLE_8 = Experiment(
    name="direct-connect-table-8",
    question="Are the distance-regular graphs of degree 4 bandwidth-optimal in as many steps as the paper printed?",
    source=published("8").source,
    columns=columns_of(
        {
            "steps": "T_L",
            "moore_steps": "Moore bound",
            "two_way_moore_steps": "bidirectional Moore bound",
            "bandwidth_factor": "T_B (M/B)",
        }
    ),
    cases=_table_8_cases,
    evaluate=lambda row: [_compare_table_8_row(row)],
)
