"""Verification finds what is wrong with a table, and nothing in a right one."""

import hashlib
from dataclasses import replace

import pytest

from chorale.job.table.layout import JobEntry, Table, TableProgram, table_bytes
from chorale.job.table.verification import checked_table, link_violations
from chorale.synth.errors import InvalidInput
from chorale.synth.targets.judge import reachability
from chorale.synth.topology.spec import parse_topology
from tests.unit.job.table.examples import any_entry, real_program
from tests.unit.job.table.test_layout import ring_table


def rules(table: Table) -> list[str]:
    _, violations = checked_table(table_bytes(table))
    return sorted({violation.rule for violation in violations})


def with_program(table: Table, program: TableProgram) -> Table:
    entries = tuple(e if e.program is None else replace(e, program=program.digest) for e in table.entries)
    return replace(table, entries=entries, programs={program.digest: program})


def the_program(table: Table) -> TableProgram:
    return next(iter(table.programs.values()))


def whole(*entries: JobEntry) -> Table:
    table = ring_table()
    return replace(table, entries=entries or table.entries[:2])


def test_a_program_with_a_wrong_sum_is_found_and_nothing_in_a_right_table() -> None:
    assert rules(whole()) == []
    program = the_program(whole())
    text = program.text.replace(b'type="rrcs"', b'type="rcs"', 1).replace(b'type="rrc"', b'type="r"', 1)
    assert text != program.text
    wrong = replace(real_program(text), method=program.method)
    found = checked_table(table_bytes(with_program(whole(), wrong)))[1]
    assert found
    assert {violation.program for violation in found} == {wrong.digest}


def test_a_text_under_the_digest_of_another_or_no_program_is_found() -> None:
    program = the_program(whole())
    renamed = replace(program, text=program.text.replace(b'name="', b'name="x', 1))
    assert rules(with_program(whole(), renamed)) == ["digest"]
    text = b"<nothing/>"
    other = replace(the_program(whole()), text=text, digest=hashlib.sha256(text).hexdigest())
    assert rules(with_program(whole(), other)) == ["text"]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"group": (0, 1, 2, 9)}, "group"),
        ({"group": (0, 1, 2, 2)}, "group"),
        ({"group": (0, 1, 2)}, "program"),
        ({"collective": "allgather"}, "program"),
        ({"root": 1}, "program"),
    ],
)
def test_entries_that_do_not_fit_their_program_are_found(changes: dict[str, object], rule: str) -> None:
    entry = replace(ring_table().entries[0], **changes)  # type: ignore[arg-type]
    assert rules(whole(entry)) == [rule]


def test_overlapping_and_backward_entries_are_found() -> None:
    digest = the_program(ring_table()).digest
    assert rules(whole(any_entry(digest, 0, 10), any_entry(None, 10, 20))) == ["overlap"]
    assert rules(whole(any_entry(digest, 10, 5))) == ["sizes"]


def test_an_index_that_says_something_else_and_a_damaged_file_are_found() -> None:
    data = table_bytes(whole())
    first, second, rest = data.split(b"\n", 2)
    rest = rest.replace(b"entry allreduce float32 * -1 1024 4096", b"entry allreduce float32 * -1 1024 8096")
    lengths = second.split()[:3]
    second = b" ".join([*lengths, hashlib.sha256(rest).hexdigest().encode()])
    _, violations = checked_table(b"\n".join([first, second, rest]))
    assert [violation.rule for violation in violations] == ["index"]
    table, violations = checked_table(table_bytes(whole())[:-1])
    assert table is None
    assert [violation.rule for violation in violations] == ["file"]
    with pytest.raises(InvalidInput, match="must begin with the line"):
        checked_table(b"<algo/>")


def test_sends_without_a_path_are_found() -> None:
    table = whole()
    assert link_violations(table, reachability(parse_topology("ring:4"))) == []
    found = link_violations(table, lambda source, target: (source, target) != (1, 2))
    assert [(violation.rule, violation.program) for violation in found] == [("link", the_program(table).digest)]
    assert "rank 1 sends to rank 2" in found[0].message
