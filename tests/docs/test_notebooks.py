"""The notebooks of the documentation run, and what they show is what their cells say today."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def module() -> Any:
    """Return docs/site/notebooks.py, which is no package."""
    spec = importlib.util.spec_from_file_location("notebooks_of_the_site", ROOT / "docs/site/notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_as_executed(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    stored = json.loads(path.read_text(encoding="utf-8"))
    anew = module().executed(stored)
    assert anew == stored, "run: python docs/site/notebooks.py"
    assert any("text/html" in output.get("data", {}) for cell in anew["cells"] for output in cell.get("outputs", ()))


def test_there_are_two_and_their_pages_show_drawings():
    assert len(NOTEBOOKS) >= 2
    for path in NOTEBOOKS:
        page = module().page(json.loads(path.read_text(encoding="utf-8")))
        assert "<svg" in page
        assert re.search(r"^# ", page)
