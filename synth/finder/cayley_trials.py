"""Kernel that tries random generator sets of a group and keeps the best one for every number of steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.splitmix import STEP
from chorale.synth.kernels.types import Matrix

LOAD_UNIT = 840
"""Loads are counted in parts of 840 = lcm(1, …, 8), so that all of them are whole."""

NO_LOAD = np.iinfo(np.int64).max


@inlined
def _next(state: NDArray[np.uint64]) -> np.uint64:
    """Return the next number of a xorshift generator; `state[0]` must not be 0."""
    number: np.uint64 = state[0]
    number ^= number << np.uint64(13)
    number ^= number >> np.uint64(7)
    number ^= number << np.uint64(17)
    state[0] = number
    return number


@inlined
def _draw(state: NDArray[np.uint64], inverse: NDArray[np.int32], two_way: bool, generators: NDArray[np.int32]) -> bool:
    """Draw distinct generators other than 0; with `two_way`, together with their inverses. False if that went wrong."""
    order = np.uint64(len(inverse))
    count = 0
    while count < len(generators):
        element = np.int32(_next(state) % order)
        if element == 0:
            continue
        partner = inverse[element] if two_way else element
        for index in range(count):
            if generators[index] == element or generators[index] == partner:
                return False
        generators[count] = element
        count += 1
        if partner != element:
            if count == len(generators):
                return False
            generators[count] = partner
            count += 1
    return True


@inlined
def _lengths(
    generators: NDArray[np.int32],
    right: Matrix[np.int32],
    length: NDArray[np.int32],
    queue: NDArray[np.int32],
    most_steps: int,
) -> int:
    """Write the number of generators that each element is a product of; return the largest, -1 if above the limit."""
    length[:] = -1
    length[0] = 0
    queue[0] = 0
    head, tail = 0, 1
    while head < tail:
        element = queue[head]
        head += 1
        for index in range(len(generators)):
            following = right[generators[index], element]
            if length[following] < 0:
                if length[element] == most_steps:
                    return -1
                length[following] = length[element] + 1
                queue[tail] = following
                tail += 1
    return length[queue[tail - 1]] if tail == len(length) else -1


@inlined
def _total_load(
    generators: NDArray[np.int32],
    right: Matrix[np.int32],
    inverse: NDArray[np.int32],
    length: NDArray[np.int32],
    steps: int,
    counts: Matrix[np.int64],
) -> int:
    """Return the sum over steps of the largest n(S) / |S| at the identity, in parts of `LOAD_UNIT`.

    The shard of x comes over generator g as the last link of a shortest path if x^-1 g^-1 is one shorter than x^-1;
    x^-1 runs over the group like x.
    """
    sets = 1 << len(generators)
    counts[:steps, :sets] = 0
    for element in range(1, len(length)):
        mask = 0
        for index in range(len(generators)):
            before = right[inverse[generators[index]], element]
            if length[before] == length[element] - 1:
                mask |= 1 << index
        counts[length[element] - 1, mask] += 1
    total = 0
    for step in range(steps):
        for index in range(len(generators)):
            for chosen in range(sets):
                if (chosen >> index) & 1:
                    counts[step, chosen] += counts[step, chosen ^ (1 << index)]
        largest = 0
        for chosen in range(1, sets):
            size = 0
            for index in range(len(generators)):
                size += (chosen >> index) & 1
            largest = max(largest, counts[step, chosen] * (LOAD_UNIT // size))
        total += largest
    return total


@compiled
def best_generators(
    right: Matrix[np.int32], degree: int, two_way: bool, max_steps: int, trials: int, seed: int
) -> tuple[NDArray[np.int64], Matrix[np.int32]]:
    """Try `trials` random generator sets; return the least total load for each number of steps, and who reaches it.

    right: int32[N, N] of `chorale.synth.finder.cayley_search.multiplication_table`. Returns int64[max_steps + 1] in
    parts of `LOAD_UNIT` (`NO_LOAD` where there is no graph) and int32[max_steps + 1, degree]. The same seed gives the
    same result. A graph whose load cannot beat one with as few steps is not evaluated further. O(trials * N * degree),
    and O(steps * degree * 2^degree) for those that are.
    """
    order = len(right)
    inverse = np.empty(order, dtype=np.int32)
    for element in range(order):
        for other in range(order):
            if right[other, element] == 0:
                inverse[element] = other
    bound = (order - 1) * LOAD_UNIT // degree
    loads = np.full(max_steps + 1, NO_LOAD, dtype=np.int64)
    found = np.zeros((max_steps + 1, degree), dtype=np.int32)
    state = np.array([np.uint64(seed) * STEP + np.uint64(0x2545F4914F6CDD1D)], dtype=np.uint64)
    generators = np.empty(degree, dtype=np.int32)
    length, queue = np.empty(order, dtype=np.int32), np.empty(order, dtype=np.int32)
    counts = np.zeros((max_steps, 1 << degree), dtype=np.int64)
    limit = max_steps
    for _ in range(trials):
        if not _draw(state, inverse, two_way, generators):
            continue
        steps = _lengths(generators, right, length, queue, limit)
        if steps < 1:
            continue
        load = _total_load(generators, right, inverse, length, steps, counts)
        if load < loads[: steps + 1].min():
            loads[steps] = load
            found[steps] = generators
            if load <= bound:  # nothing with as many steps can be better
                limit = steps - 1
    return loads, found
