"""What collectives put where, by NumPy, and memory to try it in: with guards around it and at any alignment."""

from collections.abc import Callable, Sequence

import ml_dtypes  # noqa: F401 - registers bfloat16
import numpy as np
from numpy.typing import NDArray

from chorale.runners.engine.library import DataType, ReduceOp
from chorale.synth.collective import Collective, CollectiveName

DTYPES = {each: np.dtype(each.name.lower()) for each in DataType}  # NumPy knows bfloat16 by ml_dtypes
_GUARD_BYTES = 64
_GUARD = 0xA5

Array = NDArray[np.generic]
NUMPY: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
    ReduceOp.PROD: np.multiply,
}  # fmt: skip
"""The division of averages is another step."""


def is_integer(type: DataType) -> bool:
    return DTYPES[type].kind in "iu"


def input_elements(collective: Collective, elements: int, ranks: int) -> int:
    return elements // ranks if collective.name == CollectiveName.ALLGATHER else elements


def output_elements(collective: Collective, elements: int, ranks: int) -> int:
    return elements // ranks if collective.name == CollectiveName.REDUCE_SCATTER else elements


def exact_values(type: DataType, operation: ReduceOp, count: int, random: np.random.Generator) -> Array:
    """Return values of which every order of the operation gives the same: integers wrap, small floats are exact."""
    dtype = DTYPES[type]
    if is_integer(type):
        return random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    if operation == ReduceOp.PROD:
        return random.choice([-1.0, 1.0, 2.0, 0.5], count).astype(dtype)
    return random.integers(-15, 16, count).astype(dtype)


def many_magnitudes(rank: int, elements: int) -> Array:
    """Return float32 numbers of many magnitudes for `rank`, so that the order of additions shows in the sum."""
    rng = np.random.default_rng([rank, elements])
    return (rng.standard_normal(elements) * 10.0 ** rng.integers(-6, 7, elements)).astype(np.float32)


def combined(inputs: Sequence[Array], type: DataType, operation: ReduceOp) -> Array:
    result = inputs[0].copy()
    with np.errstate(all="ignore"):
        for other in inputs[1:]:
            result = NUMPY[operation](result, other)
    return divided(result, type, len(inputs)) if operation == ReduceOp.AVG else result


def divided(total: Array, type: DataType, ranks: int) -> Array:
    """Return the elements divided, towards zero for integers."""
    if is_integer(type):
        wide = total.astype(np.int64) if DTYPES[type].kind == "i" else total
        return (wide // ranks + ((wide < 0) & (wide % ranks != 0))).astype(total.dtype)
    wide = total if total.dtype.itemsize >= 8 else total.astype(np.float32)
    return (wide / wide.dtype.type(ranks)).astype(total.dtype)


def expected_output(
    collective: Collective, inputs: Sequence[Array], rank: int, type: DataType, operation: ReduceOp
) -> Array | None:
    """Return what the output of `rank` must hold; None where it is not defined."""
    ranks, name = len(inputs), collective.name
    if name == CollectiveName.ALLGATHER:
        return np.concatenate(inputs)
    if name == CollectiveName.BROADCAST:
        return inputs[collective.root or 0]
    if name == CollectiveName.ALLTOALL:
        share = len(inputs[0]) // ranks
        return np.concatenate([part[rank * share : (rank + 1) * share] for part in inputs])
    if name == CollectiveName.REDUCE and rank != collective.root:
        return None
    total = combined(inputs, type, operation)
    share = len(total) // ranks
    return total[rank * share : (rank + 1) * share] if name == CollectiveName.REDUCE_SCATTER else total


class Memory:
    """`elements` elements at an address that is `shift` bytes beyond an aligned one, between guards."""

    def __init__(self, dtype: np.dtype, elements: int, shift: int = 0) -> None:
        size_bytes = elements * dtype.itemsize
        self._raw = np.full(size_bytes + 2 * _GUARD_BYTES + shift, _GUARD, dtype=np.uint8)
        self._first, self._last = _GUARD_BYTES + shift, _GUARD_BYTES + shift + size_bytes
        self.dtype = dtype

    @property
    def address(self) -> int:
        return int(self._raw.ctypes.data) + self._first

    def fill(self, values: Array, at: int = 0) -> None:
        first = self._first + at * self.dtype.itemsize
        data = np.ascontiguousarray(values).view(np.uint8)
        self._raw[first : first + len(data)] = data

    def values(self, at: int = 0, count: int | None = None) -> Array:
        everything = self._raw[self._first : self._last].copy().view(self.dtype)
        return everything[at : None if count is None else at + count]

    def has_guards(self) -> bool:
        return bool((self._raw[: self._first] == _GUARD).all() and (self._raw[self._last :] == _GUARD).all())
