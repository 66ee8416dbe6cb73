"""The file of a table: what goes in comes out, the same bytes each time, and damage is noticed."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import chorale
from chorale.job.table.layout import (
    ANY_DTYPE,
    Fallback,
    GroupEntries,
    JobEntry,
    Table,
    pack,
    parse_table,
    table_bytes,
    unpack,
)
from chorale.job.table.verification import table_program
from chorale.synth.errors import InvalidInput
from chorale.synth.targets.registry import OneCclXml
from tests.unit.synth.lowering.programs import lowered


def ring_table(ranks: int = 4) -> Table:
    text = OneCclXml().emit(lowered(f"ring:{ranks}", "allreduce", method="ring"))
    program = table_program(text.encode(), "oneccl-xml", "ring", {"chunks": 1})
    common = {"certificate": {"gap": "0"}, "provenance": {"campaign": "c"}}
    entries = (
        JobEntry("allreduce", "float32", None, None, 1024, 4096, program.digest, {"time_us": 1.5}, **common),
        JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, None),
        JobEntry("allreduce", ANY_DTYPE, (0, 2, 4, 6), None, 0, None, program.digest),
    )
    return Table({"spec": f"ring:{ranks}"}, ranks, entries, {program.digest: program}, {"fabric": "here"})


def test_what_goes_in_comes_out_and_a_shorter_file_or_a_header_that_says_nonsense_is_refused() -> None:
    table = ring_table()
    data = table_bytes(table)
    assert data.startswith(b"chorale-table/1\n")
    assert parse_table(data) == (table, data.split(b"\n")[1].split()[-1].decode())
    assert table_bytes(parse_table(data)[0]) == data
    for length in (0, 5, 16, 40, 200, -1):
        with pytest.raises(InvalidInput):
            parse_table(table_bytes(ring_table())[:length])
    header, index = b'{"entries":[{}],"programs":[]}\n', b"ranks 4\n"
    digest = hashlib.sha256(header + index).hexdigest()
    with pytest.raises(InvalidInput, match="the tuning table is damaged"):
        parse_table(b"chorale-table/1\n%d %d 0 %s\n" % (len(header), len(index), digest.encode()) + header + index)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(place: int, bit: int) -> None:
    data = bytearray(table_bytes(ring_table()))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(InvalidInput):
        parse_table(bytes(data))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_survive(numbers: list[int]) -> None:
    assert unpack(pack(numbers)).tolist() == numbers


@pytest.mark.parametrize("data", [b"\x80", b"\xff" * 9 + b"\x7f", b"\xff" * 20])
def test_bytes_that_are_no_numbers_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="number"):
        unpack(data)


def test_the_entry_that_runs_or_why_none_does() -> None:
    table = ring_table()
    everyone, some = GroupEntries.of(table, range(4)), GroupEntries.of(table, (0, 2, 4, 6))
    found = everyone.find("allreduce", None, "float32", 2048)
    assert found == table.entries[0]
    assert everyone.find("allreduce", None, "float32", 5000) is Fallback.LIBRARY
    assert everyone.find("allreduce", None, "int32", 2048) is Fallback.LIBRARY
    assert everyone.find("allgather", None, "float32", 2048) is Fallback.COLLECTIVE
    assert some.find("allreduce", None, "bfloat16", 1) == table.entries[2]
    assert GroupEntries.of(table, (1, 0, 2, 3)).find("allreduce", None, "float32", 2048) is Fallback.GROUP
    narrow = GroupEntries((replace(table.entries[0], root=1),))
    assert narrow.find("allreduce", None, "float32", 2048) is Fallback.ROOT
    assert GroupEntries(table.entries[:1]).find("allreduce", None, "int8", 2048) is Fallback.DTYPE
    assert GroupEntries(table.entries[:1]).find("allreduce", None, "float32", 1) is Fallback.SIZE


HEAVY = ("ray", "mlflow", "scipy", "numpy", "torch", "optuna", "pyarrow", "pydantic", "rich", "yaml")
CODE = """
import json, sys, chorale as ch
table = ch.load_table(sys.argv[1])
print(json.dumps({"modules": sorted(sys.modules), "text": repr(table)}))
"""


def test_a_table_is_loaded_by_few_modules_with_programs_that_are_short_in_print(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(table_bytes(ring_table()))
    done = subprocess.run([sys.executable, "-c", CODE, tmp_path / "t"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert not {name.partition(".")[0] for name in said["modules"]} & set(HEAVY)
    ours = [name for name in said["modules"] if name.startswith("chorale")]
    assert len(ours) < 20, ours
    assert said["text"] == "<Table of 4 ranks on ring:4: allreduce; 3 entries, 1 programs>"
    (tmp_path / "t").write_bytes(table_bytes(ring_table()))
    table = chorale.load_table(tmp_path / "t")
    assert table == ring_table()
    (program,) = table.programs.values()
    assert len(repr(program)) < 400
    with pytest.raises(InvalidInput, match="none"):
        chorale.load_table(str(tmp_path / "none"))
