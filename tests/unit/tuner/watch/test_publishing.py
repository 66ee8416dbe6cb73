"""The file that jobs read, and a watch that goes on after it was killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chorale.job.table.layout import FORMAT
from chorale.synth.errors import InvalidInput
from chorale.tuner.watch.canary import Publication, PublicationFiles, Publisher

_FIRST = Publication("a" * 64, b"first", 1000.0, {"why": "link 0>1 is dead", "seconds": 1.5})
_SECOND = Publication("b" * 64, b"second", 2000.0, {"why": "all links are healthy", "seconds": 0.5})


def test_a_publisher_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    """Killed before the file was replaced, and after it: the file decides what is published."""

    def publisher() -> Publisher:
        return Publisher(tmp_path / "table", PublicationFiles(tmp_path / "record"))

    (tmp_path / "record").mkdir()
    first, second = (replace(each, data=_table_data(each.digest)) for each in (_FIRST, _SECOND))
    publisher().publish(first)
    for is_replaced in (False, True):
        dying = publisher()
        dying.resume()
        assert dying.present == first
        dying._write(second)
        if is_replaced:
            (tmp_path / "table").write_bytes(second.data)
        again = publisher()
        again.resume()
        assert (again.present, again.former) == ((second, first) if is_replaced else (first, None))


def _table_data(digest: str) -> bytes:
    """Return the first lines of a table's file."""
    return f"{FORMAT}\nx y z {digest}\n".encode()


def test_without_its_folder_nothing_is_published(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Publisher(tmp_path / "none" / "table", PublicationFiles(tmp_path)).publish(_FIRST)
