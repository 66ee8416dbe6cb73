"""Ways to cut a number of nodes into factors and roots."""

from __future__ import annotations

import math
from collections.abc import Iterator


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in rising order. O(sqrt(number))."""
    small = [candidate for candidate in range(1, math.isqrt(number) + 1) if number % candidate == 0]
    large = [number // candidate for candidate in reversed(small) if candidate * candidate != number]
    return small + large


def roots(number: int) -> Iterator[tuple[int, int]]:
    """Yield (root, n) with root^n = number and n, root >= 2, by rising n."""
    for times in range(2, number.bit_length()):
        root = round(number ** (1 / times))
        for candidate in (root - 1, root, root + 1):
            if candidate >= 2 and candidate**times == number:
                yield candidate, times
