"""The table of recorded runs: what is shipped, what its reader refuses, and what it finds to have fallen back."""

import csv
import gzip
import io
from collections import Counter
from importlib.resources import files
from statistics import median

import pytest

from chorale.runners.recorded.table import (
    COLUMNS,
    RecordedConfiguration,
    RecordedTable,
    ScheduleOrigin,
    mi250_table,
    read_runs,
)
from chorale.synth.errors import InvalidInput

HALF, FULL = "mi250_8+8", "mi250_16+16"


def _rows() -> list[dict[str, str]]:
    data = (files("chorale.runners.recorded") / "mi250-runs.csv.gz").read_bytes()
    return list(csv.DictReader(io.StringIO(gzip.decompress(data).decode())))


def test_every_row_of_the_shipped_table_is_there() -> None:
    table, rows = mi250_table(), _rows()
    assert len(rows) == 8672
    counted = Counter()
    for fabric in table.fabrics:
        for collective in table.collectives(fabric):
            for one in (*table.configurations(fabric, collective), *table.libraries(fabric, collective)):
                runs = sum(len(table.times_s(one, size)) for size in table.sizes_bytes(one))
                counted[fabric, collective, one.origin.generator, one.in_place] += runs
    expected = Counter(
        (row["fabric"], row["collective"], row["generator"], in_place)
        for row in rows
        for in_place in (False, True)
        if row["size_bytes"] != "0"
    )
    assert counted == expected


def test_a_time_is_that_of_its_row() -> None:
    origin = ScheduleOrigin(HALF, "allgather", "ForestColl", "amd_allgather_half_split_k1_inst1", 1, 1)
    in_place = RecordedConfiguration(origin, 2**20, in_place=True)
    assert mi250_table().times_s(in_place, 2**30) == pytest.approx((9998.3e-6,))
    assert mi250_table().times_s(RecordedConfiguration(origin, 2**20, in_place=False), 2**30) == pytest.approx(
        (23809e-6,)
    )
    assert len(mi250_table().times_s(mi250_table().libraries(HALF, "allreduce")[0], 2**20)) == 3


def test_no_schedule_of_the_table_ran_out_of_place_and_the_library_always_ran() -> None:
    # The programs that are shipped say inplace="1" outofplace="0"; the record alone must lead to the same.
    table = mi250_table()
    for fabric in table.fabrics:
        for collective in table.collectives(fabric):
            for one in table.configurations(fabric, collective):
                if not one.in_place:
                    assert all(table.fell_back(one, size) for size in table.sizes_bytes(one)), one
    for one in table.libraries(HALF, "allgather"):
        assert not any(table.fell_back(one, size) for size in table.sizes_bytes(one))


@pytest.mark.parametrize(("fabric", "ranks"), [(HALF, 16), (FULL, 32)])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_in_place_what_cannot_be_cut_fell_back(fabric: str, ranks: int, collective: str) -> None:
    # That runtime asked whether the elements of a call, for each rank but for allreduce, fill the chunks. Nothing of
    # that is in the table; it is found from times alone.
    table = mi250_table()
    for one in table.configurations(fabric, collective):
        if one.in_place and one.origin.generator == "ForestColl":
            chunks = ranks * (one.origin.k or 0) * (one.origin.instances or 0)
            for size_bytes in table.sizes_bytes(one):
                count = size_bytes // 4 // (1 if collective == "allreduce" else ranks)
                assert table.fell_back(one, size_bytes) == (count % chunks != 0), (str(one), size_bytes)


HEADER = ",".join(COLUMNS)
ROW = "box,allgather,Some,{name},1,1,{buffer},{size},{out},0,{inside},0"


def _table(*runs: tuple[str, int, int, float, float]) -> RecordedTable:
    rows = [
        f"box,allgather,Some,{name},1,1,{buffer},{size},{out},0,{inside},0" for name, buffer, size, out, inside in runs
    ]
    return RecordedTable(read_runs("\n".join([HEADER, *rows])))


def _fallen(table: RecordedTable, in_place: bool) -> set[tuple[str, int]]:
    made = [one for one in table.configurations("box", "allgather") if one.in_place is in_place]
    return {
        (one.origin.schedule, size) for one in made for size in table.sizes_bytes(one) if table.fell_back(one, size)
    }


def test_a_schedule_that_serves_both_placements_ran_but_for_three_slow_runs_in_a_row() -> None:
    sizes = [2**power for power in range(10, 16)]
    runs = [
        (name, 1024, size, factor * size + 5.0, factor * size + 1.0)
        for factor, name in enumerate("abc", 1)
        for size in sizes
    ]
    assert _fallen(_table(*runs), in_place=False) == set()
    runs = [("a", 1024, 2**power, 100.0, 100.0) for power in range(10, 16)]
    slow = [("a", 1024, 2**power, 160.0, 100.0) for power in range(16, 19)]
    assert _fallen(_table(*runs, *slow[:1]), in_place=False) == set()
    assert {size for _, size in _fallen(_table(*runs, *slow), in_place=False)} == {2**power for power in range(10, 19)}
    assert {size for _, size in _fallen(_table(*runs, *slow), in_place=True)} == {2**power for power in range(10, 16)}


def test_rows_without_a_time_or_a_size_give_no_run() -> None:
    any_run = {"name": "a", "buffer": 1024}
    text = "\n".join(
        [HEADER, ROW.format(**any_run, size=8, out="", inside=3), ROW.format(**any_run, size=0, out=2, inside=2)]
    )
    (run,) = read_runs(text)
    assert (run.configuration.in_place, run.size_bytes, run.time_s, run.wrong) == (True, 8, 3e-6, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", "columns are missing: fabric, collective, generator,"),
        (f"{HEADER}\n,allgather,S,a,1,1,8,8,1,0,1,0", "line 2, column fabric of a table of runs: .* got None"),
        (f"{HEADER}\nbox,gossip,S,a,1,1,8,8,1,0,1,0", "line 2, column collective .* 'allreduce'.* got gossip"),
        (f"{HEADER}\nbox,allgather,S,a,one,1,8,8,1,0,1,0", "column trees_per_root_k of .* valid integer.*, got one"),
        (f"{HEADER}\nbox,allgather,S,a,1,1,8,,1,0,1,0", "column size_bytes of .* valid integer, got None"),
        (f"{HEADER}\nbox,allgather,S,a,1,1,8,8,fast,0,1,0", "time_out_of_place_us of .* valid number.*, got fast"),
        (f"{HEADER}\nbox,allgather,S,a,1,1,8,8,1,0,-1,0", "column time_in_place_us of .* greater than 0, got -1"),
        (f"{HEADER}\nbox,allgather,S,a,1,1,8,8,1,,1,0", "column wrong_out_of_place .* must be a number next to a time"),
        (f"{HEADER}\nbox,allgather,S", "line 2, column schedule of a table of runs"),
    ],
)
def test_bad_tables_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_runs(text)


def test_repetitions_are_recorded_times_with_recorded_deviations() -> None:
    table = mi250_table()
    (one,) = [
        one
        for one in table.configurations(HALF, "allgather")
        if one.origin.schedule == "amd_allgather_half_split_k1_inst1" and one.in_place and one.buffer_bytes == 2**20
    ]
    drawn = table.draw_s(one, 2**30, 4000, seed=3)
    assert drawn == table.draw_s(one, 2**30, 4000, seed=3) != table.draw_s(one, 2**30, 4000, seed=4)
    (recorded,) = table.times_s(one, 2**30)
    assert median(drawn) == pytest.approx(recorded, rel=0.002)
    rows = [
        row
        for row in _rows()
        if row["fabric"] == HALF and row["generator"] != "RCCL" and row["size_bytes"] == str(2**30)
    ]
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["collective"], row["buffer_bytes"]), []).append(float(row["time_out_of_place_us"]))
    deviations = [time / median(times) for times in groups.values() for time in times]
    possible = {round(recorded * deviation, 12) for deviation in deviations}
    assert {round(time_s, 12) for time_s in drawn} <= possible
    assert len(set(drawn)) > 100
    assert min(drawn) == pytest.approx(recorded * min(deviations))


def test_only_launches_with_the_settings_of_the_fastest_count_and_without_witnesses_nothing_deviates() -> None:
    # The table has three launches of RCCL's allreduce; the second is 1.2 to 3 times slower at almost every size.
    table = mi250_table()
    (library,) = [one for one in table.libraries(FULL, "allreduce") if one.in_place]
    recorded = table.times_s(library, 2**20)
    assert recorded == pytest.approx((223.2e-6, 674.5e-6, 223.6e-6))
    assert max(table.draw_s(library, 2**20, 1000, seed=0)) < 1.3 * min(recorded)
    table = _table(("a", 1024, 4096, 2.0, 1.0))
    (outside, inside) = table.configurations("box", "allgather")
    assert table.draw_s(inside, 4096, 3, seed=0) == (1e-6, 1e-6, 1e-6)
    with pytest.raises(InvalidInput, match=r"Some a \(allgather on box\) with buffers of 1KiB, out of"):
        table.times_s(outside, 8)
