"""The groups that a search for Cayley digraphs tries: semidirect products of cyclic groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.finder.divisors import divisors
from chorale.synth.topology.semidirect import SemidirectProduct


def semidirect_groups(order: int) -> Iterator[SemidirectProduct]:
    """Yield Z_m x|_r Z_k x Z_l with m k l = `order`, for all factors and all r of order dividing k modulo m.

    Cyclic groups come first. Some are isomorphic; a search loses time by that, not answers.
    """
    yield SemidirectProduct(order, 1, 1)
    for m in divisors(order):
        for k in divisors(order // m):
            if k == 1 or m == 1:
                continue
            for r in range(1, m):
                group = SemidirectProduct(m, k, r, order // (m * k))
                if group.is_group:
                    yield group


@lru_cache(maxsize=8)
def multiplication_table(group: SemidirectProduct) -> NDArray[np.int32]:
    """Return int32[order, order]: entry [g, x] is x times g. O(order^2) time and memory."""
    elements = np.arange(group.order)
    rows = [group.product(elements, np.full_like(elements, generator)) for generator in elements]
    return np.array(rows, dtype=np.int32)
