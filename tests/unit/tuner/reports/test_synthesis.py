"""What a report says of a schedule that is begun with another, and durations."""

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.synthesis import warm_start_document
from chorale.tuner.reports.tables import seconds_text


def named_transfers(verified: VerifiedSchedule) -> set[tuple[str, str, str, int, int]]:
    """Return the transfers of one chunk a shard by what they mean: ids of nodes, and chunks."""
    schedule = verified.schedule.expand()
    names, rows = schedule.topology.node_ids, schedule.transfers
    columns = (schedule.src, schedule.dst, rows.shard, rows.lo, rows.hi)
    return {(names[a], names[b], names[c], lo, hi) for a, b, c, lo, hi in zip(*map(list, columns), strict=True)}


def test_kept_transfers_are_those_that_both_have() -> None:
    one, other = (
        synthesize(method, parse_topology("complete:5"), ALLGATHER, None, SerialExecutor())
        for method in ("bfb", "ring")
    )
    same = warm_start_document(one, one)
    assert same["transfers_kept"] == same["transfers_possible"] == 20
    both = warm_start_document(one, other)
    assert both["transfers_kept"] == len(named_transfers(one) & named_transfers(other)) < 20


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.03, "4.03 s"), (2.88e-12, "2.88 ps"), (-0.083, "-83 ms"), (-1.12, "-1.12 s")]
)
def test_durations_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
