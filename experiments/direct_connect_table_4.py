"""Table 4: the times of an allreduce and of an all-to-all on 1,024 nodes of degree 4."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from chorale.experiments.comparison import Quantity, columns_of, compare
from chorale.experiments.direct_connect_rows import bound_quantities, rate_quantity, schedule_quantities
from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.measured import measure_schedule
from chorale.experiments.published import PublishedRow, published
from chorale.experiments.verdict import Interval

ALPHA_US = 10
SIZE_BYTES = 2**20
"""What the paper calls 1 MB: with 10^6 bytes none of its times comes out, except that of ShiftedRing's allreduce."""
NODE_BITS_PER_US = 100_000
LINK_BITS_PER_US = NODE_BITS_PER_US // 4
TABLE_4_GAP = Fraction(1, 200)
_TABLE_4_SLOW = ("L^2(Diamond^2)", "L(DBJMod(2,4)^2)", "double binary tree")
"""Their all-to-all rates take 10 s to a minute each."""


def _table_4_cases(quick: bool) -> Sequence[PublishedRow]:
    return [row for row in published("4").rows if not (quick and row.topology in _TABLE_4_SLOW)]


def _compare_table_4_row(row: PublishedRow) -> Row:
    if row.is_bound:
        quantities = bound_quantities(row.nodes)
    else:
        measured = measure_schedule(row.spec, row.method)
        quantities = [*schedule_quantities(measured), rate_quantity(measured, TABLE_4_GAP)]
    by_key = {quantity.key: quantity for quantity in quantities}
    times = [_allreduce_us(by_key["steps"].ours, by_key["bandwidth_factor"].ours), _alltoall_us(row, by_key["rate"])]
    return compare(row, [quantity for quantity in (*quantities, *times) if quantity.key in row.printed])


def _allreduce_us(steps: Interval, factor: Interval) -> Quantity:
    """2 (T_L + T_B), as the caption says."""
    transfer_us = factor.low * Fraction(8 * SIZE_BYTES, NODE_BITS_PER_US)
    return Quantity("allreduce_us", Interval.exactly(2 * (steps.low * ALPHA_US + transfer_us)))


def _alltoall_us(row: PublishedRow, rate: Quantity) -> Quantity:
    """Every node sends 1/N of its data to each other one, at `rate` times the bandwidth of a link."""
    full_rate_us = Fraction(8 * SIZE_BYTES, LINK_BITS_PER_US * row.nodes)
    ours = Interval(full_rate_us / rate.ours.high, full_rate_us / rate.ours.low)
    return Quantity("alltoall_us", ours, ours.low, rate.proof)


TABLE_4 = Experiment(
    name="direct-connect-table-4",
    question="How long do allreduce and all-to-all of 1 MiB take on 1,024 nodes of degree 4, at 10 us a step?",
    source=published("4").source,
    columns=columns_of(
        {
            "steps": "T_L",
            "bandwidth_factor": "T_B (M/B)",
            "allreduce_us": "allreduce, us",
            "diameter": "diameter",
            "alltoall_us": "all-to-all, us",
        }
    ),
    cases=_table_4_cases,
    evaluate=lambda row: [_compare_table_4_row(row)],
)
