"""Table 7: Pareto-efficient topologies of degree 4 with 32 to 1,024 nodes, every printed row beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from chorale.experiments.comparison import columns_of, compare
from chorale.experiments.direct_connect_rows import DEGREE, bound_quantities, rate_quantity, schedule_quantities
from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.measured import MeasuredSchedule, measure_schedule
from chorale.experiments.published import PublishedRow, published
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.find import find
from chorale.synth.finder.query import FinderQuery

TABLE_7_GAP = Fraction(1, 1000)
"""Between the bounds of a rate: about the digits that were printed."""
_TABLE_7_QUICK_NODES = 128


def _table_7_cases(quick: bool) -> Sequence[PublishedRow]:
    return [row for row in published("7").rows if not quick or row.nodes <= _TABLE_7_QUICK_NODES]


def _compare_table_7_row(row: PublishedRow) -> Row:
    if row.is_bound:
        return compare(row, bound_quantities(row.nodes))
    measured = measure_schedule(row.spec, row.method)
    quantities = [*schedule_quantities(measured), rate_quantity(measured, TABLE_7_GAP)]
    return compare(row, quantities, _table_7_remarks(measured))


def _table_7_remarks(measured: MeasuredSchedule) -> list[str]:
    """Say which topology of the finder, given the paper's bases only, is as good in both costs and better in one."""
    cost = (measured.cost.steps, measured.factor)
    for candidate in _frontier(measured.topology.compute_count):
        ahead = (candidate.steps, candidate.bandwidth_factor)
        if ahead != cost and ahead[0] <= cost[0] and ahead[1] <= cost[1]:
            measure_schedule(candidate.spec, candidate.method)  # raises unless its schedule verifies
            return [f"not Pareto-efficient: {candidate.spec} of the paper's own bases takes {ahead[0]}, {ahead[1]}"]
    return []


@cache
def _frontier(nodes: int) -> tuple[TopologyCandidate, ...]:
    findings = find(FinderQuery(nodes, DEGREE, bases="paper"), SerialExecutor(), confirmed_nodes=0)
    return tuple(finding.candidate for finding in findings.frontier)


TABLE_7 = Experiment(
    name="direct-connect-table-7",
    question="Do the Pareto-efficient topologies of degree 4 cost what the paper printed?",
    source=published("7").source,
    columns=columns_of(
        {"steps": "T_L", "bandwidth_factor": "T_B (M/B)", "diameter": "diameter", "rate": "all-to-all rate"}
    ),
    cases=_table_7_cases,
    evaluate=lambda row: [_compare_table_7_row(row)],
)
