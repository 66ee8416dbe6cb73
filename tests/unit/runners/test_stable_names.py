"""The stable names of `chorale.runners`."""

import subprocess
import sys

import pytest

import chorale.runners


@pytest.mark.parametrize("name", chorale.runners.__all__)
def test_every_stable_name_resolves(name: str) -> None:
    assert getattr(chorale.runners, name) is not None


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'chorale\.runners' has no attribute 'Nothing'"):
        _ = chorale.runners.Nothing


def test_the_import_loads_neither_numpy_nor_ray() -> None:
    script = "import sys, chorale.runners; assert not {'numpy', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
