"""What is made of a kernel in C++ does what its text does, and what cannot be translated is refused with its line."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from chorale.runners.engine.kernels import compile_program
from chorale.synth.kernels.compiled import Kernel, in_python
from chorale.synth.kernels.library import calls_of, load
from chorale.synth.kernels.translation.program import program_text
from chorale.synth.kernels.types import ArrayType, TranslationError, type_of
from tests.conformance.kernel_comparison import same
from tests.unit.synth.kernels import examples

INTEGERS = st.integers(-(2**31), 2**31)
WORDS = st.integers(0, 2**64 - 1).map(np.uint64)
REALS = st.floats(-1e9, 1e9).filter(lambda value: value != 0)
Native = Mapping[str, Callable[[tuple[Any, ...]], Any]]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """The machine code of the examples, which checks every index."""
    path = tmp_path_factory.mktemp("native") / "examples.so"
    compile_program(program_text(examples.EXAMPLES, "none"), path, ("-O1", "-DCHORALE_CHECK_BOUNDS"))
    libraries = load(path)
    return {kernel.__name__: calls_of(kernel.py_func, libraries) for kernel in examples.EXAMPLES}


def check(native: Native, kernel: Kernel, *arguments: Any) -> None:
    """Results and arguments after the call are the same as those of the text."""
    copies = copy.deepcopy(arguments)
    with in_python():
        wanted = kernel(*copies)
    assert same(native[kernel.__name__](arguments), wanted)
    assert all(map(same, arguments, copies))


EXAMPLES = {kernel.__name__: kernel for kernel in examples.EXAMPLES}


@given(a=INTEGERS, b=INTEGERS.filter(bool))
def test_integers(native, a, b):
    check(native, EXAMPLES["integers"], a, b)


def test_numbers_wrap_and_division_by_zero_is_no_error(native):
    assert native["integers"]((2**62, 0))[:2] == (0, 0)
    assert native["integers"]((2**62, 4))[2] == -(2**62) + 4  # 2^64 is 0


@given(a=WORDS, b=WORDS)
def test_unsigned_words(native, a, b):
    check(native, EXAMPLES["words"], a, b)


@given(a=REALS, b=REALS, c=st.integers(-9, 9))
def test_reals(native, a, b, c):
    check(native, EXAMPLES["reals"], a, b, c)


@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=5))
def test_narrow_elements_are_wide_outside_of_their_array(native, values):
    check(native, EXAMPLES["narrow"], np.array(values, np.int32), np.zeros(2, np.int8))


def test_products_of_narrow_elements_do_not_wrap(native):
    assert native["narrow"]((np.array([2**30, 2**30], np.int32), np.zeros(1, np.int8)))[1] == 2**60 + 2**60 % 100


@given(count=st.integers(0, 40))
def test_loops_and_conditions(native, count):
    check(native, EXAMPLES["control"], count)


@given(rows=st.integers(2, 5), columns=st.integers(3, 5), row=st.integers(-2, 1))
def test_rows_columns_and_parts(native, rows, columns, row):
    check(native, EXAMPLES["parts"], np.arange(rows * columns).reshape(rows, columns), row)


def test_three_axes(native):
    check(native, EXAMPLES["cube"], np.arange(24, dtype=np.uint64).reshape(2, 3, 4), np.uint64(96))


@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_functions_of_numpy(native, values):
    check(native, EXAMPLES["library"], np.array(values), np.array(values) > 0)


@pytest.mark.parametrize("size", [0, 1, 5])
def test_new_arrays(native, size):
    check(native, EXAMPLES["blank"], size)


@pytest.mark.parametrize("by", [2, 5])
def test_records_within_records(native, by):
    check(native, EXAMPLES["records"], examples.Outer(examples.Inner(np.arange(1, 4), 0.5), np.zeros(3, bool), 1), by)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_every_type_of_a_union(native, dtype):
    far = int(np.iinfo(dtype).max)
    check(native, EXAMPLES["variants"], np.array([far, 1, far], dtype), far)


def test_errors_of_kernels_are_errors_of_python(native):
    with pytest.raises(ValueError, match="there are no values"):
        native["refusal"]((np.empty(0, np.int64),))
    with pytest.raises(IndexError, match="index 9 in an axis of 2"):
        native["parts"]((np.zeros((2, 3), np.int64), 9))


def _mixed(a: int, b: np.uint64) -> bool:
    return a < b


def _two_types(values: NDArray[np.int64]) -> int:
    result = 0  # type: ignore[assignment]
    if len(values):
        result = values
    return len(result)


def _unknown_statement(a: int) -> int:
    with open("file"):
        return a


def _unknown_function(values: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.flip(values)


def _chosen_by_truth(a: int, b: int) -> int:
    return a or b


def _no_annotation_of_kernels(a: list[int]) -> int:
    return a[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_mixed, "a signed and an unsigned number meet"),
        (_two_types, "one variable is Integer and Array<Integer, 1>"),
        (_unknown_statement, "no statement of kernels"),
        (_unknown_function, "no function of NumPy that kernels know: np.flip"),
        (_chosen_by_truth, "chosen by its truth"),
        (_no_annotation_of_kernels, r"no type of kernels: list\[int\]"),
    ],
)
def test_what_is_not_known_is_refused(function, message):
    with pytest.raises(TranslationError, match=message):
        program_text([Kernel(function)], "none")


def test_a_refusal_names_file_and_line():
    line = _mixed.__code__.co_firstlineno + 1
    with pytest.raises(TranslationError, match=rf"{Path(__file__).name}:{line}\)$"):
        program_text([Kernel(_mixed)], "none")


def test_the_same_text_every_time():
    assert program_text(examples.EXAMPLES, "none") == program_text(examples.EXAMPLES, "none")


Element = TypeVar("Element", bound=np.generic)


class Alias:
    """As Python 3.12 has `type Alias[Element] = ...`, by which newer NumPy defines NDArray."""

    __value__ = np.ndarray[tuple[Any, ...], np.dtype[Element]]


def test_aliases_of_python_3_12_stand_for_their_value():
    assert type_of(GenericAlias(Alias, (np.int32,))) == ArrayType("int32")
