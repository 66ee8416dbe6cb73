"""The preloaded library lies where LD_PRELOAD, a list by spaces and colons, can name it."""

from pathlib import Path

import pytest

from chorale.job.mpi import preload
from chorale.synth.errors import Unavailable


def test_a_folder_with_odd_characters_is_left_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "temporary_folder", lambda: tmp_path)
    assert preload._loadable(Path("/data/chorale")) == Path("/data/chorale")
    for name in ("my folder", "a:b", "$ORIGIN"):
        assert preload._loadable(Path("/data") / name) == tmp_path / "native"
    monkeypatch.setattr(preload, "temporary_folder", lambda: tmp_path / "a b")
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        preload._loadable(Path("/data/my folder"))
