"""Sets of in-links of a node in kernels: rows of uint64 words, bit k of word k // 64 for in-link k."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import inlined

Masks = NDArray[np.uint64]


@inlined
def contains_link(links: Masks, link: int) -> bool:
    """Whether the set `links` (a row of words) contains `link`."""
    return bool((links[link // 64] >> np.uint64(link % 64)) & np.uint64(1))


@inlined
def add_links(links: Masks, union: Masks) -> bool:
    """Add the set `links` to `union`; return whether that changes it."""
    fresh = np.uint64(0)
    for word in range(len(links)):
        fresh |= links[word] & ~union[word]
        union[word] |= links[word]
    return bool(fresh != np.uint64(0))


@inlined
def equal_links(links: Masks, other: Masks) -> bool:
    """Whether two sets are equal."""
    equal = True
    for word in range(len(links)):
        equal &= links[word] == other[word]
    return equal
