"""The list of what `make test` leaves out and the real parts name tests that exist, and the longest line decides."""

from pathlib import Path

import pytest

from tests import choice, real_parts

HERE = Path(__file__).parent


def test_every_line_names_a_test() -> None:
    for name in choice.entries():
        path, *inner = name.partition("[")[0].split("::")
        assert (HERE / path).exists(), name
        for part in inner:
            assert f" {part}" in (HERE / path).read_text(encoding="utf-8"), name


def test_every_real_part_has_tests() -> None:
    for path, _, name in (begin.partition("::") for begins in real_parts.PARTS.values() for begin in begins):
        files = [file for file in HERE.rglob("test_*.py") if file.relative_to(HERE).as_posix().startswith(path)]
        assert path == "conformance" or any(f"def {name}" in file.read_text(encoding="utf-8") for file in files), path


def test_cases_that_are_gone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "entries", lambda: {"b.py::test_c": True, "b.py::test_c[x]": False})
    choice.require_cases(["b.py::test_c[x]", "b.py::test_c[y]", "b.py::test_d[y]"])
    with pytest.raises(pytest.UsageError, match="keeps none of the cases that"):
        choice.require_cases(["b.py::test_c[y]"])


def test_the_longest_line_decides(monkeypatch) -> None:
    lines = {"a": True, "a/test_b.py::test_c": False, "a/test_b.py::test_c[x]": True}
    monkeypatch.setattr(choice, "entries", lambda: lines)
    left_out = [
        choice.is_more(f"a/test_b.py{rest}") for rest in ("", "::test_d[x]", "::test_c", "::test_c[y]", "::test_c[x]")
    ]
    assert left_out == [True, True, False, False, True]
    assert not choice.is_more("b/test_b.py::test_c")
    assert (choice.is_whole("a/test_b.py"), choice.is_whole("a/test_c.py")) == (False, True)
