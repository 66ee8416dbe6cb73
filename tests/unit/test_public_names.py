"""The names that packages export: each is found, and importing a package loads nothing heavy."""

import importlib
import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "mlflow", "optuna", "ray", "pydantic", "matplotlib")


def test_every_name_is_found_in_the_module_that_is_its_home() -> None:
    module = importlib.import_module("chorale.tuner")
    for name in module.__all__:
        value = getattr(module, name)
        assert getattr(value, "__name__", name) in (name, "Mapping")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_importing_a_package_loads_none_of_the_heavy_libraries() -> None:
    code = f"import sys, chorale.tuner; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
