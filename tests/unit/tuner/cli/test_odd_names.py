"""Names and folders that are no UTF-8, as a shell hands them over: refused in one line, or they work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.command import chorale

ODD = os.fsdecode(b"odd\xff")
COMMANDS = [
    ("campaign", "check", ODD),
    ("campaign", "repair", ODD),
    ("table", "write", "--campaign", ODD, "-o", "table"),
    ("topology", "show", f"ring:{ODD}"),
    ("topology", "show", f"file:{ODD}"),
    ("verify", f"{ODD}.parquet"),
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
    assert done.stderr.count("; ") >= 2


@pytest.mark.parametrize("words", [("campaign", "check", "small"), ("tune", "--follow", "small"), ("best", "--help")])
def test_a_data_folder_that_is_no_utf8_is_refused_where_it_is_used(
    words: tuple[str, ...], capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / ODD))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = chorale(capsys, *words)
    if "--help" in words:
        assert done.code == 0
        return
    assert done.code in (2, 3)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
