"""Kernels in which arithmetic and arrays of Python and C++ could differ; none of them is a kernel of Chorale."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import Kernel, inlined
from chorale.synth.kernels.types import Matrix, Table

Integers = NDArray[np.int64]
Narrow = NDArray[np.uint16] | NDArray[np.uint32]
LIMIT = 3
BIT = np.uint64(1)


class Inner(NamedTuple):
    numbers: Integers
    weight: float


class Outer(NamedTuple):
    inner: Inner
    flags: NDArray[np.bool_]
    count: int


def integers(a: int, b: int) -> tuple[int, int, int, int, int, int]:
    return a // b, a % b, a * b - a + b, a << (b & 7), a >> (b & 7), (a & b) | (a ^ ~b)


def words(a: np.uint64, b: np.uint64) -> tuple[int, np.uint64, np.uint64, bool]:
    return int(a >> np.uint64(1)), a * b + np.uint64(3), ~a & (b | BIT), bool(a & BIT) and b != 0


def reals(a: float, b: float, c: int) -> tuple[float, float, float, bool, float]:
    return a / b, a * b + c, float(c // 2) / 4, c < a <= b, max(a, b, 0.5) if c > LIMIT else min(a, b)


def narrow(values: NDArray[np.int32], bytes_of: NDArray[np.int8]) -> tuple[int, int]:
    product = 1
    for value in values:
        product = product * value
    bytes_of[0] = product % 100
    return product, values[0] * values[-1] + bytes_of[0]


def control(count: int) -> tuple[int, int, int]:
    total = last = 0
    for last in range(count, 0, -2):
        if last in (3, 5):
            continue
        if last == 1 and count > 8:
            break
        total += last if last % 3 else -last
    steps = 0
    while not (total < 10 or steps >= count):
        total, steps = total - 3, steps + 1
    for weight in (1, 2, 4):
        total = weight * total
    return total, steps, last


def parts(table: Matrix[np.int64], row: int) -> tuple[Integers, Matrix[np.int64], Integers, int]:
    middle = table[1:-1, 0].copy()
    table[row, 1:] = table[row, :-1]
    table[row] += 2
    table[:, 1] -= row
    line = table[row]
    line[:2], line[-1] = 7, len(table)
    first, last = table[0], table[-1]
    first[0], last[0] = last[0], first[0]
    return middle, table[: row + 1, 1:], table[row][::-1].copy(), table.shape[1] * table.size


def cube(sets: Table[np.uint64], word: np.uint64) -> int:
    rows, columns, words_of = sets.shape
    bits = 0
    for row in range(rows):
        sets[row, columns - 1, :] |= word
        for column in range(columns):
            union = sets[row, column]
            for position in range(words_of):
                bits += int(union[position] & np.uint64(255))
    return bits


def library(values: Integers, flags: NDArray[np.bool_]) -> tuple[Integers, Integers, Integers, Integers, Integers, int]:
    order = np.argsort(values, kind="stable")
    ordered = np.sort(values)
    both = np.concatenate((ordered, np.array([1, len(values)])))
    positions = np.searchsorted(ordered, np.arange(4))
    raised = np.maximum(values * 2, ordered) - np.cumsum(values)
    values.sort()
    total = int(flags.sum() + values[values > 2].sum() + np.sum(np.ones(3, np.int64)))
    return order, both, positions, raised, np.diff(ordered), total


def blank(size: int) -> tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.bool_], Matrix[np.int32]]:
    table = np.full((size, 2), -1, dtype=np.int32)
    table[:] = 5
    room = np.empty(size)
    room[:] = 0.25
    return room, np.full(size, 9, np.uint64), ~np.zeros(size, np.bool_), table


@inlined
def grown(outer: Outer, by: int) -> Outer:
    """Return a record of which one part is new."""
    inner, flags, count = outer
    flags[count % len(flags)] = True
    return Outer(Inner(inner.numbers * by, inner.weight / 2), flags, count=count + by)


def records(outer: Outer, by: int) -> tuple[Outer, float]:
    result = grown(outer, by)
    if by > LIMIT:
        result = grown(result, 2)
    return result, result.inner.weight * result.inner.numbers[0]


def variants(hops: Narrow, far: int) -> int:
    count = 0
    for node in range(len(hops)):
        if hops[node] == far:
            hops[node] = node
            count += 1
    return count


def refusal(values: Integers) -> int:
    if len(values) == 0:
        raise ValueError("there are no values")
    return values[0]


def nothing(values: Integers) -> None:
    """A result that is none, from a loop that may not run."""
    for index in range(len(values)):
        values[index] = index


EXAMPLES = [
    Kernel(function)
    for function in (
        integers, words, reals, narrow, control, parts, cube, library, blank, records, variants, refusal, nothing,
    )
]  # fmt: skip
