"""Names in common spellings, stable names of `chorale.synth`, and errors that keep their cause."""

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, strategies as st

import chorale.synth
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.errors import InvalidInput, Unavailable, UnknownName, name_among, plain
from chorale.synth.methods.catalog import METHOD_ALIASES, METHODS, method_named
from chorale.synth.targets.registry import TARGET_ALIASES, TARGETS


@given(st.sampled_from(STANDARD), st.sampled_from(["-", "_", " ", ""]), st.booleans())
def test_case_and_separators_do_not_matter(name: CollectiveName, separator: str, is_upper: bool) -> None:
    text = name.value[:3] + separator + name.value[3:]
    assert name_among("collective", text.upper() if is_upper else text, CollectiveName) == name


def test_no_two_names_are_told_apart_by_that_only() -> None:
    for names, aliases in ((METHODS, METHOD_ALIASES), (TARGETS, TARGET_ALIASES)):
        assert len({plain(name) for name in names}) == len(names)
        assert set(aliases.values()) <= set(names)
        assert all(plain(alias) == alias and alias not in map(plain, names) for alias in aliases)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bfs", "unknown method 'bfs'; did you mean 'bfb'? choose from bfb, ring"),
        ("xyzzy", "unknown method 'xyzzy'; choose from bfb, ring"),
        ("", "unknown method ''; choose from bfb"),
        ("a\nb" * 200, "..."),
    ],
)
def test_unknown_names_are_one_line(text: str, words: str) -> None:
    with pytest.raises(UnknownName) as caught:
        method_named(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InvalidInput)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


@pytest.mark.parametrize("name", chorale.synth.__all__)
def test_every_name_is_what_its_module_defines_and_in_the_guide(name: str):
    value = getattr(chorale.synth, name)
    assert not isinstance(value, ModuleType)
    assert value is getattr(import_module(value.__module__), name)
    assert f"`{name}" in GUIDE.read_text(encoding="utf-8")


def test_no_name_is_hidden_by_a_package():
    packages = {path.parent.name for path in Path(chorale.synth.__path__[0]).glob("*/__init__.py")}
    modules = {path.stem for path in Path(chorale.synth.__path__[0]).glob("*.py")}
    assert not (packages | modules) & set(chorale.synth.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = chorale.synth.no_such_name


def test_the_import_alone_loads_no_library():
    code = "import sys, chorale.synth; print(sorted({'numpy', 'scipy', 'networkx'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


RAY = """The actor died because of an error raised in its creation task,
\x1b[36mray::Measurer.__init__()\x1b[39m (pid=7)
  At least one of the input arguments for this task could not be computed:
{}
  File "/site-packages/ray/_private/serialization.py", line 9, in load
    return pickle.loads(data)
ModuleNotFoundError: No module named 'chorale.runners'; 'chorale' is not a package"""


def test_the_end_of_a_traceback_of_ray_is_shown() -> None:
    text = str(Unavailable("an actor must start", RuntimeError(RAY.format('  File "x.py", line 1\n' * 99)), "look"))
    assert text.endswith("got ModuleNotFoundError: No module named 'chorale.runners'; 'chorale' is not a package; look")


def test_what_a_library_says_is_whole_and_long_values_keep_both_ends() -> None:
    hint = "words " * 100 + "set MLFLOW_ALLOW_FILE_STORE=true"
    assert hint in str(Unavailable("MLflow must answer", f"file:./mlruns: {hint}", "choose another"))
    shown = str(InvalidInput("a value must fit", "a" * 500 + "z", "shorten it"))
    assert "aaa ... aaa" in shown
    assert "z; shorten it" in shown
    assert len(shown) < 260


def test_what_a_file_says_never_controls_a_terminal() -> None:
    """A job's ranks print errors as Python does."""
    error = InvalidInput("an entry must end after it begins: {}", "\x1b]0;owned\x07 \x9b31m \u202e", "see \x1b[2J it")
    assert str(error) == "an entry must end after it begins: \ufffd]0;owned\ufffd \ufffd31m \ufffd; see \ufffd[2J it"


@pytest.mark.parametrize(("name", "path"), [("numpy", ""), ("numpy", "PYTHONPATH"), ("random", "PYTHONPATH")])
def test_a_file_that_hides_a_library_is_harmless_or_named(tmp_path: Path, name: str, path: str) -> None:
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    root, command = Path(__file__).parents[3], [sys.executable, "-m", "chorale", "synth", "bfb", "ring:4"]
    paths = {"PYTHONPATH": f"{tmp_path}:{root}" if path else str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=60, check=False)
    assert f"{tmp_path / name}.py hides the library {name}: rename it" in done.stderr or not (path or done.returncode)
    assert "Traceback" not in done.stderr
