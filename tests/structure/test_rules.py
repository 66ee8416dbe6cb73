"""Every rule of the source tree finds what breaks it, and nothing in a tree that keeps it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.structure import rules
from tests.structure.measures import measure, product_table, table
from tests.structure.rules import RULES, Rule
from tests.structure.source_tree import SourceFile

SOUND = {
    "synth/errors.py": "class Refused(Exception):\n    def text(self) -> str:\n        return ''\n",
    "runners/ray/pool.py": (
        "import ray\nfrom chorale.synth.errors import Refused\n\n\n"
        "def run(refused: Refused) -> None:\n    ray.get(refused)\n"
    ),
}
BROKEN: dict[str, tuple[Rule, dict[str, str]]] = {
    "file": (rules.fillers, {"synth/places.py": ""}),
    "class": (rules.fillers, {"synth/tree.py": "class KeptTrees:\n    pass\n"}),
    "function": (rules.fillers, {"synth/tree.py": "def made():\n    pass\n"}),
    "parameter": (rules.fillers, {"synth/tree.py": "def grow(found):\n    pass\n"}),
    "loose": (rules.loose_files, {"runners/pool.py": ""}),
    "long": (rules.long_files, {"synth/tree.py": "x = 1\n" * (rules.MAX_FILE_LINES + 1)}),
    "shared": (rules.shared_class_names, {"synth/a.py": "class Tree: ...\n", "synth/b.py": "class Tree: ...\n"}),
    "name": (rules.import_names, {"synth/a.py": "def f():\n    from synth.b import g\n"}),
    "relative": (rules.import_names, {"synth/a.py": "from .b import g\n"}),
    "cycle": (
        rules.import_cycles,
        {"synth/a.py": "from chorale.synth.b import g\n", "synth/b.py": "from chorale.synth import a\n"},
    ),
    "door": (rules.doors, {"tuner/launch/loop.py": "def f():\n    import ray.util\n"}),
    "doors": (rules.doors, {"tuner/a.py": "import filelock\n", "runners/b.py": "import filelock\n"}),
}


def files_of(texts: dict[str, str]) -> list[SourceFile]:
    return [SourceFile(path, text) for path, text in texts.items()]


def lines_of(chosen: Iterable[Rule], texts: dict[str, str]) -> list[str]:
    return [line for rule in chosen for line in rule(files_of(texts))]


def test_a_sound_tree_breaks_no_rule():
    assert lines_of(RULES, SOUND) == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_rule_is_named(name):
    rule, texts = BROKEN[name]
    (line,) = lines_of([rule], texts)
    assert any(path in line or path.split("/")[-1].removesuffix(".py") in line for path in texts)


def test_imports_for_type_checkers_make_no_cycle():
    texts = {
        "synth/a.py": "from chorale.synth.b import g\n",
        "synth/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from chorale.synth.a import f\n",
    }
    assert lines_of([rules.import_cycles], texts) == []


def test_lines_of_all_languages_are_counted_without_vendored_files(tmp_path):
    for name, lines in {
        "synth/a.py": 2,
        "synth/native/b.hpp": 3,
        "tuner/page/c.js": 4,
        "tuner/page/vendor/d.js": 9,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * lines)
    heading, *rows = [row.split() for row in product_table(tmp_path).splitlines()]
    counts = {row[0]: dict(zip(heading, map(int, row[1:]), strict=True)) for row in rows}
    assert (counts["product"]["files"], counts["product"]["lines"]) == (3, 9)
    assert (counts["synth"]["C++"], counts["tuner"]["JavaScript"]) == (3, 4)


def test_measures():
    of = measure(files_of(SOUND))
    assert (of.files, of.lines, of.functions) == (2, 9, 2)
    assert of.import_share == pytest.approx(100 * 2 / 9)
    assert (of.function_median, of.longest_file) == (2, 6)
    assert table(files_of(SOUND)).splitlines()[-1].split()[:3] == ["all", "2", "9"]
