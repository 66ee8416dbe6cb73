"""Reductions of every type against NumPy, bit for bit but for what kind of no number comes out."""

import ctypes

import numpy as np
import pytest

from chorale.runners.engine.library import DataType, ReduceOp, Status, engine_library, load_library
from tests.live.engine.reference import DTYPES, NUMPY, Array

SIXTEEN = (DataType.FLOAT16, DataType.BFLOAT16)
FLOATS = (*SIXTEEN, DataType.FLOAT32, DataType.FLOAT64, DataType.FLOAT128)
INTEGERS = tuple(type_ for type_ in DataType if type_ not in FLOATS)


def reduced(type_: DataType, operation: ReduceOp, left: Array, right: Array, shift: int = 0) -> Array:
    """Return what the engine makes of the two, at addresses that are `shift` bytes from aligned ones."""
    places = [ctypes.create_string_buffer(left.nbytes + shift + 1) for _ in range(3)]
    first, second, result = (ctypes.addressof(buffer) + shift for buffer in places)
    ctypes.memmove(first, left.tobytes(), left.nbytes)
    ctypes.memmove(second, right.tobytes(), right.nbytes)
    assert load_library(engine_library()).chorale_reduce(type_, operation, result, first, second, len(left)) == 0
    return np.frombuffer(ctypes.string_at(result, left.nbytes), left.dtype)


def expected(operation: ReduceOp, left: Array, right: Array) -> Array:
    with np.errstate(all="ignore"):
        if left.dtype in (DTYPES[type_] for type_ in SIXTEEN):  # computed as float32 and rounded once
            return NUMPY[operation](left.astype(np.float32), right.astype(np.float32)).astype(left.dtype)
        return NUMPY[operation](left, right)


def check(type_: DataType, operation: ReduceOp, left: Array, right: Array, shift: int = 0) -> None:
    got, due = reduced(type_, operation, left, right, shift), expected(operation, left, right)
    if type_ in INTEGERS:
        assert (got == due).all()
        return
    no_numbers = np.isnan(due)
    assert (np.isnan(got) == no_numbers).all()
    if type_ == DataType.FLOAT128:  # of 16 bytes, 10 count
        same = (got == due) & (np.signbit(got) == np.signbit(due)) | no_numbers
    else:
        bits = np.dtype(f"u{got.dtype.itemsize}")
        same = (got.view(bits) == due.view(bits)) | no_numbers
    if operation in (ReduceOp.MIN, ReduceOp.MAX):
        same |= (got == 0) & (due == 0)  # of zeros of both signs, either
    assert same.all(), (left[~same][:3], right[~same][:3], got[~same][:3], due[~same][:3])


def special(type_: DataType) -> Array:
    dtype = DTYPES[type_]
    if type_ in INTEGERS:
        facts = np.iinfo(dtype)
        return np.array([facts.min, facts.min + 1, facts.max, facts.max - 1, 0, 1, 2, 3, 100], dtype)
    tiny = {2: 2.0**-24 if type_ == DataType.FLOAT16 else 2.0**-133, 4: 2.0**-149}.get(dtype.itemsize, 2.0**-1074)
    large = {DataType.FLOAT16: 65504.0, DataType.BFLOAT16: 3.3895e38, DataType.FLOAT32: 3.4028235e38}
    values = [0.0, tiny, 3 * tiny, 1.0, 1.5, 3.0, 1e-3, large.get(type_, 1.7976931348623157e308), np.inf, np.nan]
    return np.array([*values, *(-value for value in values)]).astype(dtype)


@pytest.mark.parametrize("type_", DataType)
@pytest.mark.parametrize("operation", ReduceOp)
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_values_at_the_edges_and_random_ones(type_: DataType, operation: ReduceOp, shift: int) -> None:
    edges = special(type_)
    check(type_, operation, np.repeat(edges, len(edges)), np.tile(edges, len(edges)), shift)
    kept = np.float64 if type_ == DataType.FLOAT128 else DTYPES[type_]  # not all of its bytes are numbers
    numbers = np.random.default_rng(operation).integers(0, 256, (2, 8 * 5003), dtype=np.uint8).view(kept)
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(DTYPES[type_])
    check(type_, operation, numbers[0], numbers[1], shift)


@pytest.mark.parametrize("type_", SIXTEEN)
@pytest.mark.parametrize("operation", ReduceOp)
def test_all_values_of_sixteen_bits(type_: DataType, operation: ReduceOp) -> None:
    """Each with some others: this widens all there are, and narrows to subnormal ones, ties and infinity."""
    everything = np.arange(2**16, dtype=np.uint16).view(DTYPES[type_])
    for other in [*special(type_), *np.array([1.0009765625, 0.99951171875, 2.0**-11, 0.1]).astype(DTYPES[type_])]:
        check(type_, operation, everything, np.full(2**16, other))


@pytest.mark.parametrize(("type_", "operation"), [(-1, 0), (13, 0), (0, -1), (0, 5), (2**31 - 1, 2**31 - 1)])
def test_types_and_operations_that_there_are_not(type_: int, operation: int) -> None:
    assert load_library(engine_library()).chorale_reduce(type_, operation, None, None, None, 0) == Status.INVALID
