"""Programs as one file, compressed, and as a file for each rank."""

import gzip
import json
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.files.program_files import parts_of, read_program_text, write_program
from tests.command import chorale

TEXT = b'<algo name="a">\n  <gpu id="0">\n  </gpu>\n  <gpu id="1">\n  </gpu>\n</algo>\n'
PARTS = tuple(parts_of(TEXT, "msccl-xml"))
LIMIT = 1000


def test_parts_are_root_ranks_and_end():
    assert b"".join(PARTS) == TEXT
    assert len(PARTS) == 4
    with pytest.raises(InvalidInput, match="must be XML"):
        next(parts_of(b"{}\n", "mscclpp-json"))


def test_a_compressed_file_holds_the_text_and_always_the_same_bytes(tmp_path: Path):
    first, second = (str(tmp_path / name) for name in ("one.xml.gz", "other.xml.gz"))
    for name in (first, second):
        write_program(name, PARTS, per_rank=False)
    assert gzip.decompress(Path(first).read_bytes()) == TEXT == read_program_text(first, LIMIT)
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_what_is_compressed_is_read_within_limits(tmp_path: Path):
    large, cut, plain = (tmp_path / f"{name}.xml.gz" for name in ("large", "cut", "plain"))
    write_program(str(large), (bytes(10**6),), per_rank=False)
    with pytest.raises(InvalidInput, match="at most 10000 bytes"):
        read_program_text(str(large), 10000)
    cut.write_bytes(large.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match="must be whole"):
        read_program_text(str(cut), 10**7)
    plain.write_bytes(TEXT)
    with pytest.raises(InvalidInput, match="must be compressed"):
        read_program_text(str(plain), LIMIT)


def test_each_rank_has_a_file_with_its_part_alone(tmp_path: Path):
    folder = tmp_path / "ranks"
    write_program(str(folder), PARTS, per_rank=True)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["rank-00000.xml", "rank-00001.xml"]
    assert files[1].read_bytes() == PARTS[0] + PARTS[2] + PARTS[3]
    assert read_program_text(str(folder), LIMIT) == TEXT
    with pytest.raises(InvalidInput, match="must be new or empty"):
        write_program(str(folder), PARTS, per_rank=True)
    files[1].write_bytes(TEXT.replace(b'"a"', b'"b"'))
    with pytest.raises(InvalidInput, match="belong to one program"):
        read_program_text(str(folder), LIMIT)
    files[1].write_bytes(b"<algo>\n<gpu/>\n</algo>\n")
    with pytest.raises(InvalidInput, match="as they were written"):
        read_program_text(str(folder), LIMIT)


def test_the_command_writes_and_reads_all_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    schedule = str(tmp_path / "a.json")
    assert chorale(capsys, "synth", "bfb", "torus:4x4", "--no-cache", "-o", schedule).code == 0
    lower = ("lower", schedule, "--target", "oneccl-xml", "-o")
    plain, compressed, folder = (str(tmp_path / name) for name in ("a.xml", "a.xml.gz", "ranks"))
    assert [chorale(capsys, *lower, name).code for name in (plain, compressed)] == [0, 0]
    assert chorale(capsys, *lower, folder, "--per-rank").code == 0
    assert len(list(Path(folder).iterdir())) == 16
    text = Path(plain).read_bytes()
    for name in (plain, compressed, folder):
        assert read_program_text(name, 10**7) == text
        for command in (("lift", name, "--spec", "torus:4x4"), ("verify", name)):
            assert json.loads(chorale(capsys, *command, "--json").stdout)["ok"] is True
    refused = chorale(capsys, "lower", schedule, "--target", "mscclpp-json", "-o", str(tmp_path / "p"), "--per-rank")
    assert (refused.code, "must be XML" in refused.stderr) == (2, True)
