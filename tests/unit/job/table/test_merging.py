"""Merging: for every size, what the first (or last) of the tables says; comparing finds exactly what differs."""

from functools import reduce

import pytest
from hypothesis import given, strategies as st

from chorale.job.table.layout import JobEntry, Table
from chorale.job.table.merging import (
    LIBRARY,
    NOTHING,
    SizeRange,
    changes,
    comparison,
    merge,
    overlapping,
    parse_range,
    require_disjoint,
)
from chorale.synth.errors import InvalidInput
from tests.unit.job.table.examples import any_entry, table_of

LARGEST = 40


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Draw a table: for each key, ranges that do not overlap, with programs or the library's own."""
    entries = []
    for dtype in ("any", "float32"):
        cuts = sorted(draw(st.sets(st.integers(0, LARGEST), max_size=6)))
        for first, following in zip(cuts[::2], cuts[1::2], strict=False):
            program = draw(st.sampled_from(["a", "b", None]))
            last = None if following == cuts[-1] and draw(st.booleans()) else following
            entries.append(any_entry(program, first, last, dtype=dtype, measured={"by": draw(st.integers(0, 1))}))
    return table_of(*entries)


def says(table: Table, dtype: str, size_bytes: int) -> str:
    for entry in table.entries:
        if entry.dtype == dtype and entry.covers(size_bytes):
            return entry.program or LIBRARY
    return NOTHING


@given(st.lists(tables(), min_size=1, max_size=4), st.sampled_from(["first", "last"]))
def test_the_preferred_table_counts_at_every_size(several: list[Table], prefer: str) -> None:
    merged = merge(several, prefer)
    ordered = several if prefer == "first" else several[::-1]
    for dtype in ("any", "float32"):
        for size in range(LARGEST + 3):
            answers = [says(table, dtype, size) for table in ordered]
            assert says(merged, dtype, size) == next((said for said in answers if said != NOTHING), NOTHING)
    assert overlapping(merged.entries) == []
    assert set(merged.programs) == {entry.program for entry in merged.entries if entry.program is not None}


@given(st.lists(tables(), min_size=2, max_size=4))
def test_two_at_a_time_give_the_same(several: list[Table]) -> None:
    stepwise = reduce(lambda one, other: merge([one, other], "first"), several)
    assert changes(merge(several, "first"), stepwise) == []


@given(tables(), tables())
def test_a_merge_without_preference_ends_only_where_nothing_conflicts(one: Table, other: Table) -> None:
    keys = [(dtype, size) for dtype in ("any", "float32") for size in range(LARGEST + 3)]
    both = [(says(one, *key), says(other, *key)) for key in keys]
    if any(NOTHING not in pair and pair[0] != pair[1] for pair in both):
        with pytest.raises(InvalidInput, match="the tables name different programs for the same sizes"):
            merge([one, other])
    else:
        assert changes(merge([one, other]), merge([other, one])) == []


@given(tables(), tables())
def test_changes_are_what_differs_at_some_size_and_no_more(one: Table, other: Table) -> None:
    listed = changes(one, other)
    for dtype in ("any", "float32"):
        for size in range(LARGEST + 3):
            covering = [c for c in listed if c.key[1] == dtype and SizeRange(size, size).overlaps(c.sizes)]
            before, after = says(one, dtype, size), says(other, dtype, size)
            assert [(c.before, c.after) for c in covering] == ([(before, after)] if before != after else [])


@given(tables())
def test_a_table_equals_itself_and_not_one_with_other_measurements(table: Table) -> None:
    assert comparison(table, table)["equal"]
    remeasured = Table(
        table.topology, table.ranks, table.entries, table.programs, {**table.provenance, "campaign": "another"}
    )
    document = comparison(table, remeasured)
    assert (document["equal"], document["same_in_jobs"]) == (False, True)


def test_only_tables_of_one_job_are_merged_and_conflicts_are_named() -> None:
    table = table_of(any_entry(None, 0))
    with pytest.raises(InvalidInput, match="the tables differ in their rank counts: 4, 8 ranks"):
        merge([table, table_of(any_entry(None, 0), ranks=8)])
    with pytest.raises(InvalidInput, match="the tables are for different networks: ring:4, complete:4"):
        merge([table, table_of(any_entry(None, 0), spec="complete:4")])
    groups = table_of(any_entry("b", 0, group=(1, 3)), spec=None)
    merged = merge([groups, table])
    assert merged.topology == table.topology
    assert {entry.group for entry in merged.entries} == {None, (1, 3)}
    one, other = table_of(any_entry("a" * 64, 1024, 4096)), table_of(any_entry(None, 4096))
    with pytest.raises(InvalidInput) as refused:
        merge([one, other])
    assert "allreduce, any, 1KiB-4KiB: aaaaaaaaaaaa; 4KiB-: the library's own" in str(refused.value)
    with pytest.raises(InvalidInput, match="first or last"):
        merge([one, other], "newest")


RANGES = {"1KiB-64MiB": (2**10, 2**26), "64KiB-": (2**16, None), "-4K": (0, 4096), "0-1": (0, 1), "-": (0, None)}


def test_ranges_are_read_and_what_is_none_is_refused() -> None:
    for text, (first, last) in (RANGES | {"1K:1M": (2**10, 2**20), "4KiB:1MiB:x4": (4096, 2**20)}).items():
        assert parse_range(text) == SizeRange(first, last)
        assert parse_range(str(SizeRange(first, last))) == SizeRange(first, last)
    for text in ("", "64KiB", "4KiB-1KiB", "a-b", "1KiB-2KiB-3KiB", "1KiB:4KiB:2"):
        with pytest.raises(InvalidInput):
            parse_range(text)


ranges = st.builds(
    lambda first, length: SizeRange(first, None if length is None else first + length),
    st.integers(0, LARGEST),
    st.none() | st.integers(0, 9),
)


@given(st.lists(ranges, max_size=6))
def test_overlaps_of_entries_for_the_same_thing_are_refused_and_only_they(several: list[SizeRange]) -> None:
    entries: list[JobEntry] = [any_entry(None, item.first, item.last) for item in several]
    covered = [sum(entry.covers(size) for entry in entries) for size in range(LARGEST + 12)]
    if max(covered, default=0) > 1:
        with pytest.raises(InvalidInput, match="two entries cover the same sizes"):
            require_disjoint(entries, "try again")
    else:
        require_disjoint(entries, "try again")
    others = ({"dtype": "int8"}, {"group": (0, 1)}, {"collective": "allgather"}, {"collective": "reduce", "root": 1})
    require_disjoint([any_entry(None, 0), *(any_entry(None, 0, **change) for change in others)], "try again")
