"""Names and folders that are no UTF-8, as a shell hands them over: refused in one line, or they work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.schedule.codec import from_json_text
from chorale.tuner.files.topology_specs import load_topology
from tests.command import chorale

ODD = os.fsdecode(b"odd\xff")
COMMANDS = [
    ("campaign", "check", ODD),
    ("table", "write", "--campaign", ODD, "-o", "table"),
    ("topology", "show", f"file:{ODD}"),
    ("tune", f"{ODD}.yaml"),
    ("best", "--topology", ODD, "--collective", "allreduce", "--size", "1M"),
    ("simulate", ODD, "ring:4", "--sizes", ODD),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_name_that_is_no_utf8_is_refused_in_one_line(
    words: tuple[str, ...], capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    done = chorale(capsys, *words)
    assert done.code in (2, 3)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("chorale: ")
    assert done.stderr.count("; ") >= 1


@pytest.mark.parametrize("name", [ODD, "what?"])
@pytest.mark.parametrize("words", [("campaign", "check", "small"), ("tune", "--follow", "small"), ("best", "--help")])
def test_a_data_folder_whose_name_cannot_be_used_is_refused_where_it_is_used(
    words: tuple[str, ...], name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / name))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = chorale(capsys, *words)
    if "--help" in words:
        assert done.code == 0
        return
    assert done.code in (2, 3)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_names_in_files_do_not_steer_the_terminal(capsys: Any, tmp_path: Path) -> None:
    steering = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
    path, program = str(tmp_path / "schedule.json"), str(tmp_path / "program.xml")
    chorale(capsys, "synth", "bfb", "ring:4", "-o", path, "--quiet")
    document = json.loads(Path(path).read_text())
    document["method"] = steering
    text = json.dumps(document).encode()
    document["id"] = from_json_text(text, load_topology, require_id=False).id
    Path(path).write_text(json.dumps(document))
    chorale(capsys, "lower", path, "--target", "msccl-xml", "-o", program, "--quiet")
    Path(program).write_text(Path(program).read_text().replace(' name="', ' name="\x9b31m'))
    for words in (("verify", path), ("show", path), ("compare", path, path), ("verify", program), ("verify", steering)):
        done = chorale(capsys, *words)
        printed = (done.stdout + done.stderr).replace("\n", "")
        assert not {letter for letter in printed if not letter.isprintable()}, (words, printed)
    assert "\N{REPLACEMENT CHARACTER}" in printed
