"""Random programs, and mutants of them, in a program that sanitizers watch."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.native.driver import build_driver, write_tasks

STRICT = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=512:"
    "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def run(sanitizer: str, folder: Path, tasks: int, calls: int, mutants: int, seed: int) -> str:
    """Run the driver; return what it says at the end."""
    file = folder / "tasks"
    write_tasks(file, seed, tasks, calls)
    command = [str(build_driver(sanitizer)), str(file), str(seed), str(mutants)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | STRICT, timeout=550, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-4000:]}"
    assert not done.stderr, done.stderr[-4000:]
    return done.stdout


def test_the_driver_runs_what_python_wrote(tmp_path: Path) -> None:
    assert run("none", tmp_path, 5, 6, 100, 1).startswith("30 calls, ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_addresses_and_undefined_behaviour(tmp_path: Path) -> None:
    assert run("address", tmp_path, 60, 10, 300, 2).startswith("600 calls, ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_threads(tmp_path: Path) -> None:
    assert run("thread", tmp_path, 40, 8, 0, 3).startswith("320 calls, ")
