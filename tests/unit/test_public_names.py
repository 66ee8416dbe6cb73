"""The names that packages export: each is found, and importing a package loads nothing heavy."""

import importlib
import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "mlflow", "optuna", "ray", "pydantic", "matplotlib")


PACKAGES = pytest.mark.parametrize("package", ["chorale.tuner", "chorale.runners"])


@PACKAGES
def test_every_name_is_found_in_the_module_that_is_its_home(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        assert value is not None
        assert package == "chorale.runners" or getattr(value, "__name__", name) in (name, "Mapping")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


@PACKAGES
def test_importing_a_package_loads_none_of_the_heavy_libraries(package: str) -> None:
    code = f"import sys, {package}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
