"""Small calls run in Python, without numba; results are those of machine code, and large calls go to it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from chorale.synth.kernels import compiled as module
from chorale.synth.kernels.compiled import Kernel, inlined, machine_code_only


@inlined
def halves(number):  # type: ignore[no-untyped-def]
    return number // 2, number / 0.0


def text(values, scale):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for value in values:
        total += halves(value)[0] * scale
    values[0] = total
    return total, halves(total)[1] > 1, values[:2]


@pytest.fixture(autouse=True)
def _allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Allowance, "seconds", 0.3)


def test_both_ways_give_the_same_values_and_types() -> None:
    first, second = np.arange(10, dtype=np.int64), np.arange(10, dtype=np.int64)
    small = Kernel(text, 1.0)
    in_python = small(first, 3)
    assert small._machine_code is None
    with machine_code_only():
        native = Kernel(text)(second, 3)
    for one, other in zip(in_python, native, strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other)
    assert first.tolist() == second.tolist()


def test_large_calls_and_those_after_the_allowance_go_to_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    large, late = Kernel(text, 1.0), Kernel(text, 1.0)
    large(np.zeros(200_000, dtype=np.int64), 1)
    assert large._machine_code is not None
    monkeypatch.setattr(module._Allowance, "seconds", 0.0)
    late(np.zeros(3, dtype=np.int64), 1)
    assert late._machine_code is not None


def test_kernels_of_floats_never_run_in_python() -> None:
    kernel = Kernel(text)
    kernel(np.zeros(3, dtype=np.int64), 1)
    assert kernel._machine_code is not None


def test_time_in_python_is_taken_from_the_allowance_and_expected_to_grow() -> None:
    kernel = Kernel(text, 1.0)
    kernel(np.zeros(2000, dtype=np.int64), 1)
    assert module._Allowance.seconds < 0.3
    assert kernel._expected_s(8000) > 4 * kernel._expected_s(2000) * 0.99
    assert Kernel(text, 1.0)._expected_s(5000) < Kernel(text, 1.5)._expected_s(5000)


@pytest.mark.parametrize(
    "work",
    [
        "ch.synthesize('hypercube:3', 'allreduce', method='bfb')",
        "ch.synthesize('hypercube:3', 'allgather', method='forest')",
    ],
)
def test_small_networks_need_no_numba(work: str) -> None:
    code = f"import sys, chorale as ch; {work}; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
