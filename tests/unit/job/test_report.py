"""What a job's report says of the orders in which its programs add."""

from dataclasses import replace

from chorale.job.report import JobReport
from tests.unit.job.table.test_layout import ring_table


def counted(*calls: tuple[str, str], fallbacks: tuple[str, ...] = (), **changes: object) -> bool:
    """Return whether a job is deterministic that ran programs "fixed", "other" and "loose" as `calls` says."""
    (program,) = ring_table().programs.values()
    order = program.order_of_additions
    assert order is not None
    report = JobReport()
    report.note_orders(
        [
            replace(program, digest="fixed"),
            replace(program, digest="same"),
            replace(program, digest="other", order_of_additions={**order, "digest": "another"}),
            replace(program, digest="loose", order_of_additions={**order, "same_on_all_ranks": False}),
            replace(program, digest="copies", order_of_additions=None),
        ]
    )
    for digest, collective in calls:
        report.count_program(digest, collective, 8, 0.5)
    for collective in fallbacks:
        report.count_fallback("size not in the table", collective, 8)
    return bool(report.to_json()["deterministic"])


def test_a_table_says_in_which_order_its_programs_add() -> None:
    (program,) = ring_table().programs.values()
    order = dict(program.order_of_additions or {})
    assert len(order.pop("digest")) == 64
    assert order == {
        "fixed": True, "same_on_all_ranks": True, "independent_of_position": False, "orders": 4, "depth": 3,
    }  # fmt: skip


def test_orders_are_fixed_where_programs_of_one_order_added_all() -> None:
    assert counted(("fixed", "allreduce"), ("fixed", "allreduce"))
    assert counted(("fixed", "allreduce"), ("same", "allreduce"), ("other", "reduce_scatter"))
    assert counted(("fixed", "allreduce"), ("copies", "allgather"), fallbacks=("broadcast",))
    assert counted()


def test_orders_are_not_fixed_with_other_programs_or_the_librarys_own() -> None:
    assert not counted(("fixed", "allreduce"), ("other", "allreduce"))
    assert not counted(("loose", "allreduce"))
    assert not counted(("copies", "allreduce"))
    assert not counted(("unheard of", "allreduce"))
    assert not counted(("fixed", "allreduce"), fallbacks=("allreduce",))
    assert not counted(fallbacks=("reduce_scatter",))
