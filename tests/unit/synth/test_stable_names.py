"""The stable names of `chorale.synth`: each exists, is documented, and is loaded on first use only."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import chorale.synth

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


@pytest.mark.parametrize("name", chorale.synth.__all__)
def test_every_name_is_what_its_module_defines(name: str):
    value = getattr(chorale.synth, name)
    assert not isinstance(value, ModuleType)
    assert value is getattr(import_module(value.__module__), name)


@pytest.mark.parametrize("name", chorale.synth.__all__)
def test_every_name_is_in_the_guide(name: str):
    assert f"`{name}" in GUIDE.read_text(encoding="utf-8")


def test_no_name_is_hidden_by_a_package():
    packages = {path.parent.name for path in Path(chorale.synth.__path__[0]).glob("*/__init__.py")}
    modules = {path.stem for path in Path(chorale.synth.__path__[0]).glob("*.py")}
    assert not (packages | modules) & set(chorale.synth.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = chorale.synth.no_such_name


def test_the_import_alone_loads_no_library():
    code = "import sys, chorale.synth; print(sorted({'numpy', 'scipy', 'networkx'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
