"""The files behind an experiment: no more than it can load, and all that it does load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chorale.experiments.framework import parts
from chorale.experiments.framework.catalog import module_of
from chorale.experiments.framework.parts import ROOT, source_files_of

FILES = {
    "chorale/experiments/__init__.py": "",
    "chorale/experiments/asked.py": "def run():\n    from chorale.synth.used import f\n",
    "chorale/experiments/other.py": "",
    "chorale/experiments/data/numbers.json": "[1]",
    "chorale/synth/__init__.py": "if TYPE_CHECKING:\n    from chorale.synth.idle import g\n",
    "chorale/synth/used.py": "import chorale.synth.deep.deepest as d\nimport numpy\nX = {'named.part.FORMS': 'a'}\n",
    "chorale/synth/named/__init__.py": "",
    "chorale/synth/named/part.py": "",
    "chorale/synth/idle.py": "",
    "chorale/synth/deep/__init__.py": "",
    "chorale/synth/deep/deepest.py": "",
    "chorale/synth/deep/table.csv": "1",
    "chorale/synth/deep/__pycache__/deepest.pyc": "1",
    "chorale/synth/beside/__init__.py": "",
    "chorale/synth/beside/table.csv": "1",
}
NOT_BEHIND = {name for name in FILES if any(word in name for word in ("other", "idle", "beside", "__pycache__"))}
OPENED = """
import json, sys
opened = set()
sys.addaudithook(lambda event, arguments: opened.add(str(arguments[0])) if event == "open" else None)
from chorale.experiments.framework.catalog import load
asked = load(sys.argv[1])
asked.conclude([asked.evaluate(case) for case in asked.cases(True)])
modules = {str(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)}
data = {name for name in opened if not name.endswith(".py")}  # others are read to see whether machine code is theirs
print(json.dumps(sorted(data | modules)))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    forget: list[Callable[[], None]] = [parts._modules.cache_clear, parts._loaded_with.cache_clear]
    for clear in forget:
        clear()
    yield tmp_path
    for clear in forget:
        clear()


def test_what_is_imported_counts_and_the_data_beside_it(tree):
    assert source_files_of("chorale.experiments.asked") == {
        name: tree / name for name in sorted(set(FILES) - NOT_BEHIND)
    }
    with pytest.raises(KeyError):
        source_files_of("chorale.experiments.none")


def loaded(name: str) -> set[str]:
    """Return which of our files an experiment opened or imported, but for what Python compiled of them."""
    done = subprocess.run([sys.executable, "-c", OPENED, name], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(path) for path in json.loads(done.stdout.splitlines()[-1])]
    inside = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT) and path.is_file()}
    return {name for name in inside if name.startswith(parts._PACKAGES) and "__pycache__" not in name}


@pytest.mark.parametrize(
    "name",
    [
        "training-data-parallel",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("mi250-prediction", "side-by-side", "tuning-strategies")
        ),
    ],
)
@pytest.mark.timeout(600)
def test_nothing_is_loaded_that_does_not_count(name):
    found = loaded(name) - {"chorale/experiments/framework/catalog.py"}
    assert len(found) > 20
    assert found <= set(source_files_of(module_of(name)))


def test_a_change_elsewhere_keeps_results():
    behind = source_files_of(module_of("swing-table-2"))
    assert not [name for name in behind if name.startswith(("chorale/tuner/", "chorale/runners/"))]
