"""Files that jobs write: whole, and never in place of a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from chorale.job.record import write_whole


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for content in (b"first, and longer", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_device_stays() -> None:
    write_whole(Path("/dev/null"), b"content")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
