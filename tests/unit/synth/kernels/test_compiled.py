"""Machine code on disk belongs to one state of the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
KERNEL = """from chorale.synth.kernels.compiled import compiled
from chorale.synth.helper import helper


@compiled
def kernel(x):
    return helper(x)
"""
HELPER = """from chorale.synth.kernels.compiled import inlined


@inlined
def helper(x):
    return x + {}
"""


@pytest.fixture
def package(tmp_path):
    """A package `chorale.synth` of one kernel and one helper in another file."""
    folder = tmp_path / "chorale" / "synth"
    kernels = folder / "kernels"
    kernels.mkdir(parents=True)
    for package in (kernels, folder, folder.parent):
        (package / "__init__.py").write_text("")
    (kernels / "compiled.py").write_bytes((ROOT / "synth" / "kernels" / "compiled.py").read_bytes())
    (folder / "kernel.py").write_text(KERNEL)
    return folder


def run(package: Path) -> tuple[int, int]:
    """Return (result of the kernel, compilations) in a new process."""
    code = """from chorale.synth.kernel import kernel
from chorale.synth.kernels.compiled import compilations, machine_code_only
with machine_code_only():
    print(kernel(1), compilations())"""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    result, count = done.stdout.split()
    return int(result), int(count)


def test_a_changed_helper_in_another_file_is_compiled_again(package):
    (package / "helper.py").write_text(HELPER.format(1))
    assert run(package) == (2, 1)
    assert run(package) == (2, 0)
    (package / "helper.py").write_text(HELPER.format(5))
    assert run(package) == (6, 1)


def test_a_changed_file_that_a_kernel_does_not_use_compiles_nothing_again(package):
    (package / "helper.py").write_text(HELPER.format(1))
    (package / "other.py").write_text(KERNEL)
    assert run(package) == (2, 1)
    (package / "other.py").write_text(KERNEL.replace("helper(x)", "helper(x) + 1"))
    assert run(package) == (2, 0)
