"""What a job takes as its table: right, signed where it must be, within limits, and nothing that holds it up."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.job.settings import job_table, read_table
from chorale.job.table import verification
from chorale.job.table.layout import JobEntry, Table, file_digest, parse_table, table_bytes
from chorale.synth.errors import InvalidInput
from tests.unit.job.table.examples import forged
from tests.unit.job.table.test_layout import ring_table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def right_table() -> Table:
    table = ring_table()
    return replace(table, entries=table.entries[:2])


def written(folder: Path, data: bytes) -> Path:
    (folder / "table").write_bytes(data)
    return folder / "table"


def test_words_that_are_not_of_the_text_are_refused_and_what_was_right_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, forged(table_bytes(right_table())))
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"\(words\).*rank 0"):
            job_table(path)
    path = written(tmp_path, table_bytes(right_table()))
    expected = job_table(path)
    monkeypatch.setattr(verification, "checked_table", None)
    assert job_table(path) == expected == read_table(path)


def test_a_job_with_a_key_takes_what_the_key_has_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, path = right_table(), tmp_path / "table"
    for number in (1, 2):
        (tmp_path / f"key-{number}").write_text(f"{number}" * 32)
        (tmp_path / f"key-{number}").chmod(0o600)
    path.write_bytes(table_bytes(table))
    job_table(path)
    monkeypatch.setenv("CHORALE_TABLE_KEY", str(tmp_path / "key-1"))
    with pytest.raises(InvalidInput, match="the tuning table is not signed with the key of"):
        job_table(path)
    path.write_bytes(table_bytes(table, b"2" * 32))
    with pytest.raises(InvalidInput, match="the signature of another key"):
        job_table(path)
    path.write_bytes(table_bytes(table, b"1" * 32))
    assert job_table(path)[0] == table
    assert file_digest(path) == job_table(path)[1]
    (tmp_path / "key-1").chmod(0o644)
    with pytest.raises(InvalidInput, match="others may read the secret file"):
        job_table(path)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, said in (("pipe", "a pipe"), (".", "a folder"), ("/dev/zero", "a device"), ("loop", "symbolic links")):
        with pytest.raises(InvalidInput, match=said):
            read_table(tmp_path / name)
        assert file_digest(tmp_path / name) is None


def with_header(change: Callable[[dict[str, Any]], None], blobs: bytes | None = None) -> bytes:
    """Return a table whose header was changed, under a right checksum."""
    _, second, rest = table_bytes(ring_table()).split(b"\n", 2)
    header_bytes, index_bytes, _ = map(int, second.split()[:3])
    header = json.loads(rest[:header_bytes])
    change(header)
    parts = json.dumps(header).encode() + b"\n", rest[header_bytes : header_bytes + index_bytes]
    return joined(*parts, rest[header_bytes + index_bytes :] if blobs is None else blobs)


def joined(*parts: bytes) -> bytes:
    """Return a file of these parts, under a right checksum."""
    lengths = " ".join(str(len(part)) for part in parts)
    return f"chorale-table/1\n{lengths} {hashlib.sha256(b''.join(parts)).hexdigest()}\n".encode() + b"".join(parts)


def test_what_would_fill_the_memory_is_refused_before_it_does(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(2**28))
    for change, blobs, said in (
        (lambda header: header.update(ranks=10**9), None, "1 to 65536 ranks"),
        (lambda header: header["programs"][0].update(ranks=10**9), None, "programs of 1 to 65536 ranks"),
        (lambda header: header.update(entries=header["entries"] * 20_000), None, "at most"),
        (lambda header: header["programs"][0].update(text=[0, len(bomb)]), bomb, "bytes together"),
        (lambda header: header.update(provenance=header["provenance"] | {"a": "x" * 2**24}), None, "header of at most"),
    ):
        with pytest.raises(InvalidInput, match=said):
            parse_table(with_header(change, blobs))
    deep = with_header(lambda header: header.update(provenance={})).replace(b'"provenance": {}', b"[" * 16)
    with pytest.raises(InvalidInput):
        parse_table(deep)
    entry = JobEntry("allreduce", "any", None, None, 0, None, None)
    with pytest.raises(InvalidInput, match="at most 32768 entries"):
        table_bytes(Table({}, 4, (entry,) * 40_000, {}))


def test_words_that_overlap_and_programs_that_are_missing_are_refused(tmp_path: Path) -> None:
    data = table_bytes(ring_table())
    _, second, rest = data.split(b"\n", 2)
    header, index, blobs = map(int, second.split()[:3])
    words = [line.split() for line in rest[header : header + index].splitlines() if line.startswith(b"words")]
    lines = [b" ".join([b"words 0", b"%d" % rank, *words[0][3:]]) for rank in range(blobs)]
    with pytest.raises(InvalidInput, match="words that overlap"):
        parse_table(joined(rest[:header], b"\n".join(lines) + b"\n", rest[header + index :]))
    data = with_header(lambda header: header["entries"][0].update(program="f" * 64))
    with pytest.raises(InvalidInput, match="an entry of the tuning table names a program that is not in"):
        read_table(written(tmp_path, data))
